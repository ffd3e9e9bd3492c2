"""A graph as it was before the first rule: nodes get back the bytes that they had.

Only for a graph as a file holds it: `edit` has not changed it since. To drop nodes numbers all
others anew; no rule holds the number of one here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import GradientDef, RegisteredGradient
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.node import Body, Heads, Node, Payload, attr_key
from graphpatch.graph.record import PROVENANCE_ATTR, NodeRecord
from graphpatch.graph.wire import Field, Span, fields, message, piece_bytes

GRADIENT, REGISTERED = 2, 3  # fields of FunctionDefLibrary


@dataclass
class UndoneBody:
    """What was taken back of a body: the nodes before, by their indices, and those dropped."""

    body: Body
    restored: dict[int, NodeDef] = field(default_factory=dict)
    payloads: dict[int, Payload] = field(default_factory=dict)
    dropped: dict[int, None] = field(default_factory=dict)

    @property
    def dropped_names(self) -> frozenset[str]:
        """The names of the nodes that were dropped."""
        return frozenset(self.body.heads.names[index] for index in self.dropped)

    @property
    def old_names(self) -> dict[str, str]:
        """The older names that ops have again, by the newer ones."""
        now = self.body.heads.names
        found = self.restored.items()
        return {now[index]: was.name for index, was in found if was.name != now[index]}

    @property
    def with_other_type(self) -> list[str]:
        """The names of the ops that are of another op type again."""
        now = self.body.heads.ops
        return [was.name for index, was in self.restored.items() if was.op != now[index]]


def undo(graph: Graph) -> tuple[list[UndoneBody], frozenset[str]]:
    """Take back all that rules did to a graph; return bodies, the main one first, and functions.

    Raises ModelError where a record is not one that graphpatch writes, or where ops that somebody
    else added read what a rule added.
    """
    undone = [_undo_body(graph, body) for body in graph.bodies if not body.is_ours]
    for one in undone:
        if one.dropped or one.restored:
            _check_reads(one, _replace_nodes(graph, one))
        one.body.ret.update(one.body.returns)
        one.body.returns.clear()
    graph.library.rules.clear()
    return undone, _drop_functions(graph)


def _undo_body(graph: Graph, body: Body) -> UndoneBody:
    undone = UndoneBody(body)
    for index in body.heads.marked:
        payload = body.payload(index)
        if len(payload) == 1:
            now = message(NodeDef, piece_bytes(payload[0])).attr
            record = body.read_record(index, now.get(PROVENANCE_ATTR))
        else:
            now, record = Node(body, index).attrs(), body.record(index)
        if record is None:
            continue
        if record.is_added:
            undone.dropped[index] = None
            continue
        was = _original(body, index, record)
        _check_restored(graph, Node(body, index), was, now)
        undone.payloads[index] = _payload_before(Node(body, index), payload, record)
        undone.restored[index] = was
    return undone


def _original(body: Body, index: int, record: NodeRecord) -> NodeDef:
    was = provenance.original(Node(body, index)) if len(record.original) > 1 else None
    try:
        return was or message(NodeDef, record.original[0])
    except ModelError as error:
        raise ModelError(
            f"{Node(body, index)}: its record holds what is no node: {error}"
        ) from None


def _payload_before(node: Node, now: Payload, record: NodeRecord) -> Payload:
    """The NodeDef as it was; fields as large as weights stay where they lie."""
    if len(now) == 1 == len(record.original):
        return [record.original[0]]
    large = [
        piece
        for piece in (now if len(now) > 1 else ())
        if isinstance(piece, Span) and attr_key(piece) != PROVENANCE_ATTR
    ]
    if len(record.original) != len(large) + 1:
        raise ModelError(
            f"{node} has {len(large)} large fields, and its record tells of "
            f"{len(record.original) - 1}; it was changed since"
        )
    payload: Payload = [record.original[0]]
    for span, rest in zip(large, record.original[1:], strict=True):
        payload += [span, rest]
    return payload


def _check_restored(graph: Graph, node: Node, was: NodeDef, now: Mapping[str, AttrValue]) -> None:
    """Raise ModelError where a record would make another op of a node than rules make."""
    if not was.name or not was.op:
        raise ModelError(f"{node}: its record holds a node without a name or an op type")
    if was.op != node.op:
        _check_enclosed(graph, node, was)
        return
    for key in {*now, *was.attr}:
        if key[:1] != "_" and (key not in now or key not in was.attr or now[key] != was.attr[key]):
            raise ModelError(
                f"{node}: its record would change the attr {key!r}, which no rule does; it is not "
                f"put back"
            )


def _check_enclosed(graph: Graph, node: Node, was: NodeDef) -> None:
    """Raise ModelError where an op is to be of a type that the function in its place lacks."""
    types, todo = set[str](), [node.op]
    while todo:
        name = todo.pop()
        if name == was.op:
            return
        if name not in types:
            types.add(name)
            todo += graph.functions[name].heads.ops if name in graph.functions else ()
    raise ModelError(
        f"{node} is said to have been of op type {was.op}, which the function in its place "
        f"does not run; it is not put back"
    )


def _replace_nodes(graph: Graph, undone: UndoneBody) -> Body:
    """Put the body into the graph with the nodes as they were, and without those dropped."""
    old, was, heads = undone.body, undone.restored, undone.body.heads
    left = [index for index in range(len(old)) if index not in undone.dropped]
    place = {index: at for at, index in enumerate(left)} if undone.dropped else {}
    columns = Heads(
        array("Q", (heads.starts[index] for index in left)),
        [was[i].name if i in was else heads.names[i] for i in left],
        [was[i].op if i in was else heads.ops[i] for i in left],
        [tuple(was[i].input) if i in was else heads.inputs[i] for i in left],
    )
    edited = {place.get(index, index): one for index, one in undone.payloads.items()}
    cut = [*old.cut, *(heads.starts[index] for index in undone.dropped)]
    body = replace(
        old, heads=columns, edited=edited, cut=cut, large={}, tensors={}, records={}, returns={}
    )
    body.ret.update(old.returns)
    if body.is_main:
        graph.main = body
    else:
        graph.functions[body.label] = body
    return body


def _check_reads(undone: UndoneBody, body: Body) -> None:
    """Raise ModelError where somebody else's node reads what a rule added."""
    lost = (undone.dropped_names | undone.old_names.keys()) - body.by_name.keys()
    read = set(chain.from_iterable(body.heads.inputs)) if lost else set()
    for text in sorted(text for text in read - body.by_name.keys() if names.op_of(text) in lost):
        index = next(index for index, inputs in enumerate(body.heads.inputs) if text in inputs)
        raise ModelError(
            f"{Node(body, index)} reads {text!r}, which a rule added; it was changed since"
        )
    for text in body.ret.values():
        if names.op_of(text) in lost:
            raise ModelError(f"function {body.label} returns {text!r}, which a rule added")


