"""`stop_gradient`: nothing flows back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.gradients.spec import LibraryGradient
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import Patch, at
from graphpatch.patches.at import inline_op
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.noise import noise_notes
from graphpatch.patches.reach import place_of


@dataclass(frozen=True, slots=True)
class StopGradient(Patch):
    """Forward unchanged; backward, nothing flows through the op's outputs, or its inputs.

    A StopGradient is put in line. The gradient of what lies before it is None where no other path
    leads there, not zero. In a function that a Session differentiates as a whole it is zero anyway,
    and a function carries it: TensorFlow optimises what that function calls first, and takes
    StopGradients out. When not to use it: where an optimiser that runs before the gradient is
    built would take the StopGradient out again; `override_gradient` with `zero` stays.
    """

    takes_match: ClassVar[bool] = True
    takes_side: ClassVar[bool] = True
    at: str = at.OUTPUTS

    @property
    def is_at_outputs(self) -> bool:
        """Whether it is not put before the inputs."""
        return at.parsed(self.at)[0] == "output"

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs; at inputs it looks at what the op reads."""
        return self.is_at_outputs

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where nothing flows back there anyway."""
        at.check_gradient_flows(nodes, self.at)

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """That what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes, at_inputs=self.at.startswith("input"))

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Stop what flows back through one op."""
        caller = place_of(node, editor).ignoring
        if caller is not None and not editor.graph.around.is_exported:
            FilterGradient(LibraryGradient("zero"), self.at, "function").rewrite(node, editor)
        elif at.put_at(node, editor, inline_op("StopGradient", "stop"), self.at):
            editor.used("construction")

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Stop what flows back to a match as one op, or from it to what it reads."""
        group.refuse_open()
        caller = place_of(group.last, editor).ignoring
        if caller is not None and not editor.graph.around.is_exported:
            FilterGradient(LibraryGradient("zero"), self.at, "function").rewrite_whole(
                group, editor
            )
        elif at.put_beside_group(group, editor, inline_op("StopGradient", "stop"), self.at):
            editor.used("construction")

    def by_input(self, group: MatchedGroup) -> ByInput:
        """At one input it means that tensor, else it treats all alike."""
        return at.by_input(group, self.at)
