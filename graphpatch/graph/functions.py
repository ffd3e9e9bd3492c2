"""Functions: who calls which, and parts of the main graph as a function or as a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from graphpatch import names, opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.attrs import DTYPE_NUMBERS, OUTPUT_SHAPES
from graphpatch.graph.graph import NODE, VERSIONS, ModelGraph, library_pieces
from graphpatch.graph.node import COLOCATION, Body, Node, Payload
from graphpatch.graph.op_types import PLACEHOLDER, PLACEHOLDERS
from graphpatch.graph.walk import reached
from graphpatch.graph.wire import Piece, Span, enclosed, message
from graphpatch.protos import AttrValue, FunctionDef, NodeDef, TensorShapeProto

ATTR = 5  # in FunctionDef
NO_INLINE = "_noinline"  # the attr of a FunctionDef that keeps it from being inlined
LOC = b"loc:@"  # the attr `_class` names an op like that, in bytes which need not be UTF-8

# Hints that tf.gradients of TensorFlow 2 gives to products of matrices, and 1.15 does not know.
HINTS = ("grad_a", "grad_b", "grad_x", "grad_y")

StaticShape = Sequence[int | None] | None  # None: not known


def calls(body: Body) -> Iterator[tuple[Node, str]]:
    """Yield the ops of a body that call functions, and which function each calls."""
    functions = body.library.signatures
    for op, indices in body.by_type.items():
        keys = _function_attrs(op)
        for index in indices if keys or op in functions else ():
            node = Node(body, index)
            yield from ((node, name) for name in called_functions(node, keys))


def called_by_op(body: Body) -> dict[int, list[str]]:
    """Return the functions that each op calls, by the op's index."""
    callees: dict[int, list[str]] = {}
    for caller, callee in calls(body):
        callees.setdefault(caller.index, []).append(callee)
    return callees