def _drop_functions(graph: Graph) -> frozenset[str]:
    """Drop the functions that rules added, and return their names."""
    gone = frozenset(name for name, body in graph.functions.items() if body.is_ours)
    for body in graph.bodies:
        if not body.is_ours and (calls := gone & set(body.heads.ops)):
            raise ModelError(f"{body.label} calls {min(calls)}, which a rule added, from elsewhere")
    fields_of = {part: name for name, (_, part) in graph.function_fields.items()}
    graph.cut = [
        *graph.cut,
        *(
            (library, part)
            for library, part in _library_parts(graph)
            if (fields_of.get(part) or _owner_of(graph, part)) in gone
        ),
    ]
    graph.functions = {name: one for name, one in graph.functions.items() if name not in gone}
    parts = graph.function_fields.items()  # copies of the graph share them
    graph.function_fields = {name: one for name, one in parts if name not in gone}
    for name in gone:
        del graph.library.signatures[name]
        graph.library.gradients.pop(name, None)
    return gone


def _library_parts(graph: Graph) -> Iterator[tuple[Field, Field]]:
    for library in graph.others:
        if library.holds(LIBRARY):
            for part in fields(graph.source.data, library.value, library.end):
                yield library, part


def _owner_of(graph: Graph, part: Field) -> str:
    """The function that a GradientDef or RegisteredGradient belongs to."""
    raw = graph.source.data[part.value : part.end] if part.number in (GRADIENT, REGISTERED) else b""
    if part.holds(GRADIENT):
        return str(message(GradientDef, raw).function_name)
    return str(message(RegisteredGradient, raw).gradient_func) if part.holds(REGISTERED) else ""
