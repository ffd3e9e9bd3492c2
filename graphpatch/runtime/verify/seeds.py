"""The same random numbers in a graph and its patched copy.

A random op whose seeds are 0 draws from the seed of the graph and its own place in it, which is
another one after nodes were added. So every such op gets explicit seeds, by its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from graphpatch import opdefs
from graphpatch.analysis.rule_words import own_name
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph

SEEDS = ("seed", "seed2")
# They move on the state of a tf.random.Generator, which is a variable.
GENERATOR = frozenset({"NonDeterministicInts", "RngReadAndSkip", "RngSkip"})
OURS = "graphpatch_"  # what functions that a rule adds are called


@cache
def _is_random(op: str) -> bool:
    known = opdefs.lookup(op)
    return known is not None and set(SEEDS) <= {attr.name for attr in known.attrs}


def own_names(graph: Graph) -> dict[tuple[str, str], str]:
    """By body and name: what the ops that rules moved aside were called before."""
    return {
        (body.label, node.name): own_name(node)
        for body in graph.bodies
        for node in provenance.touched(body)
    }


def set_seeds(graph_def: Any, own: Mapping[tuple[str, str], str]) -> list[str]:
    """Give random ops of a GraphDef, and of its functions, seeds by name.

    An op that has seeds keeps them. One that a rule put into a function of its own has no name
    there: those share their type's. Returned are all ops that draw on from run to run: ops with
    seeds of any kind, and those that draw from a tf.random.Generator.
    """
    found = []
    for body, node in _nodes(graph_def):
        if node.op in GENERATOR:
            found.append(node.name)
        elif _is_random(node.op):
            found.append(node.name)
            if not any(node.attr[key].i for key in SEEDS):
                text = node.op if body.startswith(OURS) else own.get((body, node.name), node.name)
                node.attr[SEEDS[0]].i = 1 + (zlib.crc32(text.encode()) & 0x7FFFFFFE)
                node.attr[SEEDS[1]].i = 1
    return found


def _nodes(graph_def: Any) -> Iterator[tuple[str, Any]]:
    yield from (("main", node) for node in graph_def.node)
    for function in graph_def.library.function:
        yield from ((function.signature.name, node) for node in function.node_def)
