"""Write a valid GraphDef of very many small nodes, block by block, without TensorFlow.

Usage: build_large.py OUT.pb [--nodes 1000000] [--chain] [--shapes]. One residual tower: each block
is a 1x1 convolution, bias, scale and shift, an activation (Relu; every eighth block Tanh) and the
sum with its input, its weights read through Identity nodes colocated with them, as TensorFlow 1
freezes them. With `--chain`, a chain of Mul, Add and Relu, of which every third op is a Relu;
`--shapes` writes `_output_shapes` on each, as graphs have that TensorFlow 1 exported.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graphpatch.protos import GraphDef, NodeDef

FLOAT = 1  # DT_FLOAT
# Names of blocks are of one length, so that a serialized block becomes another by replacing bytes.
PREVIOUS, THIS = "tower/block0000000", "tower/block0000001"


def node(name: str, op: str, inputs: Sequence[str] = (), *types: str) -> Any:
    """Return a NodeDef whose attrs named in `types` are float32."""
    made = NodeDef(name=name, op=op, input=inputs)
    for attr in types or ("T",):
        made.attr[attr].type = FLOAT
    return made


def placeholder(name: str) -> Any:
    made = node(name, "Placeholder", (), "dtype")
    for size in (-1, 1, 1, 1):
        made.attr["shape"].shape.dim.add(size=size)
    return made


def variable(name: str, shape: Sequence[int], value: float) -> Iterator[Any]:
    """Yield a frozen variable: the Const and the Identity that reads it."""
    const = node(name, "Const", (), "dtype")
    tensor = const.attr["value"].tensor
    tensor.dtype = FLOAT
    tensor.float_val.append(value)
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    yield const
    read = node(f"{name}/read", "Identity", [name])
    read.attr["_class"].list.s.append(f"loc:@{name}".encode())
    yield read


def convolution(name: str, inputs: Sequence[str]) -> Any:
    made = node(name, "Conv2D", inputs)
    made.attr["strides"].list.i.extend([1, 1, 1, 1])
    made.attr["dilations"].list.i.extend([1, 1, 1, 1])
    made.attr["padding"].s = b"SAME"
    made.attr["data_format"].s = b"NHWC"
    made.attr["use_cudnn_on_gpu"].b = True
    return made


def block(activation: str) -> Iterator[Any]:
    """Yield the nodes of one block in topological order; reads PREVIOUS/add, ends in THIS/add."""
    parts = {name: f"{THIS}/{name}" for name in ("conv", "norm", activation.lower(), "add")}
    conv, norm, act, add = parts.values()
    yield from variable(f"{conv}/weights", [1, 1, 1, 1], 0.5)
    yield convolution(f"{conv}/Conv2D", [f"{PREVIOUS}/add", f"{conv}/weights/read"])
    yield from variable(f"{conv}/biases", [1], 0.1)
    yield node(f"{conv}/BiasAdd", "BiasAdd", [f"{conv}/Conv2D", f"{conv}/biases/read"])
    yield from variable(f"{norm}/gamma", [1], 0.9)
    yield node(f"{norm}/mul", "Mul", [f"{conv}/BiasAdd", f"{norm}/gamma/read"])
    yield from variable(f"{norm}/beta", [1], 0.01)
    yield node(f"{norm}/add", "AddV2", [f"{norm}/mul", f"{norm}/beta/read"])
    yield node(act, activation, [f"{norm}/add"])
    yield node(add, "AddV2", [f"{PREVIOUS}/add", act])


def serialized(nodes: Sequence[Any]) -> bytes:
    graph: bytes = GraphDef(node=nodes).SerializeToString(deterministic=True)
    return graph


def link(name: str, op: str, inputs: Sequence[str], shapes: bool) -> Any:
    """Return an op of the chain."""
    made = node(name, op, inputs)
    if shapes:
        shape = made.attr["_output_shapes"].list.shape.add()
        shape.dim.add(size=-1)
        shape.dim.add(size=8)
    return made


def chain(count: int, shapes: bool) -> Iterator[bytes]:
    """GraphDefs that, one after the other, are a chain of `count` nodes."""
    yield serialized([node("x", "Placeholder", (), "dtype"), next(variable("c", (), 0.5))])
    last = "x"
    for place in range(count - 2):
        op = ("Mul", "Add", "Relu")[place % 3]
        name = f"layer_{place // 3}/{op.lower()}"
        yield serialized([link(name, op, [last] if op == "Relu" else [last, "c"], shapes)])
        last = name
    versions = GraphDef()
    versions.versions.producer = 27
    yield versions.SerializeToString()


def pieces(count: int) -> Iterator[bytes]:
    """GraphDefs that, one after the other, are a GraphDef of `count` nodes."""
    yield serialized([placeholder(f"{PREVIOUS}/add")])
    relu, tanh = list(block("Relu")), list(block("Tanh"))
    templates = serialized(relu), serialized(tanh)
    whole, rest = divmod(count - 1, len(relu))
    for index in range(1, whole + 1):
        yield numbered(templates[index % 8 == 0], index)
    yield numbered(serialized(relu[:rest]), whole + 1)
    versions = GraphDef()
    versions.versions.producer = 27
    yield versions.SerializeToString()


def numbered(template: bytes, index: int) -> bytes:
    """Return the block that `template` is for index 1 at another index; lengths stay the same."""
    marked = template.replace(THIS.encode(), b"tower/block%07d" % index)
    return marked.replace(PREVIOUS.encode(), b"tower/block%07d" % (index - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--chain", action="store_true", help="every third op is a Relu")
    parser.add_argument("--shapes", action="store_true", help="_output_shapes on each op of it")
    options = parser.parse_args()
    made = chain(options.nodes, options.shapes) if options.chain else pieces(options.nodes)
    with options.output.open("wb") as file:
        file.writelines(made)


if __name__ == "__main__":
    main()
