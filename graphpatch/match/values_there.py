"""What the ops have of a key that no op meets: the dtypes, attrs and values that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from graphpatch.errors import did_you_mean
from graphpatch.graph.body import Body, Node
from graphpatch.match import attribute
from graphpatch.match.value import value_of
from graphpatch.table import and_more

VALUES_TOLD = 5
READ = 1_000  # Consts whose values are looked at


def values_there(bodies: Sequence[Body], key: str, wanted: Any) -> str:
    """A clause like `; there are: float32 (9 ops)`; nothing for a key of which it says nothing."""
    say = THERE.get(key)
    return "" if say is None else f"; {say((node for body in bodies for node in body), wanted)}"


def _dtypes(nodes: Iterable[Node], wanted: Any) -> str:
    found = (arg.dtype for node in nodes for arg in (node.outputs or [])[:1] if arg.dtype)
    return _listed("there are", Counter(found))


def _attrs(nodes: Iterable[Node], wanted: dict[str, Any]) -> str:
    nodes = list(nodes)
    names = dict.fromkeys(name for node in nodes for name in node.attr_names)
    return "; ".join(_attr(nodes, key, list(names)) for key in wanted)


def _attr(nodes: Sequence[Node], key: str, names: Sequence[str]) -> str:
    found = (attribute.given(node, key) for node in nodes)
    counts = Counter(repr(value) for value in found if value is not None)
    if not counts:
        return f"no op has an attr {key!r}{did_you_mean(key, names)}"
    return _listed(f"{key} is", counts)


def _values(nodes: Iterable[Node], wanted: Any) -> str:
    constants = islice((node for node in nodes if node.op == "Const"), READ)
    found = Counter(map(value_of, constants))
    return _listed("Consts are", found) if found else "value is of Consts, and there is none"


def _listed(title: str, counts: Counter[str]) -> str:
    """The most frequent values, and of how many ops each is."""
    words = [f"{value} ({count:,})" for value, count in counts.most_common(VALUES_TOLD)]
    return f"{title} {', '.join(filter(None, [*words, and_more(counts, VALUES_TOLD)]))}"


THERE: dict[str, Callable[[Iterable[Node], Any], str]] = {
    "dtype": _dtypes,
    "attr": _attrs,
    "value": _values,
}
