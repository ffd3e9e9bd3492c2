"""A GraphDef in memory: read where it lies, and written with what no rule touched as it was.

Runs of small NodeDefs go to protobuf in one call each, so that a broken attr is found before a rule
works on its op. A large one (a Const with weights) is walked over, its weights left unread.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from graphpatch import opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.node import MAIN, PROVENANCE, Body, Heads, Library, Node, payload_at
from graphpatch.graph.record import PROVENANCE_ATTR, ModelRecord
from graphpatch.graph.wire import (
    BYTES,
    LARGE,
    MOST_FIELDS,
    Field,
    Piece,
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
    too_many_fields,
    utf8,
)
from graphpatch.protos import FunctionDef, FunctionDefLibrary, GraphDef, NodeDef

NODE, LIBRARY, VERSIONS = 1, 2, 4  # fields of a GraphDef
FUNCTION_NODE, FUNCTION_RET = 3, 4  # fields of a FunctionDef
RUN = 1 << 17  # bytes that go to protobuf in one call; more of them do not stay in a cache
MOST_NODES = 2_000_000  # of one body; the largest graph that we know has 400,000
MOST_LISTED = 2_000_000  # tensors of lists that no input shows, of all nodes of a graph

Progress = Callable[[str, int, int], None]
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
        """Return the name of the function."""
        name: str = self.function.signature.name
        return name


class Graph(msgspec.Struct, eq=False, weakref=True):
    """A GraphDef, indexed where it lies in its source; `editor` changes a copy of it.

    `others` are its fields that are not nodes, `added` the functions that rules added since it was
    read, and `cut` those that were dropped, each with its library.
    """

    source: Source
    start: int
    end: int
    main: Body
    others: list[Field]
    library: Library
    functions: dict[str, Body] = msgspec.field(default_factory=dict)
    added: FunctionDefLibrary = msgspec.field(default_factory=FunctionDefLibrary)
    restored: list[Restored] = msgspec.field(default_factory=list)
    cut: list[tuple[Field, ...]] = msgspec.field(default_factory=list)

    @classmethod
    def open(
        cls: type[G], source: Source, start: int, end: int, progress: Progress | None = None
    ) -> G:
        """Index the GraphDef that lies from `start` to `end`.

        Raises ModelError where it is none, is cut short, or passes one of the limits.
        """
        library, data = Library(), source.data
        heads, others = read_nodes(source, start, end, NODE, progress)
        graph = cls(source, start, end, Body(MAIN, library, source, heads), others, library)
        library.graph = weakref.ref(graph)
        for part in others:
            if part.holds(LIBRARY):
                _open_library(graph, part)
        rest = [data[part.start : part.end] for part in others if not part.holds(LIBRARY)]
        library.producer = message(GraphDef, b"".join(rest)).versions.producer
        _refuse_long_lists(graph)
        _read_rules(graph)
        return graph

    @property
    def bodies(self) -> Iterator[Body]:
        """Yield the main graph, then each function's body in the file's order."""
        yield self.main
        yield from self.functions.values()

    @property
    def is_changed(self) -> bool:
        """Return whether anything was edited since the file was read."""
        return any(body.edited for body in self.bodies)

    def body(self, label: str) -> Body:
        """Return the body of this label: `main`, or a function's name."""
        return self.main if label == self.main.label else self.functions[label]

    def counterpart(self, body: Body) -> Body | None:
        """Return the body here that stands where one of another graph does, if there is one."""
        return self.main if body.is_main else self.functions.get(body.label)

    def copy(self: G) -> G:
        """Return the same graph, to be changed without this one seeing it."""
        library = self.library.copy()
        main = self.main.copy(library)
        graph = replace(self, library=library, main=main, restored=list(self.restored))
        library.graph = weakref.ref(graph)
        graph.functions = {name: body.copy(library) for name, body in self.functions.items()}
        graph.added = FunctionDefLibrary()
        graph.added.CopyFrom(self.added)
        return graph


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
    """What was taken back of a graph.

    Ops of the main graph that were dropped, and the older names of others (by the newer ones);
    functions that were dropped. `record` is what was written down of the model. Of all bodies: how
    many nodes were restored, and dropped, and those that are of another op type again.
    """

    dropped: frozenset[str]
    old_names: Mapping[str, str]
    functions: frozenset[str]
    record: ModelRecord
    nodes_restored: int
    nodes_dropped: int
    uncovered: tuple[Node, ...]


