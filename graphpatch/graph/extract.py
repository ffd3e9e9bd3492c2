"""A part of the main graph as a graph of its own, some of its tensors fed from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch import names
from graphpatch.graph import nodedef
from graphpatch.graph.as_function import Part
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.body import Node
from graphpatch.graph.colocation import located, without_absent
from graphpatch.graph.edit import OUTPUT_SHAPES
from graphpatch.graph.emit import library_pieces
from graphpatch.graph.graph import VERSIONS
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.op_types import PLACEHOLDER
from graphpatch.graph.wire import Piece, Span, enclosed

# Hints that tf.gradients of TensorFlow 2 gives to products of matrices, and 1.15 does not know.
HINTS = ("grad_a", "grad_b", "grad_x", "grad_y")

StaticShape = Sequence[int | None] | None  # None: not known


@dataclass(frozen=True, slots=True)
class Fed:
    """A tensor that a part is given: what stands for it is a Placeholder."""

    tensor: str
    dtype: str
    shape: StaticShape


@dataclass(frozen=True, eq=False)
class Extract:
    """The ops from which `results` are computed, where the tensors `fed` are given.

    A placeholder has the name of the op that gave its tensor, so that the tensor's name stays,
    unless that op is in the part for another of its tensors.
    """

    graph: ModelGraph
    fed: tuple[Fed, ...]
    results: tuple[str, ...]

    @cached_property
    def part(self) -> Part:
        """The ops, each fed tensor cut off."""
        given = {str(names.parse(one.tensor)): one.tensor for one in self.fed}
        return Part(self.graph.main, given, self.results)

    def placeholders(self) -> dict[str, str]:
        """The placeholder that stands for each fed tensor: its name."""
        taken = {Node(self.graph.main, index).name for index in self.part.indices}
        found = {}
        for one in self.fed:
            tensor = names.parse(one.tensor)
            base = tensor.op if not tensor.index else f"{tensor.op}_{tensor.index}"
            found[one.tensor] = names.fresh(base, taken)
            taken.add(found[one.tensor])
        return found

    def pieces(self) -> list[Piece]:
        """The GraphDef, with all functions of the graph and their gradients.

        Shapes that TensorFlow noted are left out: they may be stale.
        """
        graph, placeholders = self.graph, self.placeholders()
        out: list[Piece] = []
        for one in self.fed:
            out += enclosed(1, _placeholder(placeholders[one.tensor], one))
        for payload in self._payloads(placeholders):
            out += enclosed(1, payload)
        for other in graph.others:
            if other.holds(VERSIONS):
                out.append(Span(graph.source, other.start, other.end))
        return [*out, *library_pieces(graph)]

    def _payloads(self, placeholders: Mapping[str, str]) -> Iterator[nodedef.Payload]:
        body, indices = self.graph.main, self.part.indices
        inside = {Node(body, index).name for index in indices} | set(placeholders.values())
        places = set(map(located, inside))
        given = {str(names.parse(tensor)): name for tensor, name in placeholders.items()}
        for node in (Node(body, index) for index in indices):
            texts = [
                given.get(str(names.parse(text)), text)
                for text in node.inputs
                if not text.startswith("^") or names.op_of(text) in inside
            ]
            payload = body.payload(node.index)
            for key in (OUTPUT_SHAPES, *(HINTS if "MatMul" in node.op else ())):
                payload = nodedef.with_attr(payload, key, None)
            if texts != list(node.inputs):
                payload = nodedef.with_inputs(payload, texts)
            yield without_absent(payload, places)


def _placeholder(name: str, fed: Fed) -> nodedef.Payload:
    shape = TensorShapeProto(unknown_rank=fed.shape is None)
    for size in fed.shape or ():
        shape.dim.add(size=-1 if size is None else size)
    values = {"dtype": AttrValue(type=DTYPE_NUMBERS[fed.dtype]), "shape": AttrValue(shape=shape)}
    attrs = {key: value.SerializeToString(deterministic=True) for key, value in values.items()}
    return nodedef.encode(name, PLACEHOLDER, [], "", attrs)
