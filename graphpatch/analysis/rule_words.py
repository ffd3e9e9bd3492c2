"""Which rules are at which ops of a graph, and what they do in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import in_model
from graphpatch.graph.record import Author, labels
from graphpatch.names import OpKey


def rules_at(
    graph: Graph, names: Mapping[Author, str] | None = None
) -> dict[OpKey, dict[str, str]]:
    """For each op that a rule was at: the rules, in their order, and what each does in words.

    `names` is what rules are called, where this is not the only graph that is told of.
    """
    patches, rules = provenance.patches(graph), graph.library.rules
    names = labels(rules) if names is None else names
    words = [(names[rule], patch_in_words(patches.get(rule.id))) for rule in rules]
    places_by_op: dict[OpKey, tuple[int, ...]] = {}
    for body in graph.bodies:
        for index, record in body.touched().items():
            if record.is_added:
                op, places = record.patched, record.rules[:1]
            else:
                op, places = in_model(Node(body, index)).name if record.keys else "", record.keys
            if op:
                before = places_by_op.setdefault((body.label, op), places)
                if before != places:
                    places_by_op[body.label, op] = tuple({*before, *places})
    # A place beyond the words is of a rule whose record is gone.
    rules_of = {
        places: dict(words[place] for place in sorted(places) if place < len(words))
        for places in set(places_by_op.values())
    }
    return {op: rules_of[places] for op, places in places_by_op.items() if rules_of[places]}


def ops_before_rules(body: Body) -> list[str]:
    """Return the ops of the model that the ops read which rules added to a body."""
    added = (node for node in provenance.touched(body) if provenance.is_added(node))
    read = (body.producer(text) for node in added for text in node.data_inputs)
    return list(dict.fromkeys(in_model(node).name for node in read if node is not None))


def patch_in_words(patch: Mapping[str, Any] | None) -> str:
    """Return a patch in words: `guided_relu`, `filter_gradient clip(min=-1, max=1) at inputs`."""
    from graphpatch.rules import OPTIONS  # here: it imports all kinds of patches

    beside = (*OPTIONS, "on")  # the keys of a patch that are no kind
    kind = next((key for key in patch or () if key not in beside), None)
    if not patch or kind is None:
        return "changed"
    words = _in_text(patch[kind])
    words = words if kind == "override_gradient" else f"{kind} {words}".rstrip()
    return words + "".join(f" {key} {_in_text(patch[key])}" for key in beside if key in patch)


def _in_text(value: Any) -> str:
    if value is True or isinstance(value, str):
        return "" if value is True else value
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, content),) = value.items()
        if not isinstance(content, Mapping):
            return f"{name} {_in_text(content)}"
        return f"{name}({', '.join(f'{key}={_in_text(item)}' for key, item in content.items())})"
    return json.dumps(value)
