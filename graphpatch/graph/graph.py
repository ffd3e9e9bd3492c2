"""A GraphDef in memory: read where it lies, and written with what no rule touched as it was.

Runs of small NodeDefs go to protobuf in one call each, so that a broken attr is found before a rule
works on its op. A large one (a Const with weights) is walked over, its weights left unread.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from graphpatch import opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.node import MAIN, PROVENANCE, Body, Heads, Library, Node
from graphpatch.graph.record import PROVENANCE_ATTR, ModelRecord
from graphpatch.graph.wire import (
    BYTES,
    LARGE,
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
    utf8,
)
from graphpatch.protos import (
    FunctionDef,
    FunctionDefLibrary,
    GradientDef,
    GraphDef,
    NodeDef,
    RegisteredGradient,
    VersionDef,
)

NODE, LIBRARY, VERSIONS, DEBUG_INFO = 1, 2, 4, 5  # fields of a GraphDef
FUNCTION_NODE, FUNCTION_RET = 3, 4  # fields of a FunctionDef
RUN = 1 << 20  # bytes that go to protobuf in one call
MOST_NODES = 2_000_000  # of one body; the largest graph that we know has 400,000
MOST_FIELDS = 500_000  # of one node; the widest op that we know reads 66,000 tensors
MOST_OTHERS = 1_000  # fields of a body that are not nodes, and one more for so many bytes:
BYTES_FOR_ONE = 32
LEAST = 6  # bytes of a NodeDef with a name and an op type
MOST_FUNCTIONS = 100_000  # ten times those of the largest libraries that we know
MOST_ENTRIES = 3 * MOST_FUNCTIONS  # of a library: each function, its gradient, and its key
MOST_LISTED = 1 << 14  # tensors of one list, where no input of the node shows them
MOST_IN_ALL = 2_000_000  # outputs of such lists, of all nodes of a graph

Progress = Callable[[str, int, int], None]
_START = itemgetter(0)
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
    function_fields: dict[str, tuple[Field, Field]] = msgspec.field(default_factory=dict)
    added: FunctionDefLibrary = msgspec.field(default_factory=FunctionDefLibrary)
    restored: list[Restored] = msgspec.field(default_factory=list)
    cut: list[tuple[Field, Field]] = msgspec.field(default_factory=list)

    @classmethod
    def open(
        cls: type[G], source: Source, start: int, end: int, progress: Progress | None = None
    ) -> G:
        """Index the GraphDef that lies from `start` to `end`.

        Raises ModelError where it is none, is cut short, or passes one of the limits.
        """
        library = Library()
        starts, others = scan(source, start, end, NODE)
        main = Body(MAIN, library, source, read_heads(source, starts, NODE, progress))
        graph = cls(source, start, end, main, others, library)
        _share_library(graph)
        for part in others:
            if part.holds(LIBRARY):
                _open_library(graph, part)
            elif part.holds(VERSIONS):
                versions = message(VersionDef, source.data[part.value : part.end])
                library.producer = versions.producer
            elif part.holds(DEBUG_INFO):
                message(GraphDef, source.data[part.start : part.end])
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
        """Return the body of this label: `main`, or a function's name."""
        return self.main if label == self.main.label else self.functions[label]

    def body_if_there(self, label: str) -> Body | None:
        """Return the body of this label, or None."""
        return self.main if label == self.main.label else self.functions.get(label)

    def counterpart(self, body: Body) -> Body | None:
        """Return the body here that stands where one of another graph does, if there is one."""
        return self.main if body.is_main else self.functions.get(body.label)

    def copy(self: G) -> G:
        """Return the same graph, to be changed without this one seeing it."""
        library = self.library.copy()
        main = self.main.copy(library)
        graph = replace(self, library=library, main=main, restored=list(self.restored))
        _share_library(graph)
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


def graph_of(data: bytes) -> ModelGraph:
    """Return the graph of a GraphDef that is these bytes, as `ModelGraph.open`."""
    return ModelGraph.open(Source(data), 0, len(data))


def _share_library(graph: Graph) -> None:
    """Let the library know the bodies, without keeping the graph, and so its file, open."""
    reference = weakref.ref(graph)

    def bodies() -> Iterable[Body]:
        alive = reference()
        return () if alive is None else alive.bodies

    def function(name: str) -> Body | None:
        alive = reference()
        return None if alive is None else alive.functions.get(name)

    graph.library.bodies, graph.library.function = bodies, function


def read_record(graph: Graph) -> ModelRecord | None:
    """Return what is written down of a model; None where nothing is."""
    place = carrier(graph)
    record = None if place is None else place[0].record(place[1])
    return None if record is None else record.model


def carrier(graph: Graph) -> tuple[Body, int] | None:
    """Return the node that carries the model's record: of a file, the first that rules touched."""
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
    if record is None:
        return
    graph.library.rules += [rule.author for rule in record.rules]
    for label, outputs in record.returns.items():
        body = graph.functions.get(label)
        if body is None or not outputs.keys() <= body.ret.keys():
            raise ModelError(f"its record tells of outputs that function {label!r} has not")
        body.returns.update(outputs)


