"""What flows back through each op of a body: what comes to it, and what goes into its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from graphpatch.control_flow.op_types import EXITS
from graphpatch.differentiation.gradient_reach import GradientReach, OpGradientFlow
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError


class LaneFlow(IntEnum):
    """What flows along a lane, or through an op; the greatest counts where several meet."""

    ABSENT = 0
    NONE = 1
    ZERO = 2
    FULL = 3
    CHANGED = 4
    BLOCKED = 5  # a gradient comes to the op, and goes no further
    ERROR = 6  # tf.gradients raises at the op


# Python 3.11 takes ten times as long to find a member by its class; lines are many.
NONE, ZERO, FULL = LaneFlow.NONE, LaneFlow.ZERO, LaneFlow.FULL

NO_ANSWER = OpGradientFlow()


class OpFlow(NamedTuple):
    """An op in view: what comes to it, and by input slot the op it reads and what flows there."""

    arrives: LaneFlow
    edges: tuple[tuple[int, int, LaneFlow], ...]  # slot, op that is read, what flows back into it
    raises: bool = False


@dataclass(eq=False)
class BodyFlow:
    """The ops of a body between its sources and targets, in the order in which they are found."""

    wiring: Wiring
    answers: GradientReplay
    sources: Sequence[Tensor] = ()
    targets: Sequence[Tensor] = ()
    passages: dict[int, OpFlow] = field(default_factory=dict)


def body_flow(
    answers: GradientReplay, back: GradientReach, ends: tuple[Sequence[Tensor], Sequence[Tensor]]
) -> BodyFlow:
    """Follow a gradient op by op, between sources and targets.

    The ops are found by tensors of any dtype, as a path may end in one that carries no gradient.
    Without sources, all that the targets are computed from is in view.
    """
    sources, targets = ends
    found = BodyFlow(back.wiring, answers, sources, targets)
    inside = ops_between(back.wiring, sources, targets)
    raising = {one.node.index for one in back.refusals_here()}
    in_loops = set(_raising_in_loops(answers, back, inside))
    for index in inside:
        passage = _passage(answers, back, index, inside, index in raising)
        is_loop = index in in_loops and passage.arrives > LaneFlow.NONE
        found.passages[index] = passage._replace(raises=True) if is_loop else passage
    return found


def _raising_in_loops(
    answers: GradientReplay, back: GradientReach, inside: dict[int, None]
) -> Iterator[int]:
    """The ops of v1 loops at which tf.gradients raises: without contexts, at each of their ends."""
    body, stored = back.wiring.body, answers.stored.in_loops
    for refusal in back.refusals_here():
        if refusal.kind == "loop_inside":
            yield refusal.node.index
        if refusal.kind == "loop":
            ends = (index for index in inside if index >= 0 and body.heads.ops[index] in EXITS)
            yield from (index for index in ends if body.heads.names[index] not in stored)


def ops_between(
    wiring: Wiring, sources: Sequence[Tensor], targets: Sequence[Tensor]
) -> dict[int, None]:
    """The ops that depend on a source and that a target depends on, in the order of discovery."""
    after = set[int]()
    todo = [index for index, _ in sources]
    while todo:
        index = todo.pop()
        if index not in after:
            after.add(index)
            todo += [reader for _, reader, _ in wiring.readers(index)]
    before: dict[int, None] = {}
    todo = [index for index, _ in reversed(targets)]
    while todo:
        index = todo.pop()
        if index not in before and (index in after or not sources):
            before[index] = None
            todo += [producer for producer, _ in reversed(wiring.inputs(index))]
    return before


def _passage(
    answers: GradientReplay, back: GradientReach, index: int, inside: dict[int, None], raises: bool
) -> OpFlow:
    wiring = back.wiring
    tensors = wiring.tensors(index)
    got = not back.got.isdisjoint(tensors)
    live = {tensor[1] for tensor in tensors if tensor in back.live}
    arrives = FULL if live else ZERO if got else NONE
    reads = [(slot, read) for slot, read in enumerate(wiring.inputs(index)) if read[0] in inside]
    asked = got and reads and index in back.visited  # what reads nothing in view is not asked
    answer = _answer_or_none(answers, wiring, index) if asked else NO_ANSWER
    edges = []
    for slot, read in reads:
        flows = slot in answer.slots and read in back.got and wiring.trainable(read)
        full = flows and not live.isdisjoint(answer.reach.get(slot, live))
        edges.append((slot, read[0], FULL if full else ZERO if flows else NONE))
    return OpFlow(arrives, tuple(edges), answer.raises or (raises and got and not answer.slots))


def _answer_or_none(answers: GradientReplay, wiring: Wiring, index: int) -> OpGradientFlow:
    try:
        return answers.ask(wiring, index)
    except ModelError:  # its attrs do not tell its inputs
        return NO_ANSWER
