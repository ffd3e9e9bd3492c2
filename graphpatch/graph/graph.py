"""A GraphDef in memory: read where it lies, and written with what no rule touched as it was.

Runs of small NodeDefs go to protobuf in one call each. A large one (a Const with weights) is walked
over, its weights left unread.
"""

from __future__ import annotations

import functools
import sys
import weakref
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError
from msgspec.structs import replace
from tensorboard.compat.proto.function_pb2 import (
    FunctionDef,
    FunctionDefLibrary,
    GradientDef,
    RegisteredGradient,
)
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.versions_pb2 import VersionDef

from graphpatch import opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.node import MAIN, PROVENANCE, Body, Heads, Library, Node, payload_of
from graphpatch.graph.record import PROVENANCE_ATTR, ModelRecord
from graphpatch.graph.wire import (
    BYTES,
    LARGE,
    Field,
    Piece,
    Placed,
    Replacement,
    Source,
    Span,
    enclosed,
    encoded,
    entry,
    field_at,
    fields,
    message,
    reframed,
    splice,
    utf8,
)
from graphpatch.opdefs import Arg, OpDef

BETWEEN = b"\n\x06\n\x00\x12\x00\x1a\x00"
"""A node with an empty name, op type and input: it ends the lists of the node before."""


class Columns(NamedTuple):
    """What nodes have, one after the other."""

    names: list[str]
    ops: list[str]
    inputs: list[tuple[str, ...]]


def node_columns(nodes: Sequence[bytes]) -> Columns | None:
    """Of nodes, each as a field of a GraphDef; raises DecodeError where they do not parse.

    None where a name, op type or input is empty, or a node has several names or op types: such
    nodes have to be read one by one.
    """
    flat = _message_class().FromString(BETWEEN.join([*nodes, b""])).node
    names, ops, inputs = flat.name[:], flat.op[:], flat.input[:]
    ends = [""] * len(nodes)
    if names[1::2] != ends or ops[1::2] != ends or inputs.count("") != len(nodes):
        return None
    if "" in (names := names[::2]) or "" in (ops := ops[::2]):
        return None
    return Columns(names, ops, _lists(inputs))


