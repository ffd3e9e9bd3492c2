"""A graph as it was before the first rule: nodes get back the bytes that they had.

Only for a graph as a file holds it: `editor` has not changed it since. To drop nodes numbers all
others anew; no rule holds the number of one here.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate, chain, compress

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.graph import LIBRARY, Graph, UndoneGraph, read_record
from graphpatch.graph.node import Body, Heads, Node, Payload, are_attrs_left
from graphpatch.graph.record import ModelRecord, NodeRecord
from graphpatch.graph.walk import reached
from graphpatch.graph.wire import entry, fields, message
from graphpatch.protos import FunctionDefLibrary, NodeDef

GRADIENT, REGISTERED = 2, 3  # fields of FunctionDefLibrary


@dataclass
class UndoneBody:
    """What was taken back of a body: the nodes before, by their indices, and those dropped."""

    body: Body
    restored: dict[int, NodeDef] = field(default_factory=dict)
    payloads: dict[int, Payload] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)

    @property
    def with_other_type(self) -> list[str]:
        """The names of the ops that are of another op type again."""
        now = self.body.heads.ops
        return [node.name for index, node in self.restored.items() if node.op != now[index]]


def undo(graph: Graph) -> tuple[list[UndoneBody], UndoneGraph]:
    """Take back all that rules did to a graph; return that of its bodies, and of the main one.

    Raises ModelError where a record is not one that graphpatch writes, or where ops that somebody
    else added read what a rule added.
    """
    record = read_record(graph) or ModelRecord()
    undone = [_undo_body(graph, body, record.live) for body in graph.bodies if not body.is_ours]
    (dropped, old_names), *_ = [_replace_nodes(graph, each) for each in undone]
    graph.library.rules.clear()
    return undone, UndoneGraph(dropped, old_names, _drop_functions(graph), record)


def _undo_body(graph: Graph, body: Body, is_live: bool) -> UndoneBody:
    undone = UndoneBody(body)
    for index, record in body.touched().items():
        if not record.original:
            undone.dropped.append(index)
            continue
        node, payload = Node(body, index), body.payload(index)
        original = provenance.recorded_original(node, record)
        _check_restored(graph, node, original, record, payload)
        parts = record.original
        if is_live and not (body.is_main or payload.large):
            data_inputs = [text for text in original.input if text[:1] != "^"]
            if not all(text.count(":") == 2 or text in body.arguments for text in data_inputs):
                original.input[:] = node.inputs  # in functions TensorFlow spells them otherwise
                parts = (original.SerializeToString(deterministic=True),)
        undone.payloads[index] = Payload.of(parts, payload.large)
        undone.restored[index] = original
    return undone


def _check_restored(
    graph: Graph, node: Node, original: NodeDef, record: NodeRecord, payload: Payload
) -> None:
    """Raise ModelError where a record would make another op of a node than rules make."""
    if len(record.original) != len(payload.large) + 1:
        raise ModelError(
            f"{node} has {len(payload.large)} large fields, and its record tells of "
            f"{len(record.original) - 1}; it was changed since"
        )
    if not original.name or not original.op:
        raise ModelError(f"{node}: its record holds a node without a name or an op type")
    if original.op != node.op:
        functions = graph.functions
        types = reached([node.op], lambda t: functions[t].heads.ops if t in functions else ())
        if original.op not in types:
            raise ModelError(
                f"{node} is said to have been of op type {original.op}, which the function in its "
                f"place does not run; it is not put back"
            )
        return
    if not payload.large and are_attrs_left(record.original[0], payload.small):
        return
    before, now = original.attr, message(NodeDef, payload.small).attr
    keys = [key for key in {*now, *before} if key[:1] != "_"]
    changed = [k for k in keys if k not in now or k not in before or now[k] != before[k]]
    if changed:
        raise ModelError(
            f"{node}: its record would change the attr {min(changed)!r}, which no rule does; it is "
            f"not put back"
        )


def _replace_nodes(graph: Graph, undone: UndoneBody) -> tuple[frozenset[str], dict[str, str]]:
    """Let the graph have the nodes of a body as they were, and not those that are dropped.

    Returns the names of these, and the older names of others by the newer ones.
    """
    old, heads = undone.body, undone.body.heads
    old.ret.update(old.returns)
    old.returns.clear()
    if not undone.payloads and not undone.dropped:
        return frozenset(), {}
    stays = bytearray(b"\1") * len(old)
    cut, first, end = list(old.cut), -1, -1
    for index in undone.dropped:  # those that lie side by side are cut as one
        stays[index], start = 0, heads.starts[index]
        if start == end:
            cut.pop()
        else:
            first = start
        end = entry(old.source, start)[1]
        cut.append((first, end))
    before = Heads(
        array("Q", compress(heads.starts, stays)),
        list(compress(heads.names, stays)),
        list(compress(heads.ops, stays)),
        list(compress(heads.inputs, stays)),
    )
    index_now = list(accumulate(stays, initial=0))
    old_names = {}
    for index, node in undone.restored.items():
        now, name = index_now[index], node.name
        if name != before.names[now]:
            old_names[before.names[now]] = name
        before.names[now], before.ops[now] = name, node.op
        before.inputs[now] = tuple(node.input[:])
    dropped = frozenset(map(heads.names.__getitem__, undone.dropped))
    body = Body(
        old.label,
        old.library,
        old.source,
        before,
        old.ret,
        old.signature,
        old.others,
        {index_now[index]: payload for index, payload in undone.payloads.items()},
        cut=cut,
    )
    if body.is_main:
        graph.main = body
    else:
        graph.functions[body.label] = body
    _check_reads(body, dropped, old_names)
    return dropped, old_names


def _check_reads(body: Body, dropped: Collection[str], old_names: Collection[str]) -> None:
    """Raise ModelError where somebody else's node, or a function, reads what a rule added."""
    inputs = body.heads.inputs
    unusual = {*chain.from_iterable(inputs), *body.ret.values()}.difference(body.heads.names)
    for text in sorted(unusual):
        op = names.op_of(text)
        if op not in body.by_name and (op in dropped or op in old_names):
            readers = (Node(body, index) for index, read in enumerate(inputs) if text in read)
            reader = next(map(str, readers), f"function {body.label}")
            raise ModelError(f"{reader} reads {text!r}, which a rule added; it was changed since")


def _drop_functions(graph: Graph) -> frozenset[str]:
    """Drop the functions that rules added, and return their names."""
    gone = frozenset(name for name, body in graph.functions.items() if body.is_ours)
    for body in graph.bodies:
        if not body.is_ours and (calls := gone & set(body.heads.ops)):
            raise ModelError(f"{body.label} calls {min(calls)}, which a rule added, from elsewhere")
    data, cut = graph.source.data, [graph.function_fields[name] for name in gone]
    for library in (part for part in graph.others if part.holds(LIBRARY) and gone):
        for part in fields(data, library.value, library.end):
            if part.number in (GRADIENT, REGISTERED):
                whole = message(FunctionDefLibrary, data[part.start : part.end])
                owners = [gradient.function_name for gradient in whole.gradient]
                owners += [gradient.gradient_func for gradient in whole.registered_gradients]
                cut += [(library, part)] if gone & set(owners) else []
    graph.cut = [*graph.cut, *sorted(cut)]
    for mapping in ("functions", "function_fields"):  # copies of the graph share the latter
        remaining = getattr(graph, mapping).items()
        setattr(graph, mapping, {name: value for name, value in remaining if name not in gone})
    for name in gone:
        del graph.library.signatures[name]
        graph.library.gradients.pop(name, None)
    return gone
