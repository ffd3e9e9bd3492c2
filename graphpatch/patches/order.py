"""Refuse a match as one op where it is not clear which tensor it reads is x0, which x1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from graphpatch.errors import PatchError
from graphpatch.gradients.spec import InlineFormula, Named
from graphpatch.patches.at import parsed
from graphpatch.patches.group import Group

NUMBERED = re.compile(r"\bx(\d*)\b")


def refuse_ambiguous(patch: object, group: Group, others: Sequence[Sequence[str]]) -> None:
    """Raise PatchError where the pattern allows other orders of what the group reads.

    Not where the formula gives every tensor the same gradient in each order.
    """
    texts, alike = _texts(patch, group)
    for other in others:
        places = [group.named.index(text) for text in other]
        if not _treats_alike(texts, alike, places):
            raise PatchError(_message(group, other))


def _texts(patch: object, group: Group) -> tuple[Sequence[str | None], bool | None]:
    """The formulas of a patch; `alike` as Formula has it, None where they are one expression."""
    from graphpatch.patches.filter import FilterGradient
    from graphpatch.patches.override import OverrideGradient
    from graphpatch.patches.stop import StopGradient
    from graphpatch.patches.straight_through import StraightThrough
    from graphpatch.patches.surrogate import SurrogateGradient

    if isinstance(patch, StraightThrough):
        return _at_one(group, patch.place_in(group))
    if isinstance(patch, FilterGradient | StopGradient):
        side, place = parsed(patch.at)
        is_one = side == "input" and place is not None
        return _at_one(group, place or 0) if is_one else (["dy"], None)
    if isinstance(patch, SurrogateGradient):
        return patch.formula.texts, None
    if isinstance(patch, OverrideGradient) and isinstance(patch.gradient, Named | InlineFormula):
        return patch.gradient.formula.texts, patch.gradient.formula.alike
    return (), None


def _at_one(group: Group, place: int) -> tuple[Sequence[str | None], bool | None]:
    """What stands for a patch that means one input, and leaves the others."""
    return ["dy" if n == place else None for n in range(len(group.named))], False


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


def _message(group: Group, other: Sequence[str]) -> str:
    place = next(k for k, text in enumerate(other) if text != group.named[k])
    node, slot = group.slots[place]
    one, two = sorted([group.named[place], other[place]])
    return (
        f"the match that ends in {group.last}: it is not clear which tensor is x{place}, "
        f"{one} or {two}: the order of the file would decide; write "
        f'the input slot into the pattern, as in "x:_ -> m:{node.op}:{slot}"; {group.reading()}'
    )
