"""The pairs that `graphpatch doctor` prints: where they are many, one of each kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from graphpatch.analysis.doctor.diagnosis import PairDiagnosis

MOST_PAIRS = 10

RanPair = dict[str, Any] | None
Told = tuple[PairDiagnosis, RanPair, int]


def pairs_shown(
    pairs: Sequence[PairDiagnosis], results: Sequence[RanPair], every: bool
) -> tuple[list[Told], int]:
    """The pairs to print, each with how many more are like it; and how many are left out.

    Alike are those of one verdict, in a Session and on a tape, that one op blocks next to where
    they start.
    """
    whole = [(one, result, 0) for one, result in zip(pairs, results, strict=True)]
    whole = [told for told in whole if told[0].connected or len(pairs) == 1]
    if every or len(whole) <= MOST_PAIRS:
        return whole, 0
    kinds: dict[Hashable, list[Told]] = {}
    for told in whole:
        kinds.setdefault(_kind(*told[:2]), []).append(told)
    some = [(*alike[0][:2], len(alike) - 1) for alike in list(kinds.values())[:MOST_PAIRS]]
    return some, len(whole) - sum(1 + more for _, _, more in some)


def _kind(one: PairDiagnosis, result: RanPair) -> Hashable:
    blocker = [(last.kind, last.node.body.label, last.node.name) for last in one.findings[-1:]]
    ran = result and (result["gradient"], result["ran"], result["zero"])
    return one.verdict, one.tape, one.says, *blocker, ran


def pairs_left_out(more: int) -> Iterator[str]:
    """The line for pairs that are not printed."""
    if more:
        yield f"... {more} more pair{'' if more == 1 else 's'} of other kinds; --all shows them"
