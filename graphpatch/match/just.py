"""The match that means just these ops, as a rules file writes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphpatch.graph.body import Node


def just(nodes: Iterable[Node]) -> dict[str, Any]:
    """A match by body and name; each op once, in their order."""
    by_body: dict[str, dict[str, None]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, {})[node.name] = None
    places = [
        {"body": body, "name": next(iter(names)) if len(names) == 1 else list(names)}
        for body, names in by_body.items()
    ]
    return places[0] if len(places) == 1 else {"any": places}
