"""What a node and a graph were before rules changed them, and which rule did it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import xxhash
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.node import Body, EditedNode, Node, Payload, mentions
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


ADDED = "\0"  # begins the names of ops that a rule added, which no tensor name can
CACHE = "model"


class ModelBody(Body):
    """Names, op types and inputs of the model's ops, each with the index that it has in `now`.

    What rules added is not there, or reads nothing and is read by nothing. Clones are there: the
    gradient flows through them. `seen` is how many nodes `now` had when it was looked at, and
    `is_undone` whether rules had done something then.
    """

    now: weakref.ref[Body] | None = None
    seen: int = 0
    is_undone: bool = False

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)) if self.is_there(index))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """The indices of the ops of each op type."""
        found: dict[str, list[int]] = {}
        for node in self:
            found.setdefault(node.op, []).append(node.index)
        return found

    def payload(self, index: int) -> Payload:
        """The serialized NodeDef as it is now; of an op that a rule put into a function, before."""
        now = self.body_now()
        if index >= len(self) or self.heads.ops[index] == now.heads.ops[index]:
            return now.payload(index)
        record = now.record(index)
        return now.payload(index) if record is None else [b"".join(record.original)]

    def record(self, index: int) -> NodeRecord | None:
        """What rules did to a node."""
        return self.body_now().record(index)

    def body_now(self) -> Body:
        """The body with what rules did."""
        now = self.now() if self.now is not None else None
        assert now is not None, "it is asked while the graph is there"
        return now

    def is_there(self, index: int) -> bool:
        """Whether an op is one of the model, or a clone of one."""
        return self.heads.names[index][:1] != ADDED


def as_model(body: Body) -> Body:
    """The body without what rules did; itself as long as they did nothing.

    It is kept, as rules do not change the model: to be asked before the first rule edits the body
    makes it cheap.
    """
    kept = body.__dict__.get(CACHE)
    if kept is None or not _still_holds(kept, body):
        kept = body.__dict__[CACHE] = _made(body)
    return kept if body.edited or kept.is_undone else body


def op_type_in_model(node: Node) -> str:
    """The op type of the model's op of this name, whatever a rule put in its place.

    Of an op that a rule added under a name of its own, that op's type.
    """
    model = as_model(node.body)
    index = model.by_name.get(node.name)
    return node.op if index is None else model.heads.ops[index]


def _still_holds(kept: ModelBody, body: Body) -> bool:
    """Whether nothing was added since but what is not the model's, and nothing dropped."""
    if len(body) < kept.seen or any(_may_be_clone(body, n) for n in range(kept.seen, len(body))):
        return False
    kept.seen = len(body)
    return True


def _may_be_clone(body: Body, index: int) -> bool:
    edited = body.edited.get(index)
    if isinstance(edited, list) and not mentions(edited, '"of":'):
        return False  # as all that templates write
    record = body.record(index)
    return record is not None and bool(record.clone_of)


def _made(body: Body) -> ModelBody:
    heads = body.heads.copy()
    model = ModelBody(
        body.label,
        body.library,
        body.source,
        heads,
        {**body.ret, **body.returns},
        body.signature,
        edited=body.edited,
        is_ours=body.is_ours,
        now=weakref.ref(body),
        seen=len(body),
    )
    touched = list(provenance.touched(body))
    model.is_undone = bool(touched)
    for node in touched:
        was = provenance.original(node)
        if was is not None:
            heads.names[node.index], heads.ops[node.index] = was.name, was.op
            heads.inputs[node.index] = tuple(was.input)
        elif not provenance.clone_of(node):
            heads.names[node.index], heads.inputs[node.index] = f"{ADDED}{node.index}", ()
    now = {node.name: heads.names[node.index] for node in touched}
    for node in touched:
        if provenance.clone_of(node):  # reads ops by the names that they have now
            heads.inputs[node.index] = tuple(_as_model_reads(text, now) for text in node.inputs)
    return model


def _as_model_reads(text: str, was: dict[str, str]) -> str:
    op = names.op_of(text)
    if was.get(op, op) == op or was[op].startswith(ADDED):
        return text
    return text.replace(op, was[op], 1)
