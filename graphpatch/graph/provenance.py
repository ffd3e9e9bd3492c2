"""Who changed a node, and what it was before: what its record tells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

import xxhash
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, EditedNode, Node
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.record import PROVENANCE_ATTR as PROVENANCE_ATTR
from graphpatch.graph.record import Author, NodeRecord, node_record
from graphpatch.graph.wire import message, piece_bytes

FIELDS = ("rules", "inputs", "keys", "shadow", "patched", "clone_of", "reads")
LOST = Author("(a rule whose record is gone)", "")


def record(node: Node) -> NodeRecord | None:
    """What rules did to a node; None for one that none touched. ModelError where it is not ours."""
    return node.body.record(node.index)


def touched(body: Body) -> Iterator[Node]:
    """The nodes of a body that carry a record."""
    return (node for node in may_be_signed(body) if record(node) is not None)


def may_be_signed(body: Body) -> list[Node]:
    """The nodes of a body that may carry a record; quick, as none of them is read."""
    marked = body.heads.marked
    found = sorted({*marked, *body.edited}) if body.edited else marked
    return [Node(body, index) for index in found]


def authors(node: Node, places: Collection[int]) -> list[Author]:
    """The rules at these places of the model's record."""
    rules = node.body.library.rules
    return [rules[place] if place < len(rules) else LOST for place in places]


def rules_that_touched(node: Node) -> list[Author]:
    """The rules that changed a node in any way, in their order."""
    found = record(node)
    return [] if found is None else authors(node, sorted({*found.rules, *found.inputs}))


def rules_that_patched(node: Node) -> list[Author]:
    """The rules that changed a node, apart from those that only let it read other tensors."""
    found = record(node)
    return [] if found is None else authors(node, found.rules)


def applied_rules(graph: Graph) -> list[Author]:
    """The rules that were applied to a graph, in their order."""
    return list(graph.library.rules)


def patches(graph: Graph) -> Mapping[str, dict[str, Any]]:
    """The patch of each rule that was applied to a graph, by the rule's id; as JSON has it."""
    found = read_record(graph)
    return {} if found is None else {rule.id: rule.patch for rule in found.rules}


def is_added(node: Node) -> bool:
    """Whether a rule added an op."""
    found = record(node)
    return found is not None and found.is_added


def clone_of(node: Node) -> str:
    """The op whose clone an op is; "" for other ops."""
    found = record(node)
    return "" if found is None else found.clone_of


def clones(body: Body, of: Collection[str]) -> Iterator[Node]:
    """The ops of a body that rules cloned from these."""
    return (node for node in touched(body) if clone_of(node) in of)


def original(node: Node) -> NodeDef | None:
    """A node before the first rule, without large fields; None where it is the same, or added."""
    found = record(node)
    if found is None or found.is_added:
        return None
    try:
        return message(NodeDef, b"".join(found.original))
    except ModelError as error:
        raise ModelError(f"{node}: its record holds what is no node: {error}") from None


def original_type(node: Node) -> str:
    """The op type that an op had before a rule put it into a function."""
    was = original(node) if node.body.may_be_signed(node.index) else None
    return node.op if was is None else was.op


def shadow(node: Node) -> str:
    """The rule that gave an op's outputs another gradient, so that none reaches the op itself."""
    found = record(node)
    return "" if found is None or found.shadow is None else authors(node, [found.shadow])[0].rule


def key_setter(node: Node) -> str:
    """The last rule that set the key of an op's gradient; nothing where none did, or it is off."""
    found = record(node)
    if found is None or not found.keys or node.attr(OVERRIDE) is None:
        return ""
    return authors(node, found.keys[-1:])[0].rule


def name_in_model(node: Node) -> str:
    """The name that an op had before rules gave it another one; of an added one its own."""
    was = original(node) if node.body.may_be_signed(node.index) else None
    return node.name if was is None else was.name


name_to_match = name_in_model


def as_written(node: Node) -> bytes:
    """The NodeDef with its record, without large fields and what is written of the model."""
    payload = node.body.payload(node.index)
    raw = piece_bytes(payload[0]) if len(payload) == 1 else b""
    record = node.body.record(node.index)
    if record is None and raw:
        return raw
    if raw and record is not None and record.model is None:
        return raw
    proto = EditedNode.open(payload, record).node
    if record is not None:
        bare = node_record(record.original, **{f: getattr(record, f) for f in FIELDS})
        proto.attr[PROVENANCE_ATTR].list.CopyFrom(bare.attr())
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _is_new(node: Node) -> bool:
    """Whether rules added a node since the file was read, of which no other record is told."""
    body, index = node
    written = body.edited.get(index) if index >= len(body.heads.starts) else None
    return (
        isinstance(written, list)
        and len(written) == 1
        and b'"model":' not in piece_bytes(written[0])
    )


def checksum_of_rules(graph: Graph) -> str:
    """A checksum of what rules wrote, and of what all ops are called and read."""
    total, columns = 0, xxhash.xxh3_64()
    for body in sorted(graph.bodies, key=lambda body: body.label):
        if body.is_ours:
            continue
        added = set()
        for node in may_be_signed(body):
            if _is_new(node):
                total += xxhash.xxh3_64_intdigest(piece_bytes(body.payload(node.index)[0]))
                added.add(node.index)
            elif (record := node.body.record(node.index)) is not None:
                total += xxhash.xxh3_64_intdigest(as_written(node))
                if record.is_added:
                    added.add(node.index)
        heads = body.heads
        for column in (heads.names, heads.ops, map("\0".join, heads.inputs)):
            of_model = (text for index, text in enumerate(column) if index not in added)
            columns.update("\0\0".join(of_model).encode())
        columns.update(repr(sorted(body.ret.items())).encode())
    for function in _functions_of_rules(graph):
        total += xxhash.xxh3_64_intdigest(function)
    return f"{(total + columns.intdigest()) % (1 << 64):016x}"


def reads_of_patched(graph: Graph) -> int:
    """How many inputs of the model, and outputs of its functions, read ops that rules touched."""
    count = 0
    for body in graph.bodies:
        may_be = [] if body.is_ours else may_be_signed(body)
        changed = [node for node in may_be if _is_new(node) or record(node) is not None]
        patched = {node.name for node in changed}
        if patched:
            added = {node.index for node in changed if _is_new(node) or is_added(node)}
            inputs = (one for index, one in enumerate(body.heads.inputs) if index not in added)
            read = chain(chain.from_iterable(inputs), body.ret.values())
            count += sum(text in patched or names.op_of(text) in patched for text in read)
    return count


def _functions_of_rules(graph: Graph) -> Iterator[bytes]:
    """The functions that rules added, and their gradient functions; of a file, or not yet in it."""
    for function in graph.added.function:
        yield function.SerializeToString(deterministic=True)
        yield graph.library.gradients.get(function.signature.name, "").encode()
    for name, (_, part) in graph.function_fields.items():
        if name in graph.functions and graph.functions[name].is_ours:
            raw = graph.source.data[part.value : part.end]
            yield message(FunctionDef, raw).SerializeToString(deterministic=True)
            yield graph.library.gradients.get(name, "").encode()
