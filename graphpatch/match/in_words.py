"""What an op is, for each key of a match that it does not meet: the words of a miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from graphpatch.graph.body import Node
from graphpatch.match import added, nth, path_miss
from graphpatch.match.conditions import KEYS, conditions, holds
from graphpatch.match.spec import Match
from graphpatch.table import IN_MESSAGE, cut_short, short

LETTERS = 100  # letters for one key


def failing(node: Node, match: Match) -> list[str]:
    """The keys of a match that an op does not meet."""
    return [key for key, made in conditions(match).items() if not made(node.body)(node)]


def key_in_words(node: Node, key: str, match: Match) -> str:
    """What an op has instead of what a key of a match asks for: `dtype is float32`."""
    if key in ON_MATCH:
        text = ON_MATCH[key](node, match)
    else:
        text = IN_WORDS[key](node, match.given().get(key))
    return cut_short(text, LETTERS)


def _inputs_in_words(node: Node, wanted: Mapping[str, Match]) -> str:
    found = [node.body.producer(text) for text in node.data_inputs]
    listed = [
        f"input {slot} is {text if one is None else _input_in_words(one, wanted.get(str(slot)))}"
        for slot, (one, text) in enumerate(zip(found, node.data_inputs, strict=True))
    ]
    slots = [int(word) for word in wanted if word.isdigit()]
    listed.sort(key=lambda text: int(text.split()[1]) not in slots)  # what was asked for first
    beyond = [f"there is no input {slot}" for slot in slots if slot >= len(found)]
    return _some([*beyond, *listed], "it reads nothing")


def _input_in_words(node: Node, wanted: Match | None) -> str:
    """An op that gives an input, with what it has instead; its type stands there already."""
    keys = [key for key in failing(node, wanted) if key != "op"] if wanted else []
    has = ", ".join(key_in_words(node, key, wanted) for key in keys) if wanted else ""
    return f"{node} ({has})" if has else str(node)


def _readers_in_words(node: Node, wanted: Any) -> str:
    body = node.body
    found = dict.fromkeys(index for index, _ in body.readers.get(node.name, ()))
    return _some((f"{Node(body, index)} reads it" for index in found), "nothing reads it")


def _some(listed: Iterable[str], nothing: str) -> str:
    found = list(listed)
    return short(found) if found else nothing


def _nth(node: Node, match: Match) -> str:
    return nth.nth_in_words(node, match.nth, holds(replace(match, nth=None)))


def _what_all_misses(node: Node, wanted: Any) -> str:
    return ", ".join(of_match(node, match) for match in wanted if failing(node, match))


def _what_any_misses(node: Node, wanted: Any) -> str:
    return (
        " and ".join(of_match(node, match) for match in wanted[:IN_MESSAGE]) or "any: it is empty"
    )


def _what_not_leaves_out(node: Node, wanted: Any) -> str:
    return f"it is what `not` leaves out ({', '.join(wanted.given())})"


def of_match(node: Node, match: Match) -> str:
    """What an op has instead of what a match asks for: all keys that it does not meet."""
    return ", ".join(key_in_words(node, key, match) for key in failing(node, match))


IN_WORDS: dict[str, Callable[[Node, Any], str]] = {
    **{key: one.in_words for key, one in KEYS.items() if one.in_words is not None},
    added.ADDED_KEY: added.adder_in_words,
    "inputs": _inputs_in_words,
    "consumers": _readers_in_words,
    "any": _what_any_misses,
    "all": _what_all_misses,
    "not": _what_not_leaves_out,
}
"""What the keys themselves say, and what is said of those that have matches in them."""

ON_MATCH: dict[str, Callable[[Node, Match], str]] = {
    "nth": _nth,
    "upstream_of": path_miss.upstream_of,
    "downstream_of": path_miss.downstream_of,
    "between": path_miss.between,
    "pattern": lambda node, match: "'pattern' does not hold",
}
"""Those that other keys of the match have a say in: what is counted, whether control edges are."""
