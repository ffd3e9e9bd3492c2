"""Random bodies, small enough for the reference: a main graph, a function, a graph with a loop."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from graphpatch.graph.node import Body
from graphpatch.match.binding import Binding
from graphpatch.match.matcher import Finder
from graphpatch.match.spec import Pattern
from graphpatch.match.syntax import forms
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import function, graphdef, node

# Op types: the least and most inputs that an op of each gets, and how functions spell its outputs.
TYPES: dict[str, tuple[int, int, list[str]]] = {
    "Const": (0, 0, ["output:0"]),
    "Relu": (1, 1, ["activations:0"]),
    "Identity": (1, 1, ["output:0"]),
    "Mul": (2, 2, ["z:0"]),
    "AddN": (1, 4, ["sum:0"]),
    "Unpack": (1, 1, ["output:0", "output:1"]),
}


@st.composite
def bodies(draw: st.DrawFn, loops: bool = False) -> Body:
    """A main graph, or the same ops in a function, whose argument `x` they read; or in a loop."""
    place = draw(st.sampled_from(["main", "function", *(["loop"] if loops else [])]))
    tensors = {"main": [], "function": ["x"], "loop": ["switch:1"]}[place]
    nodes: list[NodeDef] = []
    for index in range(draw(st.integers(3, 9))):
        near = tensors[-5:]
        legal = [op for op, (least, _, _) in TYPES.items() if (near if least else place != "loop")]
        op = draw(st.sampled_from(legal))
        least, most, outputs = TYPES[op]
        inputs = draw(st.lists(st.sampled_from(near or [""]), min_size=least, max_size=most))
        attrs: dict[str, Any] = {"AddN": {"N": len(inputs)}, "Unpack": {"num": 2}}.get(op, {})
        if nodes and draw(st.integers(0, 5)) == 0:
            inputs.append(f"^{draw(st.sampled_from(nodes)).name}")
        nodes.append(node(f"n{index}", op, *inputs, **attrs))
        for number, output in enumerate(outputs):
            text = f"n{index}:{number}" if number else f"n{index}"
            tensors.append(f"n{index}:{output}" if place == "function" else text)
    if place == "function":
        called = function("f", ["x"], nodes, {"y": tensors[-1]})
        return graphs.opened(graphdef(functions=[called])).functions["f"]
    if place == "loop":
        constant = node("c", "Const")
        nodes = [constant, *graphs.v1_loop("c", *nodes, gives=draw(st.sampled_from(tensors)))]
    return graphs.main(*nodes)


# What a pattern matches in a small body, as names.


def bindings(body: Body, pattern: Any) -> list[Binding]:
    """The matches of a pattern, given as its text or as its JSON form."""
    read = pattern if isinstance(pattern, str) else msgspec.convert(pattern, Pattern)
    return [found for form in forms(read) for found in Finder(form).matches(body)]


def found(body: Body, pattern: Any) -> list[str]:
    """Of each match the names of its ops, in the pattern's order; those of a run in brackets."""
    return [_words(binding) for binding in bindings(body, pattern)]


def _words(binding: Binding) -> str:
    names = binding.body.heads.names
    runs = [[names[index] for index in indices] for indices in binding.bound]
    return " ".join(one[0] if len(one) == 1 else f"({' '.join(one)})" for one in runs)


def body(*nodes: NodeDef, inputs: str = "") -> Body:
    """A main graph; with `inputs`, the body of a function that has these arguments instead."""
    if not inputs:
        return graphs.main(*nodes)
    function = graphs.function("f", inputs.split(), nodes, {})
    return graphs.opened(graphs.graphdef(functions=[function])).functions["f"]