def _lists(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Texts that lie one behind the other, each list of them ended by an empty one."""
    found: list[tuple[str, ...]] = []
    some: list[str] = []
    for text in texts:
        if text:
            some.append(text)
        else:
            found.append(tuple(some))
            some = []
    return found


@functools.cache
def _message_class() -> Any:
    """The class of a message with one node, whose name and op type repeat."""
    node = DescriptorProto()
    NodeDef.DESCRIPTOR.CopyToProto(node)
    for field in node.field:
        if field.name in ("name", "op"):
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if field.type_name.startswith(f".{NodeDef.DESCRIPTOR.full_name}."):
            field.type_name = f".graphpatch.NodeDef.{field.type_name.rpartition('.')[2]}"
    needs = [NodeDef.DESCRIPTOR.file, *NodeDef.DESCRIPTOR.file.dependencies]
    file = FileDescriptorProto(name="graphpatch/flat.proto", package="graphpatch", syntax="proto3")
    file.dependency.extend(one.name for one in needs)
    file.message_type.append(node)
    file.message_type.add(name="Graph").field.add(
        name="node",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type_name=".graphpatch.NodeDef",
    )
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("graphpatch.Graph"))


RUN = 1 << 20  # bytes that go to protobuf in one call
MOST_NODES = 2_000_000  # of one body; the largest graph that we know has 400,000
MOST_FIELDS = 500_000  # of one node; the widest op that we know reads 66,000 tensors
MOST_OTHERS = 1_000  # fields of a body that are not nodes, and one more for so many bytes:
BYTES_FOR_ONE = 32
LEAST = 6  # bytes of a NodeDef with a name and an op type
NODE = 1  # number of the field of a GraphDef that holds a node

Progress = Callable[[str, int, int], None]


def read_heads(
    source: Source, starts: array[int], number: int, progress: Progress | None = None
) -> Heads:
    """The heads of the NodeDefs whose fields (of this number) start at `starts`.

    Raises ModelError where one of them is not a NodeDef.
    """
    heads = Heads(starts)
    for start, end, large in _runs(source, starts):
        first = len(heads.names)
        if number != NODE or large or not _append_run(heads, source, end):
            nodes = _large_head(source, start) if large else _parse(source, start, end, number)
            _append(heads, nodes, start)
        if large:
            heads.marked.append(first)
        elif source.data.find(PROVENANCE, start, end) >= 0:
            heads.marked += _marked(heads, source, first, end)
        if progress is not None:
            progress("reading", end, len(source.data))
    return heads


def _marked(heads: Heads, source: Source, first: int, end: int) -> Iterator[int]:
    """Of the nodes from this one up to byte `end`, those that mention a record."""
    ends = [*heads.starts[first + 1 : len(heads.names)], end]
    for index, stop in enumerate(ends, first):
        if source.data.find(PROVENANCE, heads.starts[index], stop) >= 0:
            yield index


def scan(source: Source, start: int, end: int, number: int) -> tuple[array[int], list[Field]]:
    """Where the fields `number` of the message from `start` to `end` start, and all other fields.

    Raises ModelError where the bytes are not a message, or end in the middle of a field.
    """
    data, tag, starts, others, at = source.data, number << 3 | BYTES, array("Q"), [], start
    append, most = starts.append, MOST_OTHERS + (end - start) // BYTES_FOR_ONE
    most = most if number != NODE else MOST_OTHERS  # a function has a field for each output
    try:
        while at < end:
            if data[at] == tag:
                append(at)
                size = data[at + 1]
                if size < LEAST:
                    raise ModelError(f"the node at byte {at} has no name, or no op type")
                at = entry(source, at)[1] if size > 0x7F else at + 2 + size
            else:
                others.append(field_at(data, at, end))
                at = others[-1].end
                if len(others) > most:
                    raise ModelError(
                        f"more than {most:,} fields besides its nodes; graphpatch reads no more"
                    )
    except IndexError:
        at = end + 1
    if at != end:
        raise ModelError(
            f"truncated: the last of its nodes should end at byte {at}, not {end}; "
            "copy or download the file again"
        )
    if len(starts) > MOST_NODES:
        raise ModelError(f"{len(starts):,} nodes; graphpatch reads up to {MOST_NODES:,}")
    return starts, others


def _append_run(heads: Heads, source: Source, end: int) -> bool:
    """Append the nodes from the next one up to byte `end`; False where they must be read singly."""
    first = len(heads.names)
    run = heads.starts[first : bisect_left(heads.starts, end, first)]
    data, ends = source.data, [*run[1:], end]
    try:
        found = node_columns([data[start:stop] for start, stop in zip(run, ends, strict=True)])
    except DecodeError:
        return False
    if found is None:
        return False
    heads.names += found.names
    heads.ops += map(sys.intern, found.ops)
    heads.inputs += found.inputs
    return True


def _append(heads: Heads, nodes: Any, start: int) -> None:
    # Three comprehensions are a third faster than one loop, which counts at a million nodes.
    nodes = list(nodes)  # protobuf makes an object for each whenever it is asked for it
    heads.names += [node.name for node in nodes]
    heads.ops += map(sys.intern, [node.op for node in nodes])
    # A slice is copied in one call, where tuple() alone asks for each input.
    heads.inputs += [tuple(node.input[:]) for node in nodes]
    if not all(node.name and node.op for node in nodes):
        raise ModelError(f"a node at byte {start} or behind has no name, or no op type")


def _parse(source: Source, start: int, end: int, number: int) -> Any:
    """The NodeDefs of a run: fields `number` of a GraphDef, or else of a FunctionDef."""
    raw = source.data[start:end]
    try:
        if number == 1:
            return GraphDef.FromString(raw).node
        return FunctionDef.FromString(raw).node_def
    except DecodeError:
        for field in fields(source.data, start, end):
            _refuse_broken(source, field)
        raise ModelError(f"not a GraphDef: the nodes at byte {start} do not parse") from None


def _refuse_broken(source: Source, field: Field) -> None:
    """Raise ModelError where the field holds no NodeDef."""
    try:
        NodeDef.FromString(source.data[field.value : field.end])
    except DecodeError:
        parts = fields(source.data, field.value, field.end)
        names = (utf8(source.data, part.value, part.end) for part in parts if part.holds(1))
        raise _broken(next(names, ""), field.start) from None


def _broken(name: str, start: int) -> ModelError:
    return ModelError(
        f"not a protobuf: the node {name!r} at byte {start} is broken; "
        f"TensorFlow cannot read it either"
    )


def _runs(source: Source, starts: array[int]) -> Iterator[tuple[int, int, bool]]:
    """Stretches of adjacent small NodeDefs, and each large one alone: start, end, large."""
    run_start = run_end = -1
    data = source.data
    for start in starts:
        value, end = start + 2, start + 2 + data[start + 1]
        if end - value > 0x7F:  # then the length takes more than that byte
            value, end = entry(source, start)
        if end - value >= LARGE:
            if run_end > run_start:
                yield run_start, run_end, False
            yield start, end, True
            run_start = run_end = end
        elif start == run_end and end - run_start < RUN:
            run_end = end
        else:
            if run_end > run_start:
                yield run_start, run_end, False
            run_start, run_end = start, end
    if run_end > run_start:
        yield run_start, run_end, False


def _large_head(source: Source, start: int) -> list[NodeDef]:
    """The NodeDef without fields as large as weights, which are not read."""
    rest, (value, end) = bytearray(), entry(source, start)
    run = value
    for count, part in enumerate(fields(source.data, value, end)):
        if part.end - part.start >= LARGE and part.number > 3:
            rest += source.data[run : part.start]
            run = part.end
        if count == MOST_FIELDS:
            raise ModelError(
                f"the node at byte {start} has more than {MOST_FIELDS:,} inputs and attrs; "
                f"graphpatch reads no more"
            )
    rest += source.data[run:end]
    try:
        return [NodeDef.FromString(bytes(rest))]
    except DecodeError:
        texts = (part for part in fields(source.data, value, end) if part.holds(1))
        name = next((utf8(source.data, part.value, part.end) for part in texts), "")
        raise _broken(name, start) from None


MOST_LISTED = 1 << 14  # tensors of one list, where no input of the node shows them
MOST_IN_ALL = 2_000_000  # outputs of such lists, of all nodes of a graph


def refuse_long_lists(bodies: Iterable[Body]) -> None:
    """Raise ModelError where attrs (`num_split`, `N`) ask for more tensors than graphpatch makes.

    A list of inputs may be as long as the node has inputs, which take bytes of the file each.
    """
    total = 0
    for node, known in (one for body in bodies for one in _with_lists(body)):
        for arg in known.inputs:
            _refuse(node, arg, max(MOST_LISTED, len(node.inputs)))
        total += sum(_refuse(node, arg, MOST_LISTED) for arg in known.outputs)
        if total > MOST_IN_ALL:
            raise ModelError(
                f"lists of outputs have more than {MOST_IN_ALL:,} tensors up to {node}; "
                f"graphpatch reads no more"
            )


def _with_lists(body: Body) -> Iterator[tuple[Node, OpDef]]:
    """The nodes whose op type has a list that an attr says the length of."""
    types = {op: known for op in set(body.heads.ops) if (known := _listing(body, op)) is not None}
    for index, op in enumerate(body.heads.ops if types else ()):
        if op in types:
            yield Node(body, index), types[op]


def _listing(body: Body, op: str) -> OpDef | None:
    known = body.library.opdef(op)
    if known is None or not any(arg.number_attr for arg in (*known.inputs, *known.outputs)):
        return None
    return known


def _refuse(node: Node, arg: Arg, most: int) -> int:
    """How many tensors an attr says that the list has; 0 where it says nothing."""
    value = node.attr(arg.number_attr) if arg.number_attr else None
    count = value.i if value is not None else arg.number_default or 0
    if count > most:
        raise ModelError(
            f"{node}: attr {arg.number_attr!r} asks for {count:,} tensors in the list "
            f"{arg.name!r}; graphpatch reads up to {most:,}"
        )
    return max(count, 0)


LIBRARY, VERSIONS, DEBUG_INFO = 2, 4, 5
MOST_FUNCTIONS = 100_000  # ten times those of the largest libraries that we know
MOST_ENTRIES = 3 * MOST_FUNCTIONS  # of a library: each function, its gradient, and its key

G = TypeVar("G", bound="Graph")


class Restored(msgspec.Struct, frozen=True, eq=False):
    """The gradient of the ops whose `_gradient_op_type` is `key`.

    tf.saved_model.load registers it. TensorFlow calls it with the upstream gradients alone: what it
    reads besides are tensors of another function that the object graph binds to its last arguments,
    as for tf.custom_gradient.

    `results` says for each input of the op which output of the function is its gradient, and is
    empty where there is none. The last arguments, `captured`, are those of the same names of the
    function `of`, in which the op stands.
    """

    key: str
    function: FunctionDef
    results: tuple[str, ...]
    captured: tuple[str, ...] = ()
    of: str = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        name: str = self.function.signature.name
        return name


class Graph(msgspec.Struct, eq=False, weakref=True):
    """A GraphDef, indexed where it lies in its source; a copy of it can be changed by `edit`."""

    source: Source
    start: int
    end: int
    main: Body
    others: list[Field]
    library: Library
    functions: dict[str, Body] = msgspec.field(default_factory=dict)
    function_fields: dict[str, tuple[Field, Field]] = msgspec.field(default_factory=dict)
    added: FunctionDefLibrary = msgspec.field(default_factory=FunctionDefLibrary)
    restored: list[Restored] = msgspec.field(default_factory=list)
    # Functions that were dropped: (its library, it).
    cut: list[tuple[Field, Field]] = msgspec.field(default_factory=list)

    @classmethod
    def open(
        cls: type[G], source: Source, start: int, end: int, progress: Progress | None = None
    ) -> G:
        """Index the GraphDef that lies from `start` to `end`.

        Raises ModelError where it is none, is cut short, or passes one of the limits.
        """
        library = Library()
        main, others = _main_body(library, source, start, end, progress)
        graph = cls(source, start, end, main, others, library)
        _share_library(graph)
        for other in graph.others:
            if other.holds(LIBRARY):
                _open_library(graph, other)
            elif other.holds(VERSIONS):
                versions = message(VersionDef, source.data[other.value : other.end])
                graph.library.producer = versions.producer
            elif other.holds(DEBUG_INFO):
                message(GraphDef, source.data[other.start : other.end])
        refuse_long_lists(graph.bodies)
        _read_rules(graph)
        return graph

    @property
    def bodies(self) -> Iterator[Body]:
        """The main graph, then each function's body in the file's order."""
        yield self.main
        yield from self.functions.values()

    @property
    def is_changed(self) -> bool:
        """Whether anything was edited since the file was read."""
        return any(body.edited for body in self.bodies)

    def body(self, label: str) -> Body:
        """The body of this label: `main`, or a function's name."""
        return self.main if label == self.main.label else self.functions[label]

    def body_if_there(self, label: str) -> Body | None:
        """The body of this label, or None."""
        return self.main if label == self.main.label else self.functions.get(label)

    def counterpart(self, body: Body) -> Body | None:
        """The body here that stands where one of another graph does, if there is one."""
        return self.main if body.is_main else self.functions.get(body.label)

    def copy(self: G) -> G:
        """The same graph, to be changed without this one seeing it."""
        library = self.library.copy()
        main = self.main.copy(library)
        graph = replace(self, library=library, main=main, restored=list(self.restored))
        _share_library(graph)
        graph.functions = {name: b.copy(graph.library) for name, b in self.functions.items()}
        graph.added = FunctionDefLibrary()
        graph.added.CopyFrom(self.added)
        return graph


def _share_library(graph: Graph) -> None:
    """Let the library know the bodies, without keeping the graph, and so its file, open."""
    there = weakref.ref(graph)

    def bodies() -> Iterable[Body]:
        found = there()
        return () if found is None else found.bodies

    def function(name: str) -> Body | None:
        found = there()
        return None if found is None else found.functions.get(name)

    graph.library.bodies, graph.library.function = bodies, function


def read_record(graph: Graph) -> ModelRecord | None:
    """Read what is written down of a model; None where nothing is."""
    found = carrier(graph)
    record = None if found is None else found[0].record(found[1])
    return None if record is None else record.model


def carrier(graph: Graph) -> tuple[Body, int] | None:
    """The node that carries the model's record: of a file, the first that rules touched."""
    for body in graph.bodies:
        first = body.first_touched()
        for index in () if first is None else chain([first], body.heads.marked, body.edited):
            record = body.record(index)
            if record is not None and record.model is not None:
                return body, index
    return None


def _read_rules(graph: Graph) -> None:
    """Let the library know the rules that changed the graph, and bodies what they returned."""
    record = read_record(graph)
    if record is not None:
        graph.library.rules += [rule.author for rule in record.rules]
        for label, outputs in record.returns.items():
            if (
                label not in graph.functions
                or not outputs.keys() <= graph.functions[label].ret.keys()
            ):
                raise ModelError(f"its record tells of outputs that function {label!r} has not")
            graph.functions[label].returns.update(outputs)


def _open_library(graph: Graph, library: Field) -> None:
    data = graph.source.data
    first = islice(fields(data, library.value, library.end), MOST_ENTRIES + 1)
    numbers = Counter(part.number for part in first)
    if numbers[1] > MOST_FUNCTIONS:
        raise ModelError(f"more than {MOST_FUNCTIONS:,} functions; graphpatch reads no more")
    if numbers.total() > MOST_ENTRIES:
        raise ModelError(
            f"a library of more than {MOST_ENTRIES:,} entries; graphpatch reads no more"
        )
    for part in fields(data, library.value, library.end):
        if part.holds(1):
            body = _function_body(graph.library, graph.source, part.value, part.end)
            if len(graph.functions) == MOST_FUNCTIONS:
                raise ModelError(
                    f"graphpatch reads up to {MOST_FUNCTIONS:,} functions; it has more"
                )
            if body.label in graph.functions:
                raise ModelError(f"two functions are named {body.label!r}")
            graph.functions[body.label] = body
            if body.signature is not None:
                graph.library.signatures[body.label] = opdefs.from_proto(body.signature)
            graph.function_fields[body.label] = (library, part)
        elif part.holds(2):
            gradient = message(GradientDef, data[part.value : part.end])
            graph.library.gradients[gradient.function_name] = gradient.gradient_func
        elif part.holds(3):
            message(RegisteredGradient, data[part.value : part.end])


def _main_body(
    library: Library, source: Source, start: int, end: int, progress: Progress | None
) -> tuple[Body, list[Field]]:
    """The main graph of the GraphDef from `start` to `end`, and its fields that are not nodes."""
    starts, others = scan(source, start, end, 1)
    return Body(MAIN, library, source, read_heads(source, starts, 1, progress)), others


def _function_body(library: Library, source: Source, start: int, end: int) -> Body:
    """The body of the FunctionDef from `start` to `end`."""
    starts, others = scan(source, start, end, 3)
    for part in others:  # a signature of empty arguments takes 100 times its bytes
        inner = fields(source.data, part.value, part.end) if part.wire == BYTES else iter(())
        if part.end - part.start >= LARGE and next(islice(inner, MOST_FUNCTIONS, None), None):
            raise ModelError(
                f"a function with more than {MOST_FUNCTIONS:,} arguments; graphpatch reads no more"
            )
    rest = message(FunctionDef, b"".join(source.data[one.start : one.end] for one in others))
    signature, ret = rest.signature, dict(rest.ret)
    heads = read_heads(source, starts, 3)
    body = Body(signature.name, library, source, heads, ret, signature, others, dict(ret))
    body.is_ours = signature.description.startswith(PROVENANCE_ATTR)
    return body


class ContainerFacts(msgspec.Struct, frozen=True):
    """What the container of a graph says of it; of a GraphDef alone, nothing.

    `meta` is the MetaGraphDef around, with its `tags`; `has_contexts`: it tells the contexts of v1
    loops and branches. `is_object_based`: it is that of a TF2 SavedModel, whose functions are
    restored in Python; `is_exported`: the main graph will be one of these functions.
    """

    meta: Field | None = None
    tags: str = ""
    has_contexts: bool = False
    is_object_based: bool = False
    is_exported: bool = False


class UndoneGraph(msgspec.Struct, frozen=True, eq=False):
    """What was taken back of a graph, as far as its container tells of it.

    Ops of the main graph that were dropped, and the older names of others (by the newer ones);
    functions that were dropped. `record` is what was written down of the model.
    """

    dropped: frozenset[str]
    old_names: Mapping[str, str]
    functions: frozenset[str]
    record: ModelRecord


class ModelGraph(Graph, eq=False):
    """A graph of a model; `around` is what its container says, and `undone` what was taken back."""

    around: ContainerFacts = ContainerFacts()
    undone: UndoneGraph | None = None

    @property
    def keeps_library(self) -> bool:
        """Whether the library of functions stays though nothing be left in it: it was there."""
        return self.undone is not None and self.undone.record.library


def graph_of(data: bytes) -> ModelGraph:
    """The graph of a GraphDef that is these bytes, as `ModelGraph.open`."""
    return ModelGraph.open(Source(data), 0, len(data))


def graph_pieces(graph: ModelGraph) -> list[Piece]:
    """The GraphDef, as pieces of its source and new bytes."""
    changes = [*_changes(graph.main, 1), *_dropped(graph.main), *_libraries(graph)]
    replacements = sorted(changes, key=itemgetter(0))
    pieces = splice(graph.source, graph.start, graph.end, replacements)
    return [*pieces, *_added(graph)]


def library_pieces(graph: ModelGraph) -> list[Piece]:
    """The library of functions alone, as fields of a GraphDef."""
    changed = {one.start: one.pieces for one in _libraries(graph)}
    out: list[Piece] = []
    for other in graph.others:
        if other.holds(LIBRARY):
            out += changed.get(other.start, [Span(graph.source, other.start, other.end)])
    return [*out, *_added(graph)]


def _added(graph: ModelGraph) -> list[Piece]:
    added = graph.added.SerializeToString(deterministic=True)
    return [encoded(LIBRARY, added)] if added else []


def _changes(body: Body, number: int) -> Iterator[Placed]:
    """What comes in place of each node that was changed, or beside which nodes were added."""
    starts, data = body.heads.starts, body.source.data
    for index in sorted((body.edited.keys() - body.root.keys()) | body.placed.keys()):
        start = starts[index]
        end = start + 2 + data[start + 1]
        if data[start + 1] > 0x7F:  # then the length takes more than that byte
            end = entry(body.source, start)[1]
        yield start, end, _as_it_is(body, index, number)


def _dropped(body: Body) -> Iterator[Placed]:
    """Nothing in place of each node that was dropped."""
    return ((start, entry(body.source, start)[1], ()) for start in body.cut)


def _as_it_is(body: Body, index: int, number: int) -> list[Piece]:
    """A node of the file as it is now, and the nodes that were added beside it."""
    pieces: list[Piece] = []
    if index not in body.placed and body.source.data[body.heads.starts[index] + 1] < 0x80:
        return enclosed(number, body.payload(index))
    for node in body.placed.get(index, [index]):
        payload = body.payload(node)
        if node == index and body.source.data[body.heads.starts[index] + 1] > 0x7F:
            pieces += reframed(body.source, body.heads.starts[index], payload)
        else:
            pieces += enclosed(number, payload)
    return payload_of(pieces)


def _libraries(graph: ModelGraph) -> list[Replacement]:
    source = graph.source
    found: dict[Field, list[Replacement]] = {}
    for library, part in graph.cut:
        found.setdefault(library, []).append(Replacement(part.start, part.end, []))
    for name, (library, function) in graph.function_fields.items():
        body = graph.functions[name]
        replacements = sorted([*_dropped(body), *_changes(body, 3), *_ret(body)])
        if replacements:
            pieces = splice(source, function.value, function.end, replacements)
            new = Replacement(
                function.start, function.end, reframed(source, function.start, pieces)
            )
            found.setdefault(library, []).append(new)
    libraries = {
        library: splice(source, library.value, library.end, sorted(parts))
        for library, parts in found.items()
    }
    empty = [library for library, pieces in sorted(libraries.items()) if not pieces]
    if graph.keeps_library and empty == [one for one in graph.others if one.holds(LIBRARY)]:
        del empty[:1]
    return [
        Replacement(
            library.start,
            library.end,
            [] if library in empty else reframed(source, library.start, pieces),
        )
        for library, pieces in libraries.items()
    ]


def _ret(body: Body) -> Iterator[Replacement]:
    """The function's outputs that are read from another tensor than in the file."""
    for part in body.others:
        if part.holds(4):
            name, _ = _text_entry(body.source, part)
            if body.ret[name] != body.file_ret[name]:
                pieces = _with_value(body, part, body.ret[name].encode())
                yield Replacement(part.start, part.end, reframed(body.source, part.start, pieces))


def _with_value(body: Body, entry: Field, value: bytes) -> list[Piece]:
    """The entry of a map with another value, all else of it as it was."""
    old = [f for f in fields(body.source.data, entry.value, entry.end) if f.holds(2)]
    new = [Replacement(one.start, one.end, []) for one in old[:-1]]
    for one in old[-1:]:
        new.append(Replacement(one.start, one.end, reframed(body.source, one.start, [value])))
    return splice(body.source, entry.value, entry.end, new)


def _text_entry(source: Source, field: Field) -> tuple[str, str]:
    """The key and value of an entry of a map of texts."""
    parts = fields(source.data, field.value, field.end)
    found = {part.number: part for part in parts if part.wire == BYTES}
    texts = [utf8(source.data, found[n].value, found[n].end) if n in found else "" for n in (1, 2)]
    return texts[0], texts[1]
