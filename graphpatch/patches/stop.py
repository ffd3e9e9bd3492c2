"""`stop_gradient`: nothing flows back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphpatch.gradients.spec import LibraryGradient
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import at
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.noise import noise_notes
from graphpatch.patches.reach import differentiated_as_whole


@dataclass(frozen=True, slots=True)
class StopGradient(at.SidePatch):
    """Forward unchanged; backward, nothing flows through the op's outputs, or its inputs.

    A StopGradient is put in line. The gradient of what lies before it is None where no other path
    leads there, not zero. In a function that a Session differentiates as a whole it is zero anyway,
    and a function carries it: TensorFlow optimises what that function calls first, and takes
    StopGradients out. When not to use it: where an optimiser that runs before the gradient is
    built would take the StopGradient out again; `override_gradient` with `zero` stays.
    """

    at: str = at.OUTPUTS

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """That what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes, at_inputs=self.at.startswith("input"))

    def put(self, target: Node | MatchedGroup, editor: Editor) -> None:
        """Stop what flows back there."""
        node = target.last if isinstance(target, MatchedGroup) else target
        if differentiated_as_whole(node, editor):
            FilterGradient(LibraryGradient("zero"), self.at, "function").put(target, editor)
        elif at.put_at(target, editor, at.inline_op("StopGradient", "stop"), self.at):
            editor.used("construction")
