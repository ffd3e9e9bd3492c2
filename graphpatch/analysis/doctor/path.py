"""The path from one tensor to another that the fewest ops block."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphpatch.differentiation.gradient_reach import OpGradientFlow
from graphpatch.differentiation.wiring import Tensor, Wiring

# What it costs to go back through an op: nothing, a rule, what no rule fixes, or that no values
# come that way, but a shape or another size. Paths that carry values come first.
FREE, A_RULE, HOPELESS, NO_VALUES = 0, 1, 1_000, 1_000_000

Cost = Callable[[int, int, int], int]  # op, output, input slot


@dataclass(frozen=True, slots=True)
class PathStep:
    """One op of a path: the output by which it is left, the slot by which it is entered."""

    index: int
    output: int
    slot: int


def ops_depending_on(wiring: Wiring, source: Tensor) -> set[int]:
    """Return the ops that depend on a tensor by tensors of any dtype, and its own."""
    depending, todo = {source[0]}, [source[0]]
    while todo:
        for _, reader, _ in wiring.readers(todo.pop()):
            if reader not in depending:
                depending.add(reader)
                todo.append(reader)
    return depending


def cheapest_path(
    wiring: Wiring, source: Tensor, target: Tensor, cost: Cost, within: set[int]
) -> list[PathStep] | None:
    """The ops from the source to the target, without the source's own; None where there is no path.

    Among paths that cost the same it is the shortest one. Only ops `within` are looked at.
    """
    if target[0] not in within:
        return None
    best: dict[Tensor, tuple[int, int]] = {target: (0, 0)}
    behind: dict[Tensor, tuple[Tensor, int]] = {}
    todo = [(0, 0, target)]
    while todo:
        spent, length, tensor = heapq.heappop(todo)
        if tensor == source:
            return _unrolled(behind, source, target)
        if best[tensor] < (spent, length):
            continue
        index, output = tensor
        for slot, read in enumerate(wiring.inputs(index)):
            if read[0] not in within:
                continue
            total = (spent + cost(index, output, slot), length + 1)
            if read not in best or total < best[read]:
                best[read], behind[read] = total, (tensor, slot)
                heapq.heappush(todo, (*total, read))
    return None


def _unrolled(
    behind: Mapping[Tensor, tuple[Tensor, int]], source: Tensor, target: Tensor
) -> list[PathStep]:
    steps, tensor = [], source
    while tensor != target:
        tensor, slot = behind[tensor]
        steps.append(PathStep(*tensor, slot))
    return steps


def is_blocked(answer: OpGradientFlow, wiring: Wiring, step: PathStep, is_target: bool) -> bool:
    """Return whether no gradient comes back through an op, from this output to this input."""
    carried = is_target or wiring.trainable((step.index, step.output))
    return not carried or step.slot not in answer.slots


def spelled_path(wiring: Wiring, source: Tensor, steps: Sequence[PathStep]) -> list[str]:
    """Return the tensors of a path, first to last."""
    return [wiring.spelled(tensor) for tensor in (source, *((s.index, s.output) for s in steps))]
