"""The ops from one float to the next, with text or integers between: advice to patch them as one.

A surrogate is advised: it needs no shape that the file does not tell, as of a decoded image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphpatch.analysis.doctor.look import Finding
from graphpatch.analysis.doctor.path import PathStep
from graphpatch.differentiation.wiring import Wiring
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.graph.body import Node

AS_ONE = '{"surrogate_gradient": "x", "on": "match"}'
BEHIND = "differentiate by a tensor behind it"
LOSS_BEFORE = "take the loss before it: nothing behind it is float again"
IN_BETWEEN = (
    "match the ops from what is still float to what is float again as one pattern and give it "
    f"{AS_ONE}; or {BEHIND}"
)


def with_pattern(
    finding: Finding, wiring: Wiring, steps: Sequence[PathStep], place: int
) -> Finding:
    """The finding of the op at that place of a way, its remedy with the pattern to match."""
    if finding.remedy != IN_BETWEEN:
        return finding
    run = _around(wiring, steps, place)
    if not run or not _counts_as_one(wiring, run):
        is_float_again = any(
            _given(wiring, steps[n]) in DIFFERENTIABLE for n in range(place, len(steps))
        )
        return replace(finding, remedy=BEHIND if is_float_again else LOSS_BEFORE)
    first, last = (Node(wiring.body, step.index) for step in (run[0], run[-1]))
    links = (_link(Node(wiring.body, step.index), step.slot) for step in run)
    remedy = (
        f"match the ops from {first.name} to {last.name} as one pattern, "
        f'"{" -> ".join(["x:_", *links])}", and give it {AS_ONE}'
    )
    return replace(finding, remedy=f"{remedy}; or {BEHIND}")


def _around(wiring: Wiring, steps: Sequence[PathStep], place: int) -> Sequence[PathStep]:
    """The steps from the last one that reads a float to the first one that gives a float again."""

    def reads(step: PathStep) -> str | None:
        return wiring.dtype(wiring.inputs(step.index)[step.slot])

    before = (n for n in range(place, -1, -1) if reads(steps[n]) in DIFFERENTIABLE)
    ends = (n for n in range(place, len(steps)) if _given(wiring, steps[n]) in DIFFERENTIABLE)
    start, end = next(before, None), next(ends, None)
    return () if start is None or end is None else steps[start : end + 1]


def _given(wiring: Wiring, step: PathStep) -> str | None:
    return wiring.dtype((step.index, step.output))


def _counts_as_one(wiring: Wiring, run: Sequence[PathStep]) -> bool:
    """Whether nothing outside reads what lies inside: a match that is one op has one output."""
    inside = {step.index for step in run}
    returned = {tensor[0] for tensor in wiring.returned}
    return not any(
        step.index in returned
        or any(reader not in inside for _, reader, _ in wiring.readers(step.index))
        for step in run[:-1]
    )


def _link(node: Node, slot: int) -> str:
    return f"{node.op}:{slot}" if slot else node.op