class ModelGraph(Graph, eq=False):
    """A graph of a model; `around` is what its container says, and `undone` what was taken back."""

    around: ContainerFacts = ContainerFacts()
    undone: UndoneGraph | None = None


def graph_of(data: bytes) -> ModelGraph:
    """Return the graph of a GraphDef that is these bytes, as `ModelGraph.open`."""
    return ModelGraph.open(Source(data), 0, len(data))


def read_record(graph: Graph) -> ModelRecord | None:
    """Return what is written down of a model; None where nothing is."""
    place = carrier(graph)
    record = None if place is None else place[0].record(place[1])
    return None if record is None else record.model


def carrier(graph: Graph) -> tuple[Body, int] | None:
    """Return the node that carries the model's record: of a file, the first that rules touched."""
    for body in graph.bodies:
        for index in body.signed():
            record = body.record(index)
            if record is not None and record.model is not None:
                return body, index
    return None


def _read_rules(graph: Graph) -> None:
    """Let the library know the rules that changed the graph, and bodies what they returned."""
    record = read_record(graph)
    if record is None:
        return
    graph.library.rules += [rule.author for rule in record.rules]
    for label, outputs in record.returns.items():
        body = graph.functions.get(label)
        if body is None or not outputs.keys() <= body.ret.keys():
            raise ModelError(f"its record tells of outputs that function {label!r} has not")
        body.returns.update(outputs)


def read_nodes(
    source: Source, start: int, end: int, number: int, progress: Progress | None = None
) -> tuple[Heads, list[Field]]:
    """Return the heads of the nodes of a message, its fields `number`, and its other fields.

    Raises ModelError where the bytes are not such a message, or end in the middle of a field.
    """
    data, tag, heads, others = source.data, number << 3 | BYTES, Heads(), list[Field]()
    run = at = start

    def read_run(stop: int) -> None:
        if run < stop:
            # A list: protobuf makes an object for each node whenever it is asked for it.
            nodes = list(_parse(source, run, stop, number))
            _append_heads(heads, nodes, run, data.find(PROVENANCE, run, stop) >= 0)
            if progress is not None:
                progress("reading", stop, len(data))

    try:
        while at < end:
            if data[at] != tag:
                read_run(at)
                others.append(field_at(data, at, end))
                at = run = others[-1].end
                if len(others) > MOST_FIELDS:
                    raise too_many_fields(start)
                continue
            size = data[at + 1]
            if size < 0x80:
                value = at + 2
                stop = value + size
            elif (more := data[at + 2]) < 0x80:  # nearly all others: one call less
                value = at + 3
                stop = value + (size & 0x7F | more << 7)
            else:
                value, stop = entry(source, at)
            is_large = stop - value >= LARGE
            if is_large or stop - run > RUN:
                read_run(at)
                run = at
            heads.starts.append(at)
            if is_large and stop <= end:
                try:
                    large = NodeDef.FromString(payload_at(source, at).small)
                except DecodeError:
                    raise _broken(source, at) from None
                _append_heads(heads, [large], at, signed=True)
                run = stop
                if progress is not None:
                    progress("reading", stop, len(data))
            at = stop
    except IndexError:
        at = end + 1
    if at != end:
        raise ModelError(
            f"truncated: the last of its nodes should end at byte {at}, not {end}; "
            "copy or download the file again"
        )
    read_run(end)
    return heads, others


