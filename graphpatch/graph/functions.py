"""Functions: who calls which, and parts of the main graph as a function or as a graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch import names, opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.attrs import DTYPE_NUMBERS, OUTPUT_SHAPES
from graphpatch.graph.graph import VERSIONS, ModelGraph, library_pieces
from graphpatch.graph.node import (
    COLOCATION,
    Body,
    Node,
    Payload,
    attr_span,
    attr_value,
    with_attr,
    with_inputs,
)
from graphpatch.graph.op_types import PLACEHOLDER, PLACEHOLDERS
from graphpatch.graph.wire import Piece, Span, enclosed, message

ATTR = 5  # in FunctionDef
NO_INLINE = "_noinline"  # the attr of a FunctionDef that keeps it from being inlined


def calls(body: Body) -> Iterator[tuple[Node, str]]:
    """The ops of a body that call functions, and which function each calls."""
    functions = body.library.signatures
    for op, indices in body.by_type.items():
        keys = _function_attrs(op)
        for index in indices if keys or op in functions else ():
            node = Node(body, index)
            yield from ((node, name) for name in called_functions(node, keys))


def called_by_op(body: Body) -> dict[int, list[str]]:
    """The functions that each op calls, by the op's index."""
    found: dict[int, list[str]] = {}
    for caller, callee in calls(body):
        found.setdefault(caller.index, []).append(callee)
    return found


def called_functions(node: Node, keys: Sequence[str] | None = None) -> Iterator[str]:
    """The functions that an op calls; `keys` are the attrs of its op type that name functions."""
    if node.op in node.body.library.signatures:
        yield node.op
    for key in _function_attrs(node.op) if keys is None else keys:
        yield from named_by(node, key)


def _function_attrs(op: str) -> list[str]:
    known = opdefs.lookup(op)
    attrs = () if known is None else known.attrs
    return [attr.name for attr in attrs if attr.type in {"func", "list(func)"}]


def named_by(node: Node, key: str) -> list[str]:
    """The functions that an attr of an op names."""
    value = node.attr(key)
    if value is None:
        return []
    return [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]


def may_be_inlined(function: Body) -> bool:
    """Whether a FunctionDef lets its calls be inlined."""
    source, entries = function.source, (part for part in function.others if part.holds(ATTR))
    found = (message(FunctionDef.AttrEntry, source.data[one.value : one.end]) for one in entries)
    return not any(one.key == NO_INLINE and one.value.b for one in found)


LOC = b"loc:@"


def located(name: str) -> bytes:
    """How the attr names an op."""
    return LOC + name.encode()


def without_absent(payload: Payload, inside: Container[bytes]) -> Payload:
    """The NodeDef without colocation with ops that are not `inside`, where they are `located`."""
    span = attr_span(payload, COLOCATION)
    if span is None:
        return payload
    value = attr_value(span)
    kept = [text for text in value.list.s if text in inside or not text.startswith(LOC)]
    if len(kept) == len(value.list.s):
        return payload
    value.list.s[:] = kept
    raw = value.SerializeToString(deterministic=True) if kept else None
    return with_attr(payload, COLOCATION, raw)


@dataclass(frozen=True, eq=False)
class Part:
    """The ops of a main graph that `results` are computed from, as a function would hold them.

    `arguments` has for each tensor that is cut (`x`, `split:1`) the argument that stands for it.
    """

    body: Body
    arguments: Mapping[str, str]
    results: tuple[str, ...]

    @cached_property
    def indices(self) -> list[int]:
        """The ops, in the order of the file; ModelError where a name is not one of an op."""
        found: set[int] = set()
        waiting = [self._op(text) for text in self.results if not self._argument(text)]
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting.extend(self._read(Node(self.body, index)))
        return sorted(found)

    def naming(self, arguments: Mapping[str, str]) -> Part:
        """The same ops, the arguments that stand for what is cut by other names."""
        part = replace(self, arguments=arguments)
        vars(part)["indices"] = self.indices
        return part

    def unfed(self) -> Iterator[Node]:
        """The placeholders among them: nothing feeds them inside a function."""
        return (node for node in map(self._node, self.indices) if node.op in PLACEHOLDERS)

    def read(self) -> set[str]:
        """All that the ops read, and the results."""
        inputs = (text for index in self.indices for text in self._node(index).data_inputs)
        return {*self.results, *inputs}

    def payloads(self) -> Iterator[Payload]:
        """The NodeDefs, their inputs spelled as in a function, without stale shapes."""
        inside = {self._node(index).name for index in self.indices}
        places = set(map(located, inside))
        for node in map(self._node, self.indices):
            spelled = [self._spelled(text, inside) for text in node.inputs]
            payload = with_attr(self.body.payload(node.index), OUTPUT_SHAPES, None)
            payload = without_absent(payload, places)
            yield with_inputs(payload, [text for text in spelled if text])

    def spelled(self, tensor: str) -> str:
        """How the function spells a tensor of the main graph."""
        argument = self._argument(tensor)
        if argument:
            return argument
        name = names.parse(tensor)
        flat = self.body.node(name.op).outputs
        if flat is None or name.index >= len(flat):
            count = "not known" if flat is None else len(flat)
            raise ModelError(f"there is no {tensor}: the outputs of {name.op!r} are {count}")
        return f"{name.op}:{flat[name.index].name}:{flat[name.index].index}"

    def _spelled(self, text: str, inside: set[str]) -> str:
        """An input; nothing for a control input on an op that was cut off."""
        if not text.startswith("^"):
            return self.spelled(text)
        return text if names.op_of(text) in inside else ""

    def _read(self, node: Node) -> Iterable[int]:
        """The ops that this one reads, or waits for, unless an argument stands for them."""
        return [self._op(text) for text in node.inputs if not self._argument(text)]

    def _argument(self, text: str) -> str:
        tensor = names.parse(text)
        return self.arguments.get(tensor.op if tensor.control else str(tensor), "")

    def _op(self, text: str) -> int:
        return self.body.node(names.op_of(text)).index

    def _node(self, index: int) -> Node:
        return Node(self.body, index)


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

    def _payloads(self, placeholders: Mapping[str, str]) -> Iterator[Payload]:
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
                payload = with_attr(payload, key, None)
            if texts != list(node.inputs):
                payload = with_inputs(payload, texts)
            yield without_absent(payload, places)


def _placeholder(name: str, fed: Fed) -> Payload:
    shape = TensorShapeProto(unknown_rank=fed.shape is None)
    for size in fed.shape or ():
        shape.dim.add(size=-1 if size is None else size)
    attrs = {"dtype": AttrValue(type=DTYPE_NUMBERS[fed.dtype]), "shape": AttrValue(shape=shape)}
    node = NodeDef(name=name, op=PLACEHOLDER, attr=attrs)
    return [node.SerializeToString(deterministic=True)]
