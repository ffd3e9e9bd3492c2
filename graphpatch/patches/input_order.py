"""Refuse a match as one op where it is not clear which tensor it reads is x0, which x1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from graphpatch.errors import PatchError
from graphpatch.patches.group import MatchedGroup

NUMBERED = re.compile(r"\bx(\d*)\b")


class ByInput(NamedTuple):
    """What a patch of a match as one op does at each tensor that the match reads, as formulas.

    `alike` is as Formula has it; None where `texts` is one formula of the whole match. Without
    texts nothing is known.
    """

    texts: Sequence[str | None]
    alike: bool | None = None


def at_one(group: MatchedGroup, place: int) -> ByInput:
    """What a patch does that means one of these tensors, and leaves the others."""
    return ByInput(["dy" if n == place else None for n in range(len(group.named))], alike=False)


def refuse_ambiguous(found: ByInput, group: MatchedGroup, others: Sequence[Sequence[str]]) -> None:
    """Raise PatchError where the pattern allows other orders of what the group reads.

    Not where `found` gives every tensor the same gradient in each order.
    """
    for other in others:
        places = [group.named.index(text) for text in other]
        if not _treats_alike(*found, places):
            raise PatchError(_unclear_order(group, other))


def _treats_alike(texts: Sequence[str | None], alike: bool | None, places: Sequence[int]) -> bool:
    """Whether each tensor gets the same gradient when `places` says which one is x0, x1, ..."""
    if not texts:
        return False  # Python, of which nothing is known
    if alike is not False:
        return all(_renumbered(text, places) == _text_or_none(text) for text in texts)
    if len(texts) != len(places):
        return True  # which is refused with a message of its own
    return all(
        _renumbered(text, places) == _text_or_none(texts[place])
        for text, place in zip(texts, places, strict=True)
    )


def _renumbered(text: str | None, places: Sequence[int]) -> str | None:
    """The formula with the tensors as they are called in the first order."""
    if text is None:
        return None
    return _text_or_none(NUMBERED.sub(lambda one: f"x{_now(places, int(one[1] or 0))}", text))


def _now(places: Sequence[int], number: int) -> int:
    return places[number] if number < len(places) else number


def _text_or_none(text: str | None) -> str | None:
    if text is None:
        return None
    return "".join(NUMBERED.sub(lambda one: f"x{int(one[1] or 0)}", text).split())


def _unclear_order(group: MatchedGroup, other: Sequence[str]) -> str:
    place = next(k for k, text in enumerate(other) if text != group.named[k])
    node, slot = group.slots[place]
    one, two = sorted([group.named[place], other[place]])
    return (
        f"the match that ends in {group.last}: it is not clear which tensor is x{place}, "
        f"{one} or {two}: the order of the file would decide; write "
        f'the input slot into the pattern, as in "x:_ -> m:{node.op}:{slot}"; {group.reading()}'
    )
