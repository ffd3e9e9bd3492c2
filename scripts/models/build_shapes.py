"""Write GraphDefs of odd shapes: what is linear in a chain may not be so in these.

Usage: build_shapes.py OUT.pb SHAPE [--nodes 10000], with a SHAPE of
- line: a chain of Tanhs, and a Relu at its end
- wide: one tensor is read by all other ops
- deep: a chain of ops below ever more scopes, up to fifty
- functions: a tenth as many functions as nodes, each called once, each with a Relu
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build_large import FLOAT, node

from graphpatch.protos import GraphDef

DEEPEST = 50
IN_FUNCTION = 8  # ops of a function


def line(graph: Any, count: int) -> None:
    """Build a line of Tanhs that ends in a Relu."""
    last = "x"
    for place in range(count - 1):
        op = "Tanh" if place < count - 2 else "Relu"
        graph.node.append(node(f"{op.lower()}_{place}", op, [last]))
        last = graph.node[-1].name


def wide(graph: Any, count: int) -> None:
    """`count` Relus that read one tensor."""
    for place in range(count - 1):
        graph.node.append(node(f"reader_{place}", "Relu", ["x"]))


def deep(graph: Any, count: int) -> None:
    """Build a chain of Relu and Tanh, each below some scopes."""
    last = "x"
    for place in range(count - 1):
        scopes = "/".join(f"scope_{level}" for level in range(place % DEEPEST + 1))
        op = "Relu" if place % 2 else "Tanh"
        graph.node.append(node(f"{scopes}/{op.lower()}_{place}", op, [last]))
        last = graph.node[-1].name


def functions(graph: Any, count: int) -> None:
    """Functions of a chain of ops each; the main graph calls one on the result of the other."""
    last = "x"
    for place in range(count // (IN_FUNCTION + 1)):
        made = graph.library.function.add()
        made.signature.name = f"function_{place}"
        made.signature.input_arg.add(name="given", type=FLOAT)
        made.signature.output_arg.add(name="result", type=FLOAT)
        inner, given = "", "given"
        for at in range(IN_FUNCTION):
            op = "Relu" if at == 3 else "Tanh"
            inner = f"op_{at}"
            made.node_def.append(node(inner, op, [given]))
            given = f"{inner}:{'activations' if op == 'Relu' else 'y'}:0"
        made.ret["result"] = given
        call = graph.node.add(name=f"call_{place}", op="StatefulPartitionedCall", input=[last])
        call.attr["Tin"].list.type.append(FLOAT)
        call.attr["Tout"].list.type.append(FLOAT)
        call.attr["f"].func.name = made.signature.name
        last = call.name


SHAPES: dict[str, Callable[[Any, int], None]] = {
    "line": line,
    "wide": wide,
    "deep": deep,
    "functions": functions,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--nodes", type=int, default=10_000)
    options = parser.parse_args()
    graph = GraphDef()
    graph.versions.producer = 27
    graph.node.append(node("x", "Placeholder", (), "dtype"))
    SHAPES[options.shape](graph, options.nodes)
    options.output.write_bytes(graph.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