def scan(source: Source, start: int, end: int, number: int) -> tuple[array[int], list[Field]]:
    """Return where the fields `number` of a message start, and all its other fields.

    Raises ModelError where the bytes are not a message, or end in the middle of a field.
    """
    data, tag, starts, others, at = source.data, number << 3 | BYTES, array("Q"), [], start
    # A function has a field for each output.
    most = MOST_OTHERS + ((end - start) // BYTES_FOR_ONE if number != NODE else 0)
    try:
        while at < end:
            if data[at] == tag:
                starts.append(at)
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


def read_heads(
    source: Source, starts: array[int], number: int, progress: Progress | None = None
) -> Heads:
    """Return the heads of the NodeDefs whose fields (of this number) start at `starts`.

    Raises ModelError where one of them is not a NodeDef.
    """
    heads, data = Heads(starts), source.data
    for start, end, is_large in _runs(source, starts):
        first = len(heads.names)
        # A list: protobuf makes an object for each node whenever it is asked for it. Three
        # comprehensions are a third faster than one loop, and a slice of inputs than tuple() alone.
        nodes = list(_large_head(source, start) if is_large else _parse(source, start, end, number))
        heads.names += [node.name for node in nodes]
        heads.ops += map(sys.intern, [node.op for node in nodes])
        heads.inputs += [tuple(node.input[:]) for node in nodes]
        if not all(heads.names[first:]) or not all(heads.ops[first:]):
            raise ModelError(f"a node at byte {start} or behind has no name, or no op type")
        if is_large:
            heads.marked.append(first)
        elif data.find(PROVENANCE, start, end) >= 0:
            stops = [*starts[first + 1 : len(heads.names)], end]
            for index, stop in enumerate(stops, first):
                if data.find(PROVENANCE, starts[index], stop) >= 0:
                    heads.marked.append(index)
        if progress is not None:
            progress("reading", end, len(data))
    return heads


def _runs(source: Source, starts: array[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield stretches of adjacent small NodeDefs, and each large one alone: start, end, large."""
    run_start = run_end = -1
    data = source.data
    for start in starts:
        value, end = start + 2, start + 2 + data[start + 1]
        if end - value > 0x7F:  # then the length takes more than that byte
            value, end = entry(source, start)
        is_large = end - value >= LARGE
        if is_large or start != run_end or end - run_start >= RUN:
            if run_end > run_start:
                yield run_start, run_end, False
            run_start = start
        if is_large:
            yield start, end, True
            run_start = end
        run_end = end
    if run_end > run_start:
        yield run_start, run_end, False


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
                raise _broken(source, field.start, field.value, field.end) from None
        raise ModelError(f"not a GraphDef: the nodes at byte {start} do not parse") from None


def _large_head(source: Source, start: int) -> list[NodeDef]:
    """Return the NodeDef without fields as large as weights, which are not read."""
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
        raise _broken(source, start, value, end) from None


def _broken(source: Source, start: int, value: int, end: int) -> ModelError:
    """Return the error that names the NodeDef that lies from `value` to `end`."""
    texts = (part for part in fields(source.data, value, end) if part.holds(1))
    name = next((utf8(source.data, part.value, part.end) for part in texts), "")
    return ModelError(
        f"not a protobuf: the node {name!r} at byte {start} is broken; "
        f"TensorFlow cannot read it either"
    )


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


def _function_body(library: Library, source: Source, start: int, end: int) -> Body:
    """Return the body of the FunctionDef from `start` to `end`."""
    starts, others = scan(source, start, end, FUNCTION_NODE)
    for part in others:  # a signature of empty arguments takes 100 times its bytes
        inner = fields(source.data, part.value, part.end) if part.wire == BYTES else iter(())
        if part.end - part.start >= LARGE and next(islice(inner, MOST_FUNCTIONS, None), None):
            raise ModelError(
                f"a function with more than {MOST_FUNCTIONS:,} arguments; graphpatch reads no more"
            )
    rest = message(FunctionDef, b"".join(source.data[part.start : part.end] for part in others))
    signature, ret = rest.signature, dict(rest.ret)
    heads = read_heads(source, starts, FUNCTION_NODE)
    body = Body(signature.name, library, source, heads, ret, signature, others, dict(ret))
    body.is_ours = signature.description.startswith(PROVENANCE_ATTR)
    return body


def refuse_long_lists(bodies: Iterable[Body]) -> None:
    """Raise ModelError where attrs (`num_split`, `N`) ask for more tensors than graphpatch makes.

    A list of inputs may be as long as the node has inputs, which take bytes of the file each.
    """
    total = 0
    for body in bodies:
        listing: dict[str, opdefs.OpDef] = {}
        for op in set(body.heads.ops):
            known = body.library.opdef(op)
            if known and any(arg.number_attr for arg in (*known.inputs, *known.outputs)):
                listing[op] = known
        for index, op in enumerate(body.heads.ops if listing else ()):
            if op not in listing:
                continue
            node = Node(body, index)
            for arg in listing[op].inputs:
                _list_size(node, arg, max(MOST_LISTED, len(node.inputs)))
            total += sum(_list_size(node, arg, MOST_LISTED) for arg in listing[op].outputs)
            if total > MOST_IN_ALL:
                raise ModelError(
                    f"lists of outputs have more than {MOST_IN_ALL:,} tensors up to {node}; "
                    f"graphpatch reads no more"
                )


def _list_size(node: Node, arg: opdefs.Arg, most: int) -> int:
    """Return how many tensors an attr says that the list has; 0 where it says nothing."""
    value = node.attr(arg.number_attr) if arg.number_attr else None
    count = value.i if value is not None else arg.number_default or 0
    if count > most:
        raise ModelError(
            f"{node}: attr {arg.number_attr!r} asks for {count:,} tensors in the list "
            f"{arg.name!r}; graphpatch reads up to {most:,}"
        )
    return max(count, 0)


def graph_pieces(graph: ModelGraph) -> list[Piece]:
    """Return the GraphDef, as pieces of its source and new bytes."""
    changes = _in_order(_node_changes(graph.main, NODE), _library_changes(graph))
    return [*splice(graph.source, graph.start, graph.end, changes), *_added_functions(graph)]


def _in_order(
    nodes: Iterable[Replacement], libraries: Iterable[Replacement]
) -> Iterator[Replacement]:
    """Yield many changes, which are in order, and a few among them."""
    few = sorted(libraries, key=_START, reverse=True)
    for change in nodes:
        while few and few[-1][0] < change[0]:
            yield few.pop()
        yield change
    yield from reversed(few)


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


def _node_changes(body: Body, number: int) -> Iterator[Replacement]:
    """Yield what comes in place of each node that was changed or dropped, with those beside it.

    One by one, in the order of the file: all of them together would take the memory of the model.
    """
    source, starts, data = body.source, body.heads.starts, body.source.data
    changed = (body.edited.keys() - body.root.keys()) | body.placed.keys()
    places = [(starts[index], index) for index in changed]
    for start, index in sorted([*places, *((start, -1) for start in body.cut)]):
        is_short = data[start + 1] < 0x80  # else the length takes more than that byte
        end = start + 2 + data[start + 1] if is_short else entry(source, start)[1]
        pieces: list[Piece] = []
        for node in body.placed.get(index, (index,)) if index >= 0 else ():
            payload = body.payload(node)
            if is_short or node != index:
                pieces += enclosed(number, payload)
            else:
                pieces += reframed(source, start, payload)
        yield start, end, pieces


def _library_changes(graph: ModelGraph) -> list[Replacement]:
    """Return what comes in place of each library that is another one now."""
    source = graph.source
    parts: dict[Field, list[Replacement]] = {}
    for library, part in graph.cut:
        parts.setdefault(library, []).append((part.start, part.end, ()))
    for name, (library, part) in graph.function_fields.items():
        body = graph.functions[name]
        changes = [*_node_changes(body, FUNCTION_NODE), *_output_changes(body)]
        if changes:
            pieces = splice(source, part.value, part.end, sorted(changes, key=_START))
            new = part.start, part.end, reframed(source, part.start, pieces)
            parts.setdefault(library, []).append(new)
    libraries = {
        library: splice(source, library.value, library.end, sorted(changes, key=_START))
        for library, changes in parts.items()
    }
    # An empty library is dropped, unless the model had one before rules added functions to it.
    empty = [library for library, pieces in sorted(libraries.items()) if not pieces]
    is_kept = graph.undone is not None and graph.undone.record.library
    if is_kept and empty == [part for part in graph.others if part.holds(LIBRARY)]:
        del empty[:1]
    return [
        (
            library.start,
            library.end,
            [] if library in empty else reframed(source, library.start, pieces),
        )
        for library, pieces in libraries.items()
    ]


def _output_changes(body: Body) -> Iterator[Replacement]:
    """Yield the outputs of a function that are other tensors than in the file."""
    source, data = body.source, body.source.data
    for part in body.others if body.ret != body.file_ret else ():
        if not part.holds(FUNCTION_RET):
            continue
        entries = [field for field in fields(data, part.value, part.end) if field.wire == BYTES]
        keys = [utf8(data, field.value, field.end) for field in entries if field.number == 1]
        name = keys[-1] if keys else ""
        if body.ret[name] != body.file_ret[name]:
            values = [field for field in entries if field.number == 2]
            changes: list[Replacement] = [(field.start, field.end, ()) for field in values[:-1]]
            for field in values[-1:]:
                value = reframed(source, field.start, [body.ret[name].encode()])
                changes.append((field.start, field.end, value))
            pieces = splice(source, part.value, part.end, changes)
            yield part.start, part.end, reframed(source, part.start, pieces)
