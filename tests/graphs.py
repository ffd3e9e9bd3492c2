"""Small graphs, built from protobuf messages without TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from graphpatch import opdefs
from graphpatch.formats import Model, load
from graphpatch.formats.model import GRAPH
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import ModelGraph, graph_pieces
from graphpatch.graph.node import Body
from graphpatch.graph.provenance import PROVENANCE_ATTR as PROVENANCE
from graphpatch.graph.record import Author
from graphpatch.graph.wire import Piece, Source, encoded, piece_bytes
from graphpatch.protos import (
    AttrValue,
    FunctionDef,
    GraphDef,
    MetaGraphDef,
    NodeDef,
    OpDef,
    TensorShapeProto,
)

FLOAT = DTYPE_NUMBERS["float32"]


def attr(value: Any) -> AttrValue:
    """An AttrValue: a dtype where the text names one, else what the Python type says."""
    if isinstance(value, AttrValue):
        return value
    if isinstance(value, list):
        values = AttrValue(list=AttrValue.ListValue())
        for item in map(attr, value):
            kind = item.WhichOneof("value")
            getattr(values.list, kind).append(getattr(item, kind))
        return values
    if isinstance(value, str) and value in DTYPE_NUMBERS:
        return AttrValue(type=DTYPE_NUMBERS[value])
    if isinstance(value, str | bytes):
        return AttrValue(s=value.encode() if isinstance(value, str) else value)
    return AttrValue(**{{bool: "b", int: "i", float: "f"}[type(value)]: value})


def sized(*sizes: int) -> AttrValue:
    """The attr `shape` of these sizes."""
    return AttrValue(shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=s) for s in sizes]))


def node(name: str, op: str, *inputs: str, device: str = "", **attrs: Any) -> NodeDef:
    """A NodeDef; dtypes that it must have and that are not given are float32 (None: left out)."""
    known = opdefs.lookup(op)
    needed = (
        [a.name for a in known.attrs if a.type == "type" and known.defaults[a.name] is None]
        if known
        else []
    )
    given = {**dict.fromkeys(needed, "float32"), **attrs}
    found = {key: attr(value) for key, value in given.items() if value is not None}
    return NodeDef(name=name, op=op, input=inputs, device=device, attr=found)


def const(name: str, size: int = 4, fill: bytes = b"\x01") -> NodeDef:
    """A Const whose tensor has `size` bytes."""
    found = node(name, "Const", dtype="float32")
    tensor = found.attr["value"].tensor
    tensor.dtype = FLOAT
    tensor.tensor_shape.dim.add(size=size // 4)
    tensor.tensor_content = (fill * size)[:size]
    return found


FIELDS = {"float32": "float_val", "float64": "double_val", "complex64": "scomplex_val"}
FIELDS |= {"float16": "half_val", "bfloat16": "half_val", "int64": "int64_val"}
FIELDS |= {"bool": "bool_val", "string": "string_val"}


def listed(name: str, *values: Any, dtype: str = "float32", shape: Sequence[int] = ()) -> NodeDef:
    """A Const that lists these elements, which may be too few."""
    found = node(name, "Const", dtype=dtype)
    tensor = found.attr["value"].tensor
    tensor.dtype = DTYPE_NUMBERS[dtype]
    tensor.tensor_shape.CopyFrom(sized(*shape).shape)
    getattr(tensor, FIELDS.get(dtype, "int_val")).extend(values)
    return found


def function(
    name: str, inputs: Sequence[str], nodes: Iterable[NodeDef], ret: Mapping[str, str]
) -> FunctionDef:
    """A function of float32 tensors; `ret` says which tensor each output is."""
    signature = OpDef(name=name)
    for one in inputs:
        signature.input_arg.add(name=one, type=FLOAT)
    for one in ret:
        signature.output_arg.add(name=one, type=FLOAT)
    return FunctionDef(signature=signature, node_def=nodes, ret=ret)


def v1_loop(reads: str, *inside: NodeDef, decides: str = "merge", gives: str) -> list[NodeDef]:
    """A v1 loop of one variable, which goes on while `decides` is finite, with ops in it."""
    context: dict[str, Any] = {"frame_name": "loop", "is_constant": False, "parallel_iterations": 1}
    return [
        node("enter", "Enter", reads, **context),
        node("merge", "Merge", "enter", "next", N=2),
        node("more", "IsFinite", decides),
        node("decide", "LoopCond", "more"),
        node("switch", "Switch", "merge", "decide"),
        *inside,
        node("next", "NextIteration", gives),
        node("exit", "Exit", "switch"),
    ]


def graphdef(
    *nodes: NodeDef, functions: Iterable[FunctionDef] = (), producer: int = 1087
) -> GraphDef:
    """A GraphDef of these nodes and functions."""
    graph = GraphDef(node=nodes)
    graph.versions.producer = producer
    graph.library.function.extend(functions)
    return graph


def sample() -> GraphDef:
    """`x * w -> relu -> tower/relu6 -> round -> f() -> out`, and an op that runs after it."""
    inner = function("f", ["a"], [node("relu", "Relu", "a")], {"b": "relu:activations:0"})
    return graphdef(
        node("x", "Placeholder"),
        const("w"),
        node("w/read", "Identity", "w", _class=[b"loc:@w"]),
        node("Multiply", "Mul", "x", "w/read"),
        node("relu", "Relu", "Multiply", device="/cpu:0"),
        node("tower/relu6", "Relu6", "relu"),
        node("round", "Round", "tower/relu6"),
        node("call", "f", "round"),
        node("out", "Identity", "call"),
        node("done", "NoOp", "^out"),
        functions=[inner],
    )


def metagraph(graph: GraphDef, *tags: str) -> MetaGraphDef:
    """A MetaGraphDef with collections, a signature, an Any and assets."""
    meta = MetaGraphDef(graph_def=graph)
    meta.meta_info_def.tags.extend(tags)
    meta.meta_info_def.any_info.type_url = "type.googleapis.com/some.Message"
    meta.meta_info_def.any_info.value = b"\x0a\x03abc"
    meta.collection_def["losses"].node_list.value.append("out:0")
    meta.collection_def["variables"].bytes_list.value.append(b"\x0a\x01w")
    packed = meta.collection_def["packed"].any_list.value.add()
    packed.type_url, packed.value = "type.googleapis.com/other.Message", b"\x08\x01"
    meta.signature_def["serve"].inputs["x"].name = "x:0"
    meta.signature_def["serve"].outputs["y"].name = "out:0"
    meta.asset_file_def.add(filename="words.txt").tensor_info.name = "words:0"
    meta.saver_def.save_tensor_name = "save/Const:0"
    return meta


def saved_model(*metas: MetaGraphDef) -> bytes:
    """A SavedModel message, of schema version 1."""
    return b"\x08\x01" + b"".join(
        encoded(2, meta.SerializeToString(deterministic=True)) for meta in metas
    )


def saved_model_folder(folder: Path, *metas: MetaGraphDef) -> Path:
    """A SavedModel folder with variables, assets and a fingerprint."""
    for below in ("variables", "assets", "assets.extra"):
        (folder / below).mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(saved_model(*metas))
    (folder / "fingerprint.pb").write_bytes(b"\x08\x2a")
    (folder / "variables" / "variables.index").write_bytes(bytes(range(256)))
    (folder / "variables" / "variables.data-00000-of-00001").write_bytes(b"\0\xff" * 70_000)
    (folder / "assets" / "words.txt").write_text("one\ntwo\n")
    (folder / "assets.extra" / "saved_model.pb").write_bytes(b"not the message")
    return folder


def patched_model(path: Path | str) -> Model:
    """The model with an attr `_a` set on `relu` of each graph."""
    model = load(path).copy()
    for graph in model.graphs:
        node = graph.main.node("relu")
        Editor(graph, Author("rule", "id")).set_attr(node, "_a", attr("x"))
    return model


def opened(message: GraphDef | bytes) -> ModelGraph:
    """The message as graphpatch opens it."""
    raw = message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)
    return ModelGraph.open(Source(raw), 0, len(raw))


def graph_of(*nodes: NodeDef, functions: Iterable[FunctionDef] = ()) -> ModelGraph:
    """A graph of these nodes."""
    return opened(graphdef(*nodes, functions=functions))


def main(*nodes: NodeDef, functions: Iterable[FunctionDef] = ()) -> Body:
    """The main body of a graph of these nodes."""
    return graph_of(*nodes, functions=functions).main


def in_memory(message: GraphDef | bytes) -> Model:
    """A model of the message, which no door has looked at."""
    graph = opened(message)
    return Model("in memory", graph.source, GRAPH, [graph])


def saved(
    folder: Path, *nodes: NodeDef, functions: Iterable[FunctionDef] = (), name: str = "model.pb"
) -> Path:
    """A file of a graph of these nodes."""
    path = folder / name
    path.write_bytes(graphdef(*nodes, functions=functions).SerializeToString())
    return path


def joined(pieces: Iterable[Piece]) -> bytes:
    """The bytes that pieces stand for."""
    return b"".join(map(piece_bytes, pieces))


def written(graph: ModelGraph) -> bytes:
    """The bytes of the GraphDef as it would be written."""
    return joined(graph_pieces(graph))


def parsed(graph: ModelGraph) -> GraphDef:
    """The GraphDef as it would be written, parsed by protobuf."""
    return GraphDef.FromString(written(graph))


def unsigned(graph: ModelGraph) -> GraphDef:
    """The GraphDef as it would be written, whoever patched it."""
    found = parsed(graph)
    for node in [*found.node, *(node for one in found.library.function for node in one.node_def)]:
        node.attr.pop(PROVENANCE, None)
    return found


def steps(work: Callable[[], object]) -> int:
    """Count the lines and calls that some work takes: what a machine does not change."""
    count = 0

    def traced(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return traced

    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
