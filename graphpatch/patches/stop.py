"""`stop_gradient`: nothing flows back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import at
from graphpatch.patches.inline import typed


@dataclass(frozen=True, slots=True)
class StopGradient:
    """Forward unchanged; backward, nothing flows through the op's outputs, or its inputs.

    A StopGradient is put in line. The gradient of what lies before it is None where no other way
    leads there, not zero. When not to use it: where an optimiser that runs before the gradient is
    built would take the StopGradient out again; `override_gradient` with `zero` stays.
    """

    at: str = at.OUTPUTS

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where nothing flows back there anyway."""
        at.check(nodes, self.at)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Stop what flows back through one op."""
        if at.put(node, editor, typed("StopGradient", "stop"), self.at):
            editor.used("construction")
