"""A GraphDef in memory: its main graph, its functions, and what else it holds."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from tensorboard.compat.proto.function_pb2 import (
    FunctionDef,
    FunctionDefLibrary,
    GradientDef,
    RegisteredGradient,
)
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.versions_pb2 import VersionDef

from graphpatch import opdefs
from graphpatch.errors import ModelError
from graphpatch.graph.body import MAIN, Body, Library, Node
from graphpatch.graph.heads import LARGE, Progress, read_heads, scan
from graphpatch.graph.record import PROVENANCE_ATTR, ModelRecord
from graphpatch.graph.wire import BYTES, Field, Source, fields, message
from graphpatch.opdefs import Arg, OpDef

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
