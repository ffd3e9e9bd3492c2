"""What rules of a patched model are called where several have one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from graphpatch.graph.edits import Author
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import all_entries

SHORT_ID = 8  # digits of an id that are shown, where these tell rules apart


def carried_rules(graphs: Iterable[Graph]) -> list[Author]:
    """The rules that graphs carry, each once, as they come on the ops."""
    found = dict.fromkeys((edit.rule, edit.id) for graph in graphs for edit in all_entries(graph))
    return [Author(*one) for one in found]


def rule_labels(graphs: Iterable[Graph]) -> dict[Author, str]:
    """Each rule that graphs carry by its name, with its id where several have that name."""
    rules = carried_rules(graphs)
    names = Counter(one.rule for one in rules)
    short = Counter((one.rule, one.id[:SHORT_ID]) for one in rules)

    def label(one: Author) -> str:
        if names[one.rule] == 1:
            return one.rule
        is_told_apart = short[one.rule, one.id[:SHORT_ID]] == 1
        return f"{one.rule} ({one.id[:SHORT_ID] if is_told_apart else one.id})"

    return {one: label(one) for one in rules}
