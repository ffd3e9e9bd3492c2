"""Match a chain of op types as one would without graphpatch's index: networkx_alone.py MODEL TEXT.

The whole main graph becomes a DiGraph, and VF2 looks over all of it.
"""

from __future__ import annotations

import sys
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher

import graphpatch


def count_matches(path: str, text: str) -> int:
    """Return how many matches of a chain, such as `Mul -> * -> Relu`, a model has."""
    body = graphpatch.load(path).graphs[0].main
    whole: Any = nx.DiGraph()
    whole.add_nodes_from((node.name, {"op": node.op}) for node in body)
    for node in body:
        producers = map(body.producer, node.data_inputs)
        whole.add_edges_from((producer.name, node.name) for producer in producers if producer)
    types = text.split(" -> ")
    pattern: Any = nx.DiGraph()
    pattern.add_nodes_from((place, {"op": op}) for place, op in enumerate(types))
    nx.add_path(pattern, range(len(types)))
    matcher: Any = DiGraphMatcher(whole, pattern, lambda a, b: b["op"] in ("*", a["op"]))
    return sum(1 for _ in matcher.subgraph_monomorphisms_iter())


if __name__ == "__main__":
    print(f"matched: {count_matches(*sys.argv[1:])} ops")
