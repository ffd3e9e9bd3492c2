"""A rule that goes to all ops of a type, on a small graph."""

from __future__ import annotations

from typing import Any

import graphpatch
from graphpatch.graph.body import Body
from tests.graphs import graphdef


def patched(patch: Any, op: str, *nodes: Any, functions: Any = ()) -> graphpatch.Result:
    """The graph of these nodes, patched at ops of this type."""
    rule = {"match": {"op": op}, "patch": patch}
    return graphpatch.apply([rule], graphdef(*nodes, functions=functions))


def main_of(result: graphpatch.Result) -> Body:
    """The main graph of what was patched."""
    return result.model.graphs[0].main
