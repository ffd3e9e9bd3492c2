"""A patch on many ops: what it does to ops of one form is found out once, and filled in for each.

Only ops of the main graph of a file have forms, outside of v1 loops and branches. Elsewhere what a
patch does depends on more than the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from graphpatch.errors import GraphpatchError
from graphpatch.graph.alike import AttrBytes, Form, FormKey, Forms, OwnBytes, UnlikeError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.template import Template, TemplateEdit, fill, record
from graphpatch.patches.place import all_in_control_flow


class PlannedEdit(NamedTuple):
    """What is to be done to ops, and bytes that they have of their own besides their names."""

    template: Template
    values: AttrBytes


@dataclass(eq=False)
class FormEditor:
    """Does an edit to ops, of which it asks nothing but what their form tells."""

    edit: Callable[[Node, Editor], None]
    editor: Editor
    known: dict[FormKey, PlannedEdit | None] = field(default_factory=dict)
    templates: dict[Form, Template | None] = field(default_factory=dict)
    forms: Forms = field(init=False)

    def edit_all(self, nodes: Sequence[Node], alone: Callable[[Node], None]) -> None:
        """Edit ops in their order; `alone` edits one whose form does not say how."""
        body, owns = nodes[0].body, self._owns(nodes)
        if len(owns) == len(nodes) and (edits := self._edits(owns, body)):
            self._fill(body, edits, alone)
            return
        waiting: list[TemplateEdit] = []
        is_as_read = True  # until an op is edited alone, which may change others
        for node in nodes:
            own = owns.get(node.index) if node.body is body else None
            edit = None
            if own is not None and (is_as_read or not _is_edited(node)):
                edit = self._edit(node.index, own, body)
            if edit is not None:
                waiting.append(edit)
                continue
            self._fill(body, waiting, alone)
            waiting.clear()
            is_as_read = False
            alone(node)
        self._fill(body, waiting, alone)

    def _owns(self, nodes: Sequence[Node]) -> dict[int, OwnBytes | None]:
        """What is known of the forms of ops, as far as they have any."""
        body, graph = nodes[0].body, self.editor.graph
        if not body.is_main or graph.around.is_object_based or graph.around.is_exported:
            return {}
        self.forms = Forms(body)
        inside = all_in_control_flow(body, self.editor)
        of = [node.index for node in nodes if node.body is body and node.index not in inside]
        of = [index for index in of if index not in body.edited and index not in body.placed]
        return dict(zip(of, self.forms.of_all(of), strict=True))

    def _edits(self, owns: Mapping[int, OwnBytes | None], body: Body) -> list[TemplateEdit]:
        """What is to be done to each op; nothing where a form does not say it for its ops."""
        read = [own for own in owns.values() if own is not None]
        if len(read) < len(owns):
            return []
        known: dict[FormKey, PlannedEdit] = {}
        for key in dict.fromkeys([own[0] for own in read]):
            if key not in self.known:
                self.known[key] = self._template(self.forms.form(key), body)
            found = self.known[key]
            if found is None:  # an op is edited alone then, before forms that come after it
                return []
            known[key] = found
        return [
            (index, (of := known[key]).template, names, raw + of.values)
            for index, (key, names, raw) in zip(owns, read, strict=True)
        ]

    def _edit(self, index: int, own: OwnBytes, body: Body) -> TemplateEdit | None:
        """What is to be done to an op, if its form says it."""
        key, names, raw = own
        if key not in self.known:
            self.known[key] = self._template(self.forms.form(key), body)
        known = self.known[key]
        return None if known is None else (index, known[0], names, raw + known[1])

    def _fill(
        self, body: Body, edits: Sequence[TemplateEdit], alone: Callable[[Node], None]
    ) -> None:
        """Do edits at once, or one by one where a name is taken."""
        if not edits or fill(self.editor, body, edits):
            return
        for edit in edits:
            node = Node(body, edit[0])
            if len(edits) == 1 or _is_edited(node) or not fill(self.editor, body, [edit]):
                alone(node)

    def _template(self, found: tuple[Form, AttrBytes] | None, body: Body) -> PlannedEdit | None:
        if found is None:
            return None
        form, values = found
        if form not in self.templates:
            self.templates[form] = self._recorded(form, body)
        template = self.templates[form]
        return None if template is None else PlannedEdit(template, values)

    def _recorded(self, form: Form, body: Body) -> Template | None:
        try:
            return record(form, body, self.edit, self.editor)
        except (UnlikeError, GraphpatchError):
            return None  # the edit of the op itself raises the error that names it


def _is_edited(node: Node) -> bool:
    return node.index in node.body.edited or node.index in node.body.placed