def _append_heads(heads: Heads, nodes: Sequence[NodeDef], start: int, signed: bool) -> None:
    """Append the heads of nodes that lie side by side from `start`; `signed` ones have records."""
    first = len(heads.names)
    # Three comprehensions are a third faster than one loop, and a slice of inputs than tuple().
    heads.names += [node.name for node in nodes]
    heads.ops += map(sys.intern, [node.op for node in nodes])
    heads.inputs += [tuple(node.input[:]) for node in nodes]
    if not all(heads.names[first:]) or not all(heads.ops[first:]):
        raise ModelError(f"a node at byte {start} or behind has no name, or no op type")
    if len(heads.names) > MOST_NODES:
        raise ModelError(f"more than {MOST_NODES:,} nodes; graphpatch reads no more")
    for index, node in enumerate(nodes if signed else (), first):
        record = node.attr.get(PROVENANCE_ATTR)
        if record is not None:
            heads.records[index] = record.list.s[:]


def _parse(source: Source, start: int, end: int, number: int) -> Any:
    """Return the NodeDefs of a run: fields `number` of a GraphDef, or else of a FunctionDef."""
    raw = source.data[start:end]
    try:
        if number == NODE:
            return GraphDef.FromString(raw).node
        return FunctionDef.FromString(raw).node_def
    except DecodeError:
        for field in fields(source.data, start, end):
            try:
                NodeDef.FromString(source.data[field.value : field.end])
            except DecodeError:
                raise _broken(source, field.start) from None
        raise ModelError(f"not a GraphDef: the nodes at byte {start} do not parse") from None


def _broken(source: Source, start: int) -> ModelError:
    """Return the error that names the NodeDef whose field starts at `start`."""
    parts = [part for part in fields(source.data, *entry(source, start)) if part.holds(1)]
    name = utf8(source.data, parts[0].value, parts[0].end) if parts else ""
    return ModelError(
        f"not a protobuf: the node {name!r} at byte {start} is broken; "
        f"TensorFlow cannot read it either"
    )


def _open_library(graph: Graph, library: Field) -> None:
    data, rest = graph.source.data, list[bytes]()
    for part in list(fields(data, library.value, library.end)):  # too many: before any is read
        if not part.holds(1):
            rest.append(data[part.start : part.end])
            continue
        _open_function(graph, library, part)
    for gradient in message(FunctionDefLibrary, b"".join(rest)).gradient:
        graph.library.gradients[gradient.function_name] = gradient.gradient_func


def _open_function(graph: Graph, part_of: Field, function: Field) -> None:
    """Let the graph know a FunctionDef, which is part of a FunctionDefLibrary."""
    source, library = graph.source, graph.library
    heads, others = read_nodes(source, function.value, function.end, FUNCTION_NODE)
    for part in others:  # a signature of empty arguments takes 100 times its bytes
        if part.wire == BYTES and part.end - part.start >= LARGE:
            deque(fields(source.data, part.value, part.end), maxlen=0)
    rest = message(FunctionDef, b"".join(source.data[part.start : part.end] for part in others))
    signature = rest.signature
    name: str = signature.name
    if name in graph.functions:
        raise ModelError(f"two functions are named {name!r}")
    library.signatures[name] = opdefs.from_proto(signature)
    returned = dict(sorted(rest.ret.items()))  # a map of protobuf has another order in each process
    lies = part_of, function
    body = Body(name, library, source, heads, returned, signature, others, lies)
    body.is_ours = signature.description.startswith(PROVENANCE_ATTR)
    graph.functions[name] = body


def _refuse_long_lists(graph: Graph) -> None:
    """Raise ModelError where attrs (`num_split`, `N`) ask for more tensors than graphpatch makes.

    A list may be as long as the node has inputs, which take bytes of the file each.
    """
    total = 0
    for body in graph.bodies:
        for op in set(body.heads.ops):
            if (opdef := body.library.opdef(op)) is None:
                continue
            numbers = [arg.number_attr for arg in (*opdef.inputs, *opdef.outputs)]
            keys = dict.fromkeys(filter(None, numbers))
            for index in body.by_type[op] if keys else ():
                node = Node(body, index)
                for key in keys:
                    value = node.attr(key) or opdef.default(key)
                    count = 0 if value is None else value.i
                    total += max(0, count - len(node.inputs))
                    if total > MOST_LISTED:
                        raise ModelError(
                            f"{node}: attr {key!r} asks for {count:,} tensors; all lists of "
                            f"tensors together may be {MOST_LISTED:,} longer than what is read"
                        )


