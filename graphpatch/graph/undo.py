"""A graph as it was before the first rule: nodes get back the bytes that they had.

Only for a graph as a file holds it: `editor` has not changed it since. To drop nodes numbers all
others anew; no rule holds the number of one here.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, compress
from typing import NamedTuple

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


class UndoneBody(NamedTuple):
    """A body as it was, with the nodes that were `uncovered`: they are of another op type again.

    `dropped` has the names of the nodes that are gone, `old_names` the older names of others.
    """

    body: Body
    dropped: list[str]
    old_names: dict[str, str]
    uncovered: list[Node]


def undo(graph: Graph) -> UndoneGraph:
    """Take back all that rules did to a graph, and return what that was.

    Raises ModelError where a record is not one that graphpatch writes, or where ops that somebody
    else added read what a rule added.
    """
    record = read_record(graph) or ModelRecord()
    bodies = [_undo_body(graph, body, record.live) for body in graph.bodies if not body.is_ours]
    for undone in bodies:
        if undone.body.is_main:
            graph.main = undone.body
        else:
            graph.functions[undone.body.label] = undone.body
        _check_reads(undone)
    graph.library.rules.clear()
    return UndoneGraph(
        frozenset(bodies[0].dropped),
        bodies[0].old_names,
        _drop_functions(graph),
        record,
        sum(len(undone.body.edited) for undone in bodies),
        sum(len(undone.dropped) for undone in bodies),
        tuple(node for undone in bodies for node in undone.uncovered),
    )


def _undo_body(graph: Graph, now: Body, is_live: bool) -> UndoneBody:
    """Return a body with the nodes as they were, and without those that rules added."""
    heads, stays, cut = now.heads, bytearray(b"\1") * len(now), list(now.cut)
    originals, payloads, dropped = dict[int, NodeDef](), dict[int, Payload](), list[str]()
    for index, record in now.touched().items():
        if record.original:
            originals[index], payloads[index] = _restored(graph, Node(now, index), record, is_live)
            continue
        stays[index], start = 0, heads.starts[index]
        dropped.append(heads.names[index])
        end = entry(now.source, start)[1]
        if cut and cut[-1][1] == start:  # those that lie side by side are cut as one
            start, _ = cut.pop()
        cut.append((start, end))
    before = Heads(
        array("Q", compress(heads.starts, stays)),
        list(compress(heads.names, stays)),
        list(compress(heads.ops, stays)),
        list(compress(heads.inputs, stays)),
    )
    place = list(accumulate(stays, initial=0))
    old_names = {}
    for index, node in originals.items():
        at, name = place[index], node.name
        if name != before.names[at]:
            old_names[before.names[at]] = name
        before.names[at], before.ops[at] = name, node.op
        before.inputs[at] = tuple(node.input[:])
    body = Body(
        now.label,
        now.library,
        now.source,
        before,
        {**now.ret, **now.returns},
        now.signature,
        now.others,
        now.lies,
        {place[index]: payload for index, payload in payloads.items()},
        cut=cut,
    )
    others = (index for index, node in originals.items() if node.op != heads.ops[index])
    return UndoneBody(body, dropped, old_names, [Node(body, place[index]) for index in others])


def _restored(
    graph: Graph, node: Node, record: NodeRecord, is_live: bool
) -> tuple[NodeDef, Payload]:
    """Return a node as it was; ModelError where its record would make another op of it."""
    original, payload = provenance.recorded_original(node, record), node.body.payload(node.index)
    _check_restored(graph, node, original, record, payload)
    parts = record.original
    if is_live and not (node.body.is_main or payload.large):
        data_inputs = [text for text in original.input if text[:1] != "^"]
        if not all(text.count(":") == 2 or text in node.body.arguments for text in data_inputs):
            original.input[:] = node.inputs  # in functions TensorFlow spells them otherwise
            parts = (original.SerializeToString(deterministic=True),)
    return original, Payload.of(parts, payload.large)


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


def _check_reads(undone: UndoneBody) -> None:
    """Raise ModelError where somebody else's node, or a function, reads what a rule added."""
    body, gone = undone.body, {*undone.dropped, *undone.old_names}
    inputs = body.heads.inputs
    unusual = {*chain.from_iterable(inputs), *body.ret.values()}.difference(body.heads.names)
    for text in sorted(unusual):
        op = names.op_of(text)
        if op in gone and op not in body.by_name:
            readers = (Node(body, index) for index, read in enumerate(inputs) if text in read)
            reader = next(map(str, readers), f"function {body.label}")
            raise ModelError(f"{reader} reads {text!r}, which a rule added; it was changed since")


def _drop_functions(graph: Graph) -> frozenset[str]:
    """Drop the functions that rules added, and return their names."""
    gone = frozenset(name for name, body in graph.functions.items() if body.is_ours)
    for body in graph.bodies:
        if not body.is_ours and (calls := gone & set(body.heads.ops)):
            raise ModelError(f"{body.label} calls {min(calls)}, which a rule added, from elsewhere")
    data, cut = graph.source.data, [graph.functions[name].lies for name in gone]
    for library in (part for part in graph.others if part.holds(LIBRARY) and gone):
        for part in fields(data, library.value, library.end):
            if part.number in (GRADIENT, REGISTERED):
                whole = message(FunctionDefLibrary, data[part.start : part.end])
                owners = [gradient.function_name for gradient in whole.gradient]
                owners += [gradient.gradient_func for gradient in whole.registered_gradients]
                cut += [(library, part)] if gone & set(owners) else []
    graph.cut = [*graph.cut, *sorted(cut)]
    for name in gone:
        del graph.functions[name], graph.library.signatures[name]
        graph.library.gradients.pop(name, None)
    return gone