def called_functions(node: Node, keys: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the functions that an op calls; `keys` are the attrs of its type that name some."""
    if node.op in node.body.library.signatures:
        yield node.op
    for key in _function_attrs(node.op) if keys is None else keys:
        yield from named_by(node, key)


def _function_attrs(op: str) -> list[str]:
    known = opdefs.lookup(op)
    attrs = () if known is None else known.attrs
    return [attr.name for attr in attrs if attr.type in {"func", "list(func)"}]


def named_by(node: Node, key: str) -> list[str]:
    """Return the functions that an attr of an op names."""
    value = node.attr(key)
    if value is None:
        return []
    functions = [value.func] if value.HasField("func") else value.list.func
    return [function.name for function in functions]


def may_be_inlined(function: Body) -> bool:
    """Tell whether a FunctionDef lets its calls be inlined."""
    data = function.source.data
    parts = (part for part in function.others if part.holds(ATTR))
    attrs = (message(FunctionDef.AttrEntry, data[part.value : part.end]) for part in parts)
    return not any(attr.key == NO_INLINE and attr.value.b for attr in attrs)


def located(name: str) -> bytes:
    """Return how the attr `_class` names an op to be put on the same device with."""
    return LOC + name.encode()


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
        """Return the ops, in the order of the file; ModelError where a name is not one of an op."""
        inputs = self.body.heads.inputs

        def producers(texts: Iterable[str]) -> list[int]:
            read = [names.op_of(text) for text in texts if not self._argument(text)]
            return [self.body.node(op).index for op in read]

        return sorted(reached(producers(self.results), lambda index: producers(inputs[index])))

    @property
    def nodes(self) -> list[Node]:
        """Return the ops, as nodes."""
        return [Node(self.body, index) for index in self.indices]

    def unfed(self) -> Iterator[Node]:
        """Yield the placeholders among them: nothing feeds them inside a function."""
        return (node for node in self.nodes if node.op in PLACEHOLDERS)

    def read(self) -> set[str]:
        """Return all that the ops read, and the results."""
        return {*self.results, *(text for node in self.nodes for text in node.data_inputs)}

    def payloads(self) -> Iterator[Payload]:
        """Yield the NodeDefs, their inputs spelled as in a function, without stale shapes."""
        return self.moved(self.spelled, {node.name for node in self.nodes})

    def moved(self, spell: Callable[[str], str], inside: Collection[str]) -> Iterator[Payload]:
        """Yield the NodeDefs with other inputs, without attrs and inputs that do not hold here.

        These are control inputs on ops that are not `inside`, colocation with them, which
        TensorFlow refuses, and shapes that may be stale.
        """
        places = set(map(located, inside))
        for node in self.nodes:
            payload = node.body.payload(node.index)
            before, proto = (message(NodeDef, payload.small) for _ in range(2))
            proto.input[:] = [
                text if text.startswith("^") else spell(text)
                for text in node.inputs
                if not text.startswith("^") or names.op_of(text) in inside
            ]
            stale = [OUTPUT_SHAPES, *(HINTS if "MatMul" in node.op else ())]
            if COLOCATION in proto.attr:
                classes = proto.attr[COLOCATION].list.s
                stays = [text for text in classes if text in places or not text.startswith(LOC)]
                stale += [COLOCATION] if classes and not stays else []
                classes[:] = stays
            for key in stale:
                proto.attr.pop(key, None)
            is_same = proto == before
            raw = proto.SerializeToString(deterministic=True)
            yield payload if is_same else Payload.of((raw,), payload.large)

    def spelled(self, tensor: str) -> str:
        """Return how the function spells a tensor of the main graph."""
        argument = self._argument(tensor)
        if argument:
            return argument
        name = names.parse(tensor)
        outputs = self.body.node(name.op).outputs
        if outputs is None or name.index >= len(outputs):
            count = "not known" if outputs is None else len(outputs)
            raise ModelError(f"there is no {tensor}: the outputs of {name.op!r} are {count}")
        return f"{name.op}:{outputs[name.index].name}:{outputs[name.index].index}"

    def _argument(self, text: str) -> str:
        tensor = names.parse(text)
        return self.arguments.get(tensor.op if tensor.control else str(tensor), "")


@dataclass(frozen=True, slots=True)
class Fed:
    """A tensor that a part is given: what stands for it is a Placeholder."""

    tensor: str
    dtype: str
    shape: StaticShape

    def placeholder(self, name: str) -> bytes:
        """Return the Placeholder of this name, serialized."""
        shape = TensorShapeProto(unknown_rank=self.shape is None)
        for size in self.shape or ():
            shape.dim.add(size=-1 if size is None else size)
        dtype = AttrValue(type=DTYPE_NUMBERS[self.dtype])
        attrs = {"dtype": dtype, "shape": AttrValue(shape=shape)}
        node = NodeDef(name=name, op=PLACEHOLDER, attr=attrs)
        raw: bytes = node.SerializeToString(deterministic=True)
        return raw


@dataclass(frozen=True, eq=False)
class Extract:
    """The ops from which `results` are computed, as a graph where the tensors `fed` are given.

    A placeholder has the name of the op that gave its tensor, so that the tensor's name stays,
    unless that op is in the part for another of its tensors.
    """

    graph: ModelGraph
    fed: tuple[Fed, ...]
    results: tuple[str, ...]

    @cached_property
    def part(self) -> Part:
        """Return the ops, each fed tensor cut off."""
        arguments = {str(names.parse(fed.tensor)): fed.tensor for fed in self.fed}
        return Part(self.graph.main, arguments, self.results)

    def placeholders(self) -> dict[str, str]:
        """Return the name of the placeholder that stands for each fed tensor."""
        taken, placeholders = {node.name for node in self.part.nodes}, dict[str, str]()
        for fed in self.fed:
            tensor = names.parse(fed.tensor)
            base = tensor.op if not tensor.index else f"{tensor.op}_{tensor.index}"
            placeholders[fed.tensor] = names.fresh(base, taken)
            taken.add(placeholders[fed.tensor])
        return placeholders

    def pieces(self) -> list[Piece]:
        """Return the GraphDef, with all functions of the graph and their gradients.

        Shapes that TensorFlow noted are left out: they may be stale.
        """
        graph, placeholders = self.graph, self.placeholders()
        fed_names = {str(names.parse(tensor)): name for tensor, name in placeholders.items()}

        def spell(text: str) -> str:
            return fed_names.get(str(names.parse(text)), text)

        inside = {node.name for node in self.part.nodes} | set(placeholders.values())
        fed: list[list[Piece]] = [[fed.placeholder(placeholders[fed.tensor])] for fed in self.fed]
        nodes = chain(fed, (payload.pieces for payload in self.part.moved(spell, inside)))
        pieces = [piece for node in nodes for piece in enclosed(NODE, node)]
        versions = [part for part in graph.others if part.holds(VERSIONS)]
        pieces += [Span(graph.source, part.start, part.end) for part in versions]
        return [*pieces, *library_pieces(graph)]
