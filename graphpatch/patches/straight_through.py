"""`straight_through`: backward, a target counts as the identity of one of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.errors import PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import InlineFormula, RegisteredKey
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import Patch
from graphpatch.patches.backward_as import noise_notes
from graphpatch.patches.carrier import BackwardTensor, carry, join
from graphpatch.patches.reach import check_together, place_of
from graphpatch.patches.target import Target, keeps_shape


@dataclass(frozen=True, slots=True)
class StraightThrough(Patch):
    """Forward unchanged; backward, the upstream gradient passes to input `input` as it is.

    The straight-through estimator (Bengio, Leonard and Courville 2013), for ops that round or
    step. The op must give one tensor, of the dtype and shape of that input. An op with one input
    takes TensorFlow's gradient of Identity; else its output is given on by a Select, as `join`
    says. In a function whose caller ignores keys, a function carries it.
    """

    takes_match: ClassVar[bool] = True
    input: int | str = 0

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Say that what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes)

    def check_target(self, target: Target) -> None:
        """Raise PatchError where a target is not the identity of that input in shape and dtype.

        The ops of a match may be of a shape that is not known: a run in which it has another one
        than the input is an error.
        """
        place, outputs = self.place_in(target), target.outputs
        if len(outputs) != 1:
            raise PatchError(
                f"{target.last} has {len(outputs)} outputs; straight_through needs one"
            )
        target.check_counts_as(place)
        if target.is_match and keeps_shape(target, place) == "other":
            raise PatchError(
                f"{target} does not have the shape of x{place}, so it cannot count as the identity "
                f"of it; {target.reading()}"
            )
        op = target.last.opdef
        if not target.is_match and (op is None or place not in op.keeps_shape):
            raise PatchError(
                f"{target} is not known to keep the shape of x{place}, so it cannot count as the "
                f"identity of it; override_gradient takes a gradient of the right shape"
            )

    def place_in(self, target: Target) -> int:
        """Return which of the tensors that a target reads is meant."""
        if isinstance(self.input, int):
            return self.input
        if target.captures.get(self.input) in target.named:
            return target.named.index(target.captures[self.input])
        if target.is_match:
            raise PatchError(f"{target} has no input {self.input!r}; {target.reading()}")
        raise PatchError(
            f'straight_through: {self.input!r} is a name of a pattern, for "on": "match"; of '
            f"one op give the number of the input"
        )

    def rewrite(self, target: Target, editor: Editor) -> None:
        """Let a target count as the identity of its input."""
        target.refuse_open()
        self.check_target(target)
        node, place, count = target.last, self.place_in(target), len(target.inputs)
        if not target.is_match and place_of(node, editor).ignoring is not None:
            texts = ["dy" if n == place else None for n in range(count)]
            carry(InlineFormula(Formula.parse(texts)), target, editor, "function")
            return
        if not target.is_match and count == 1:
            carry(RegisteredKey("Identity", built_in=True), target, editor, "auto")
            return
        keeps = keeps_shape(target, place)
        if keeps == "unknown":
            editor.note(
                f"{node} is not known to have the shape of x{place} of its match: a run in which "
                f"it has another one fails"
            )
        check_together(target, editor)
        join(target, {0: BackwardTensor(target.reads[place], keeps != "same")}, editor, "auto")

    def formulas(self, target: Target) -> Sequence[str | None]:
        """It means one tensor."""
        place = self.place_in(target)
        return ["dy" if n == place else None for n in range(len(target.named))]
