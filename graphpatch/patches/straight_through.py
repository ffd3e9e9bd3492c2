"""`straight_through`: backward, the op counts as the identity of one of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.errors import PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import InlineFormula, RegisteredKey
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import Patch, carrier, op_args
from graphpatch.patches.construction import BackwardTensor, join
from graphpatch.patches.group import ByInput, MatchedGroup, at_one
from graphpatch.patches.noise import noise_notes
from graphpatch.patches.reach import place_of
from graphpatch.patches.whole_shape import keeps_shape, refuse_behind, shadow_behind


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
        """That what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Let one op count as the identity of its input."""
        flat = op_args.known_inputs(node)
        self.check_op(node)
        assert isinstance(self.input, int)
        if place_of(node, editor).ignoring is not None:
            texts = ["dy" if place == self.input else None for place in range(len(flat))]
            carrier.carry(InlineFormula(Formula.parse(texts)), node, editor, "function")
        elif len(flat) == 1:
            carrier.carry(RegisteredKey("Identity", built_in=True), node, editor, "auto")
        else:
            repeated = node.opdef is not None and node.opdef.broadcasts
            counted = BackwardTensor(node.data_inputs[self.input], repeated)
            join(node, {0: counted}, editor, "auto")

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Let a match count as the identity of one of the tensors that it reads.

        Where the ops are not known to keep the shape of that tensor, a run in which they do not
        is an error; shapes that can be broadcast are.
        """
        group.refuse_open()
        place = self.place_in(group)
        self._check_whole(group, place)
        keeps = keeps_shape(group, place)
        if keeps == "other":
            raise PatchError(
                f"the match that ends in {group.last} does not have the shape of x{place}, so it "
                f"cannot count as the identity of it; {group.reading()}"
            )
        if keeps == "unknown":
            editor.note(
                f"{group.last} is not known to have the shape of x{place} of its match: a run in "
                f"which it has another one fails"
            )
        refuse_behind(group.nodes, group.last, editor)
        shadow_behind(group.nodes, group.last, editor)
        counted = BackwardTensor(group.reads[place], keeps != "same")
        join(group.last, {0: counted}, editor, "auto", group.nodes, group.reads)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """It means one tensor."""
        return at_one(group, self.place_in(group))

    def place_in(self, group: MatchedGroup) -> int:
        """Return which of the tensors that a match reads is meant."""
        if isinstance(self.input, int):
            if self.input < len(group.args):
                return self.input
        elif group.captures.get(self.input) in group.named:
            return group.named.index(group.captures[self.input])
        raise PatchError(
            f"the match that ends in {group.last} has no input {self.input!r}; {group.reading()}"
        )

    def _check_whole(self, group: MatchedGroup, place: int) -> None:
        arg, outputs = group.args[place], op_args.known_outputs(group.last)
        if len(outputs) != 1:
            raise PatchError(f"{group.last} has {len(outputs)} outputs; straight_through needs one")
        for tensor in (arg, outputs[0]):
            if not op_args.carries(tensor):
                raise PatchError(
                    f"the match that ends in {group.last} cannot count as the identity of "
                    f"x{place}: {tensor.name} {op_args.why_not(tensor)}; {group.reading()}"
                )
        if arg.dtype != outputs[0].dtype:
            raise PatchError(
                f"the match that ends in {group.last} cannot count as the identity of x{place}, "
                f"which has another dtype; {group.reading()}"
            )

    def check_op(self, node: Node) -> None:
        """Raise PatchError where the op is not the identity of that input in shape and dtype."""
        inputs, outputs = op_args.known_inputs(node), op_args.known_outputs(node)
        if isinstance(self.input, str):
            raise PatchError(
                f'straight_through: {self.input!r} is a name of a pattern, for "on": "match"; of '
                f"one op give the number of the input"
            )
        if self.input >= len(inputs):
            raise PatchError(f"{node} has no input {self.input}; {op_args.counted_inputs(inputs)}")
        if len(outputs) != 1:
            raise PatchError(f"{node} has {len(outputs)} outputs; straight_through needs one")
        op_args.check_counts_as(node, inputs[self.input], outputs[0])
        if inputs[self.input].dtype != outputs[0].dtype:
            raise PatchError(
                f"{node} cannot count as its input: input {self.input} has another dtype"
            )
        if node.opdef is None or self.input not in node.opdef.keeps_shape:
            raise PatchError(
                f"{node} is not known to keep the shape of input {self.input}, so it cannot count "
                f"as the identity of it; override_gradient takes a gradient of the right shape"
            )