def graph_pieces(graph: ModelGraph) -> list[Piece]:
    """Return the GraphDef, as pieces of its source and new bytes."""
    changes = _changes(graph.main, NODE, _library_changes(graph))
    return [*splice(graph.source, graph.start, graph.end, changes), *_added_functions(graph)]


def library_pieces(graph: ModelGraph) -> list[Piece]:
    """Return the library of functions alone, as fields of a GraphDef."""
    changed = {start: new for start, _, new in _library_changes(graph)}
    pieces: list[Piece] = []
    for part in graph.others:
        if part.holds(LIBRARY):
            pieces += changed.get(part.start, [Span(graph.source, part.start, part.end)])
    return [*pieces, *_added_functions(graph)]


def _added_functions(graph: ModelGraph) -> list[Piece]:
    added = graph.added.SerializeToString(deterministic=True)
    return [encoded(LIBRARY, added)] if added else []


def _changes(body: Body, number: int, others: Iterable[Replacement]) -> Iterator[Replacement]:
    """Yield what comes in place of nodes that were changed or dropped, and these others, in order.

    One by one: all of them together would take the memory of the model.
    """
    source, starts = body.source, body.heads.starts
    besides = {change[0]: change for change in others}
    besides.update((start, (start, end, ())) for start, end in body.cut)
    changed = (body.edited.keys() - body.root.keys()) | body.placed.keys()
    for start, index in sorted(
        [*((starts[at], at) for at in changed), *((at, -1) for at in besides)]
    ):
        if index < 0:
            yield besides[start]
            continue
        pieces: list[Piece] = []
        value, end = entry(source, start)
        is_padded = value - start != (2 if end - value < 0x80 else 3)  # or very long
        for node in body.placed.get(index, (index,)):
            payload = body.payload(node)
            if node == index and is_padded:
                pieces += reframed(source, start, payload.pieces)
            elif payload.large:
                pieces += enclosed(number, payload.pieces)
            else:
                pieces.append(encoded(number, payload.small))
        yield start, end, pieces


def _library_changes(graph: ModelGraph) -> Iterator[Replacement]:
    """Yield what comes in place of each library that is another one now."""
    source = graph.source
    parts: dict[Field, list[Replacement]] = {}
    for library, part in graph.cut:
        parts.setdefault(library, []).append((part.start, part.end, ()))
    for body in graph.functions.values():
        if changes := list(_changes(body, FUNCTION_NODE, _output_changes(body))):
            library, part = body.lies
            pieces = splice(source, part.value, part.end, changes)
            new = part.start, part.end, reframed(source, part.start, pieces)
            parts.setdefault(library, []).append(new)
    libraries = {
        library: splice(source, library.value, library.end, sorted(changes, key=itemgetter(0)))
        for library, changes in parts.items()
    }
    # An empty library is dropped, unless the model had one before rules added functions to it.
    empty = [library for library, pieces in sorted(libraries.items()) if not pieces]
    is_kept = graph.undone is not None and graph.undone.record.library
    if is_kept and empty == [part for part in graph.others if part.holds(LIBRARY)]:
        del empty[:1]
    for library, pieces in libraries.items():
        is_gone = library in empty
        whole = [] if is_gone else reframed(source, library.start, pieces)
        yield library.start, library.end, whole


def _output_changes(body: Body) -> Iterator[Replacement]:
    """Yield the outputs of a function that are other tensors than in the file."""
    source, data = body.source, body.source.data
    for part in body.others if body.returns or body.edited or body.cut else ():
        if not part.holds(FUNCTION_RET):
            continue
        entries = [field for field in fields(data, part.value, part.end) if field.wire == BYTES]
        texts = {field.number: utf8(data, field.value, field.end) for field in entries}
        tensor = body.ret[texts.get(1, "")]
        if tensor != texts.get(2, ""):
            *doubled, last = [field for field in entries if field.number == 2]
            changes: list[Replacement] = [(field.start, field.end, ()) for field in doubled]
            changes.append((last.start, last.end, reframed(source, last.start, [tensor.encode()])))
            pieces = splice(source, part.value, part.end, changes)
            yield part.start, part.end, reframed(source, part.start, pieces)
