"""A graph written as a TF2 SavedModel: one function, from tensors named to tensors named."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensorboard.compat.proto.op_def_pb2 import OpDef
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch import names
from graphpatch.control_flow.op_types import ENTERS, NEXTS
from graphpatch.errors import OutputError, did_you_mean
from graphpatch.formats.target import Export
from graphpatch.graph import provenance
from graphpatch.graph.as_function import Part
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import OUTPUT_SHAPES
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.op_types import FED, PLACEHOLDERS
from graphpatch.table import short

# Before this version of GraphDef, a placeholder's shape () meant that it is not known.
SHAPES_ARE_MEANT = 24

# Ops with a handle that lives as long as one call: they need no value from outside.
OF_A_CALL = ("TensorArray", "Stack")
LOOP_OPS = ENTERS | NEXTS


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A tensor that goes in or out: its name in the graph and in the signature, and what it is."""

    tensor: str
    argument: OpDef.ArgDef
    shape: TensorShapeProto


@dataclass(frozen=True, eq=False)
class ExportedGraph:
    """The function that a graph becomes."""

    graph: ModelGraph
    inputs: tuple[ExportedTensor, ...]
    outputs: tuple[ExportedTensor, ...]
    part: Part


def exported(graph: ModelGraph, export: Export) -> ExportedGraph:
    """The function from the inputs to the outputs.

    Raises OutputError where a name is not that of a tensor, an output needs a placeholder that is
    no input, or the graph holds what a function cannot: variables, tables, v1 loops.
    """
    given = [_checked_tensor(graph.main, text) for text in export.inputs]
    asked = [_checked_tensor(graph.main, text) for text in export.outputs]
    twice = [text for text in {*given, *asked} if given.count(text) + asked.count(text) > 1]
    if twice:
        raise OutputError(f"{twice[0]} is named twice among the inputs and outputs")
    part = Part(graph.main, {text: text for text in given}, tuple(asked))
    _check_fed(part)
    taken = {Node(graph.main, index).name for index in part.indices}
    inputs, outputs = (
        _sorted_by_argument(_named_arguments(graph, given, taken)),
        _sorted_by_argument(_named_arguments(graph, asked, set())),
    )
    part = part.naming({one.tensor: one.argument.name for one in inputs})
    return ExportedGraph(graph, inputs, outputs, part)


def _sorted_by_argument(tensors: Iterable[ExportedTensor]) -> tuple[ExportedTensor, ...]:
    """As TensorFlow goes through a dict: arguments by name, not in the order of the user."""
    return tuple(sorted(tensors, key=lambda one: one.argument.name))


def export_notes(found: ExportedGraph) -> list[str]:
    """What whoever exports a graph should know: what is left out, or goes by another name."""
    said = []
    if left := _unneeded_ops(found):
        some = short([str(node) for node in left], 1)
        said.append(f"{some}: patched, but the outputs do not need it: it is left out")
    read = {str(names.parse(text)) for text in found.part.read()}
    said += [
        f"input {one.tensor}: no output depends on it"
        for one in found.inputs
        if one.tensor not in read
    ]
    tensors = (*found.inputs, *found.outputs)
    renamed = [one for one in tensors if one.tensor != one.argument.name]
    said += [f"{one.tensor} is {one.argument.name!r} in the signature" for one in renamed]
    return said


def _unneeded_ops(found: ExportedGraph) -> list[Node]:
    """The ops that rules touched, and that the outputs do not need."""
    there = set(found.part.indices)
    return [node for node in provenance.touched(found.graph.main) if node.index not in there]


def _checked_tensor(body: Body, text: str) -> str:
    """One spelling of a tensor: `x` for `x:0`."""
    if not re.fullmatch(r"[^:^]+(:\d+)?", text):
        raise OutputError(f"{text!r} is not the name of a tensor: that is an op's, or op:1")
    tensor = names.parse(text)
    if tensor.op not in body.by_name:
        fed = [node.name for node in body if node.op in PLACEHOLDERS]
        near = did_you_mean(tensor.op, body.heads.names)
        listed = f"; the placeholders are: {', '.join(fed[:8])}" if fed else ""
        raise OutputError(f"there is no tensor {text}{near or listed}")
    flat = body.node(tensor.op).outputs
    if flat is None or tensor.index >= len(flat):
        count = "of an unknown op type" if flat is None else f"with {len(flat)} outputs"
        raise OutputError(f"there is no tensor {text}: {tensor.op!r} is an op {count}")
    return str(tensor)


def _check_fed(part: Part) -> None:
    unfed = [node.name for node in part.unfed()]
    if unfed:
        raise OutputError(
            f"the outputs need what is not among the inputs: placeholder {', '.join(unfed)}"
        )
    for node in (Node(part.body, index) for index in part.indices):
        if node.opdef is None:
            raise OutputError(f"{node}: an op type that neither TensorFlow nor the model defines")
        if node.op in LOOP_OPS:
            raise OutputError(
                f"{node} belongs to a v1 loop, through which no tape gives a gradient; as a .pb "
                f"the graph has one in a Session"
            )
        if _is_held(node):
            raise OutputError(
                f"{node} is a variable or table, whose value is not in the graph: freeze the graph "
                f"first, so that variables become constants"
            )


def _is_held(node: Node) -> bool:
    """Whether an op stands for what is kept from one run to the next."""
    if node.opdef is None or not node.opdef.stateful or node.op.startswith(OF_A_CALL):
        return False
    return any(arg.is_ref or arg.dtype == "resource" for arg in node.outputs or ())


def _named_arguments(
    graph: ModelGraph, tensors: Sequence[str], taken: set[str]
) -> Iterator[ExportedTensor]:
    """Each tensor under a name that Python takes as that of an argument."""
    for text in tensors:
        tensor = names.parse(text)
        node = graph.main.node(tensor.op)
        word = re.sub(r"\W", "_", text)
        legal = word[:1].isalpha() and not keyword.iskeyword(word)
        name = names.fresh(word if legal else f"t_{word}", taken)
        taken.add(name)
        dtype = (node.outputs or [])[tensor.index].dtype
        if dtype is None:
            raise OutputError(f"{text}: the graph does not tell its dtype")
        argument = OpDef.ArgDef(name=name, type=DTYPE_NUMBERS[dtype])
        yield ExportedTensor(text, argument, _shape_told(graph, node, tensor.index))


def _shape_told(graph: ModelGraph, node: Node, output: int) -> TensorShapeProto:
    """The shape that the graph tells of an output: of a placeholder, or noted by TensorFlow."""
    noted = node.attr(OUTPUT_SHAPES)
    if noted is not None and output < len(noted.list.shape):
        return noted.list.shape[output]
    declared = node.attr("shape") if node.op in FED else None
    shape = TensorShapeProto(unknown_rank=True) if declared is None else declared.shape
    unclear = not shape.dim and graph.library.producer < SHAPES_ARE_MEANT
    return TensorShapeProto(unknown_rank=True) if unclear else shape
