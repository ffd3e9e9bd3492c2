"""A patch on many ops: what it does to ops of one form is found out once, and filled in for each.

Only ops of the main graph of a file have forms, outside of v1 loops and branches. Elsewhere what a
patch does hangs on more than the op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphpatch.errors import GraphpatchError
from graphpatch.graph.alike import Form, Forms, UnlikeError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.template import Template, record
from graphpatch.patches.place import in_control_flow


@dataclass(eq=False)
class Alike:
    """Does an edit to ops, of which it asks nothing but what their form tells."""

    edit: Callable[[Node, Editor], None]
    editor: Editor
    known: dict[Form, Template | None] = field(default_factory=dict)
    forms: dict[str, Forms] = field(default_factory=dict)

    def done(self, node: Node) -> bool:
        """Edit an op, if its form says how; False where nothing was done."""
        body, graph = node.body, self.editor.graph
        if not body.is_main or graph.around.is_object_based or graph.around.is_exported:
            return False
        if in_control_flow(node, self.editor):
            return False
        if body.label not in self.forms:
            self.forms[body.label] = Forms(body)
        found = self.forms[body.label].of(node.index)
        if found is None:
            return False
        form, own, values = found
        if form not in self.known:
            self.known[form] = self._template(form, body)
        template = self.known[form]
        return template is not None and template.fill(self.editor, body, node.index, own, values)

    def _template(self, form: Form, body: Body) -> Template | None:
        try:
            return record(form, body, self.edit, self.editor)
        except (UnlikeError, GraphpatchError):
            return None  # the edit of the op itself raises the error that names it
