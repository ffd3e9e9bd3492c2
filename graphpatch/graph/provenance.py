"""What a node and a graph were before rules changed them, and which rules did it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import chain, compress
from typing import Any

import xxhash

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.node import Body, EditedNode, Node, Payload, carries_record, mentions
from graphpatch.graph.record import PROVENANCE_ATTR as PROVENANCE_ATTR
from graphpatch.graph.record import Author, NodeRecord, node_record
from graphpatch.graph.wire import message, piece_bytes
from graphpatch.protos import FunctionDef, NodeDef

FIELDS = ("rules", "inputs", "keys", "shadow", "patched", "clone_of", "reads")
LOST = Author("(a rule whose record is gone)", "")


def record(node: Node) -> NodeRecord | None:
    """Return what rules did to a node, or None; ModelError where graphpatch did not write it."""
    return node.body.record(node.index)


def touched(body: Body) -> Iterator[Node]:
    """Yield the nodes of a body that carry a record."""
    return (Node(body, index) for index in body.touched())


def may_be_signed(body: Body) -> list[Node]:
    """Return the nodes of a body that may carry a record, without reading them."""
    return [Node(body, index) for index in sorted({*body.heads.marked, *body.edited})]


def authors(node: Node, places: Collection[int]) -> list[Author]:
    """Return the rules at these places of the model's record."""
    rules = node.body.library.rules
    return [rules[place] if place < len(rules) else LOST for place in places]


def rules_that_touched(node: Node) -> list[Author]:
    """Return the rules that changed a node in any way, in their order."""
    known = record(node)
    return [] if known is None else authors(node, sorted({*known.rules, *known.inputs}))


def rules_that_patched(node: Node) -> list[Author]:
    """Return the rules that changed a node, without those that only let it read other tensors."""
    known = record(node)
    return [] if known is None else authors(node, known.rules)


def patches(graph: Graph) -> Mapping[str, dict[str, Any]]:
    """Return the patch of each rule that was applied to a graph as JSON, by the rule's id."""
    known = read_record(graph)
    return {} if known is None else {rule.id: rule.patch for rule in known.rules}


def is_added(node: Node) -> bool:
    """Tell whether a rule added an op."""
    known = record(node)
    return known is not None and known.is_added


def clone_of(node: Node) -> str:
    """Return the op whose clone an op is; "" for other ops."""
    known = record(node)
    return "" if known is None else known.clone_of


def clones(body: Body, of: Collection[str]) -> Iterator[Node]:
    """Yield the ops of a body that rules cloned from these."""
    return (node for node in touched(body) if clone_of(node) in of)


def original(node: Node) -> NodeDef | None:
    """Return a node before the first rule, without large fields; None if unchanged or added."""
    known = record(node)
    if known is None or known.is_added:
        return None
    try:
        return message(NodeDef, b"".join(known.original))
    except ModelError as error:
        raise ModelError(f"{node}: its record holds what is no node: {error}") from None


def original_type(node: Node) -> str:
    """Return the op type that an op had before a rule put it into a function."""
    before = original(node)
    return node.op if before is None else before.op


def name_in_model(node: Node) -> str:
    """Return the name that an op had before rules gave it another one; of an added one its own."""
    before = original(node)
    return node.name if before is None else before.name


def shadow(node: Node) -> str:
    """Name the rule that gave an op's outputs another gradient, so that none reaches the op."""
    known = record(node)
    return "" if known is None or known.shadow is None else authors(node, [known.shadow])[0].rule


def key_setter(node: Node) -> str:
    """Name the last rule that set the key of an op's gradient; "" where it has none of a rule."""
    known = record(node)
    if known is None or not known.keys or node.attr(OVERRIDE) is None:
        return ""
    return authors(node, known.keys[-1:])[0].rule


def as_written(node: Node) -> bytes:
    """Return the NodeDef with its record, without large fields and what is written of the model."""
    payload = node.body.payload(node.index)
    known = record(node)
    if len(payload) == 1 and (known is None or known.model is None):
        return piece_bytes(payload[0])
    proto = EditedNode.open(payload, known).node
    if known is not None:
        without_model = {field: getattr(known, field) for field in FIELDS}
        bare = node_record(known.original, **without_model)
        proto.attr[PROVENANCE_ATTR].list.CopyFrom(bare.attr())
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _signed(body: Body) -> Iterator[tuple[int, Payload]]:
    """Yield the nodes that carry a record, which is not read, with their payloads."""
    size = len(body.heads.starts)
    for index in {*body.heads.marked, *body.edited}:
        payload = body.payload(index)
        if index >= size or carries_record(payload):  # what was added in this run does
            yield index, payload


def checksum_of_rules(graph: Graph) -> str:
    """Return a checksum of what rules wrote, and of what all other ops are called and read."""
    total, columns = 0, xxhash.xxh3_64()
    for body in sorted(graph.bodies, key=lambda body: body.label):
        if body.is_ours:
            continue
        is_of_model = bytearray(b"\1") * len(body)
        for index, payload in _signed(body):
            is_of_model[index] = 0
            raw = payload[0] if len(payload) == 1 else b""
            if not isinstance(raw, bytes) or not raw or b'"model":' in raw:
                raw = as_written(Node(body, index))
            total += xxhash.xxh3_64_intdigest(raw)
        heads = body.heads
        for column in (heads.names, heads.ops, map("\0".join, heads.inputs)):
            columns.update("\0\0".join(compress(column, is_of_model)).encode())
        columns.update(repr(sorted(body.ret.items())).encode())
    for function in _functions_of_rules(graph):
        total += xxhash.xxh3_64_intdigest(function)
    return f"{(total + columns.intdigest()) % (1 << 64):016x}"


