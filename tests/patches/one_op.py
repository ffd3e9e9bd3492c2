"""One rule on a small graph."""

from __future__ import annotations

from typing import Any

import graphpatch
from graphpatch.graph.node import Body
from tests.graphs import graphdef


def applied(rule: Any, *nodes: Any, functions: Any = ()) -> graphpatch.Result:
    """The graph of these nodes with a rule."""
    return graphpatch.apply([rule], graphdef(*nodes, functions=functions))


def patched(patch: Any, op: str, *nodes: Any, functions: Any = ()) -> graphpatch.Result:
    """The graph of these nodes, patched at ops of this type."""
    return applied({"match": {"op": op}, "patch": patch}, *nodes, functions=functions)


def patched_match(pattern: str, patch: Any, *nodes: Any) -> graphpatch.Result:
    """The graph of these nodes, patched at a pattern as one op."""
    return applied({"match": {"pattern": pattern}, "patch": {**patch, "on": "match"}}, *nodes)


def main_of(result: graphpatch.Result) -> Body:
    """The main graph of what was patched."""
    return result.model.graphs[0].main
