"""The scopes of a list of lines that fold: stretches of lines whose names begin alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from graphpatch.page.order import scopes

FEW = 48  # lines; in a list of no more all scopes are open


class Fold(NamedTuple):
    """A scope: the first and last of its lines, how deep it lies, its name, whether it is open.

    The lines of a scope that do not follow each other are several of these.
    """

    first: int
    last: int
    depth: int
    name: str
    is_open: bool = False


def folds(names: Sequence[str], shown: Collection[int]) -> list[Fold]:
    """The folds of lines of these names, outer ones before inner ones.

    Open are those that hold a line that is to be `shown`; all of a short list.
    """
    before = [0]
    for row in range(len(names)):
        before.append(before[-1] + (row in shown or len(names) <= FEW))
    return [
        Fold(one.first, one.last, depth, one.name, before[one.last + 1] > before[one.first])
        for one, depth in _nested(_joined(_runs(names)))
    ]


def _runs(names: Sequence[str]) -> list[Fold]:
    """Each stretch of at least two lines that share a scope."""
    found: list[Fold] = []
    begun: list[tuple[str, int]] = []  # scope, its first line
    for row, name in enumerate([*names, ""]):
        parts = scopes(name) if row < len(names) else ()
        kept = 0
        while kept < len(begun) and kept < len(parts) and begun[kept][0] == parts[kept]:
            kept += 1
        while len(begun) > kept:
            whole = "/".join(scope for scope, _ in begun)
            _, first = begun.pop()
            if row - first > 1:
                found.append(Fold(first, row - 1, len(begun), whole))
        begun += [(scope, row) for scope in parts[kept:]]
    return sorted(found, key=lambda one: (one.first, -one.last, one.depth))


def _joined(found: Sequence[Fold]) -> list[Fold]:
    """Of scopes that hold the same lines the innermost, which has the longest name."""
    by_lines = {(one.first, one.last): one for one in found}
    return list(by_lines.values())


def _nested(found: Sequence[Fold]) -> Iterator[tuple[Fold, int]]:
    """Each fold with the number of others around it."""
    around: list[Fold] = []
    for one in found:
        while around and around[-1].last < one.first:
            around.pop()
        yield one, len(around)
        around.append(one)