def _functions_of_rules(graph: Graph) -> Iterator[bytes]:
    """Yield the functions that rules added, of a file or not, and their gradient functions."""
    for function in graph.added.function:
        yield function.SerializeToString(deterministic=True)
        yield graph.library.gradients.get(function.signature.name, "").encode()
    for name, (_, part) in graph.function_fields.items():
        if name in graph.functions and graph.functions[name].is_ours:
            raw = graph.source.data[part.value : part.end]
            yield message(FunctionDef, raw).SerializeToString(deterministic=True)
            yield graph.library.gradients.get(name, "").encode()


def reads_of_patched(graph: Graph) -> int:
    """Count the inputs of the model, and outputs of its functions, that read what rules touched."""
    count = 0
    for body in graph.bodies:
        names_now, size, is_of_model = body.heads.names, len(body.heads.starts), bytearray(b"\1")
        is_of_model *= size  # what was added in this run stands behind
        patched = set(names_now[size:])
        for index, _ in () if body.is_ours else _signed(body):
            patched.add(names_now[index])
            if index in body.marks:  # else it was not added in an earlier run
                is_of_model[index] = not is_added(Node(body, index))
        if patched:
            inputs = chain.from_iterable(compress(body.heads.inputs, is_of_model))
            for text in chain(inputs, body.ret.values()):
                # Most inputs are spelled as the op's name: no call for them.
                is_plain = ":" not in text and text[:1] != "^"
                count += text in patched or (not is_plain and names.op_of(text) in patched)
    return count


ADDED = "\0"  # begins the names of ops that a rule added, which no tensor name can
CACHE = "model"


class ModelBody(Body):
    """The model's ops as they were before all rules, each with the index that it has in `now`.

    What rules added is not there, or reads nothing and is read by nothing. Clones are there: the
    gradient flows through them. `size` is how many nodes `now` had when this was made or asked for
    last, and `is_undone` tells whether rules had done something then.
    """

    now: weakref.ref[Body] | None = None
    size: int = 0
    is_undone: bool = False

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)) if self.is_there(index))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """The indices of the ops of each op type."""
        indices: dict[str, list[int]] = {}
        for node in self:
            indices.setdefault(node.op, []).append(node.index)
        return indices

    def payload(self, index: int) -> Payload:
        """Return the NodeDef as it is now; of an op that a rule put into a function, before."""
        now = self._now()
        known = None
        if index < len(self) and self.heads.ops[index] != now.heads.ops[index]:
            known = now.record(index)
        return now.payload(index) if known is None else [b"".join(known.original)]

    def record(self, index: int) -> NodeRecord | None:
        """Return what rules did to a node."""
        return self._now().record(index)

    def touched(self) -> Mapping[int, NodeRecord]:
        """Return what rules did to nodes, by their indices."""
        return self._now().touched()

    def is_there(self, index: int) -> bool:
        """Tell whether an op is one of the model, or a clone of one."""
        return self.heads.names[index][:1] != ADDED

    def _now(self) -> Body:
        now = self.now() if self.now is not None else None
        assert now is not None, "it is asked while the graph is there"
        return now


def as_model(body: Body) -> Body:
    """Return the body without what rules did; itself as long as they did nothing.

    It is kept, as rules do not change the model: ask before the first rule edits the body.
    """
    model = body.__dict__.get(CACHE)
    if model is None or len(body) < model.size or _has_clone_since(body, model.size):
        model = body.__dict__[CACHE] = _body_before_rules(body)
    model.size = len(body)
    return model if body.edited or model.is_undone else body


def op_type_in_model(node: Node) -> str:
    """Return the op type of the model's op of this name, whatever a rule put in its place.

    Of an op that a rule added under a name of its own, that op's type.
    """
    model = as_model(node.body)
    index = model.by_name.get(node.name)
    return node.op if index is None else model.heads.ops[index]


def _has_clone_since(body: Body, size: int) -> bool:
    """Tell whether rules cloned an op after the first `size` nodes."""
    for index in range(size, len(body)):
        payload = body.edited.get(index)
        is_template = isinstance(payload, list) and not mentions(payload, '"of":')
        if not is_template and clone_of(Node(body, index)):
            return True
    return False


def _body_before_rules(body: Body) -> ModelBody:
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
    )
    changed = list(touched(body))
    model.is_undone = bool(changed)
    for node in changed:
        before = original(node)
        if before is not None:
            heads.names[node.index], heads.ops[node.index] = before.name, before.op
            heads.inputs[node.index] = tuple(before.input)
        elif not clone_of(node):
            heads.names[node.index], heads.inputs[node.index] = f"{ADDED}{node.index}", ()
    in_model = {node.name: heads.names[node.index] for node in changed}
    for node in changed:
        if clone_of(node):  # it reads ops by the names that they have now
            read = []
            for text in node.inputs:
                op = names.op_of(text)
                before_name = in_model.get(op, op)
                is_renamed = before_name != op and not before_name.startswith(ADDED)
                read.append(text.replace(op, before_name, 1) if is_renamed else text)
            heads.inputs[node.index] = tuple(read)
    return model
