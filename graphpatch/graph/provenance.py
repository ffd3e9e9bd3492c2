"""What a node and a graph were before rules changed them, and which rules did it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import xxhash
from msgspec import structs

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.node import Body, Node, Payload
from graphpatch.graph.record import PROVENANCE_ATTR as PROVENANCE_ATTR
from graphpatch.graph.record import Author, NodeRecord
from graphpatch.graph.wire import Span, message
from graphpatch.protos import FunctionDef, NodeDef

LOST = Author("(a rule whose record is gone)", "")
UNTOUCHED = NodeRecord()


def record(node: Node) -> NodeRecord | None:
    """Return what rules did to a node, or None; ModelError where graphpatch did not write it."""
    return node.body.record(node.index)


def touched(body: Body) -> Iterator[Node]:
    """Yield the nodes of a body that carry a record."""
    return (Node(body, index) for index in body.touched())


def author(body: Body, place: int) -> Author:
    """Return the rule at a place of the model's record."""
    rules = body.library.rules
    return rules[place] if place < len(rules) else LOST


def rules_that_touched(node: Node) -> list[Author]:
    """Return the rules that changed a node in any way, in their order."""
    known = record(node) or UNTOUCHED
    return [author(node.body, place) for place in sorted({*known.rules, *known.inputs})]


def rules_that_patched(node: Node) -> list[Author]:
    """Return the rules that changed a node, without those that only let it read other tensors."""
    return [author(node.body, place) for place in (record(node) or UNTOUCHED).rules]


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
    return (record(node) or UNTOUCHED).clone_of


def original(node: Node) -> NodeDef | None:
    """Return a node before the first rule, without large fields; None if unchanged or added."""
    known = record(node)
    return None if known is None or known.is_added else recorded_original(node, known)


def recorded_original(node: Node, known: NodeRecord) -> NodeDef:
    """Return what the record of a node that no rule added holds of it, as `original`."""
    try:
        return message(NodeDef, b"".join(known.original))
    except ModelError as error:
        raise ModelError(f"{node}: its record holds what is no node: {error}") from None


def in_model(node: Node) -> NodeDef | Node:
    """Return what has the name and op type of an op before the first rule, or its own."""
    return original(node) or node


def shadow(node: Node) -> str:
    """Name the rule that gave an op's outputs another gradient, so that none reaches the op."""
    place = (record(node) or UNTOUCHED).shadow
    return "" if place is None else author(node.body, place).rule


def key_setter(node: Node) -> str:
    """Name the last rule that set the key of an op's gradient; "" where it has none of a rule."""
    keys = (record(node) or UNTOUCHED).keys
    has_key = keys and node.attr(OVERRIDE) is not None
    return author(node.body, keys[-1]).rule if has_key else ""


Written = Sequence[tuple[Body, Mapping[int, bytes]]]


def written_by_rules(graph: Graph) -> Written:
    """Return the nodes that carry a record, of all bodies but those that rules added."""
    return [(body, body.written()) for body in graph.bodies if not body.is_ours]


def checksum_of_rules(graph: Graph, by_rules: Written) -> str:
    """Return a checksum of what rules wrote, and of what all other ops are called and read."""
    digest = xxhash.xxh3_64()
    for body, written in by_rules:
        heads = body.heads
        for index, raw in written.items():
            known = record(Node(body, index)) if b'"model":' in raw else None
            if known is not None:  # without what is written of the model
                proto = message(NodeDef, raw)
                proto.attr[PROVENANCE_ATTR].list.s[0] = structs.replace(known, model=None).json()
                raw = proto.SerializeToString(deterministic=True)
            digest.update(raw)
        others = [index for index in body.in_file_order() if index not in written]
        for column in (heads.names, heads.ops, [*map("\0".join, heads.inputs)]):
            digest.update("\0\0".join([column[index] for index in others]).encode())
        digest.update(repr(sorted(body.ret.items())).encode())
    data = graph.source.data
    ours = [
        message(FunctionDef, data[body.lies[1].value : body.lies[1].end])
        for body in graph.functions.values()
        if body.is_ours
    ]
    for function in (*ours, *graph.added.function):
        digest.update(function.SerializeToString(deterministic=True))
        digest.update(graph.library.gradients.get(function.signature.name, "").encode())
    return str(digest.hexdigest())


def reads_of_patched(by_rules: Written) -> int:
    """Count the inputs of the model, and outputs of its functions, that read what rules touched."""
    count = 0
    for body, written in by_rules:
        heads, size = body.heads, len(body.heads.starts)  # what was added in this run is behind
        signed = [index for index in written if index < size]
        patched = {*heads.names[size:], *(heads.names[index] for index in signed)}
        added = {i for i in signed if i in heads.records and is_added(Node(body, i))}
        inputs = heads.inputs[:size] if patched else []
        others = (read for index, read in enumerate(inputs) if index not in added)
        texts = [*body.ret.values(), *chain.from_iterable(others)]
        # Most inputs are spelled as the op's name: no call for them.
        count += sum(map(patched.__contains__, texts))
        odd = (text for text in texts if ":" in text or text[:1] == "^")
        count += sum(names.op_of(text) in patched for text in odd)
    return count


ADDED = "\0"  # begins the names of ops that a rule added, which no tensor name can


class ModelBody(Body):
    """The model's ops as they were before all rules, each with the index that it has in `now`.

    What rules added is not there, or reads nothing and is read by nothing. Clones are there: the
    gradient flows through them.
    """

    now: Any = None  # a proxy of the body, which keeps this one

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)) if self.is_there(index))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """Return the indices of the ops of each op type."""
        indices: dict[str, list[int]] = {}
        for node in self:
            indices.setdefault(node.op, []).append(node.index)
        return indices

    def payload(self, index: int) -> Payload:
        """Return the NodeDef as it is now; of an op that a rule put into a function, before."""
        now: Body = self.now
        known = now.record(index) if self.heads.ops[index] != now.heads.ops[index] else None
        return now.payload(index) if known is None else Payload(b"".join(known.original))

    def _parsed(self, index: int, key: str = "") -> tuple[NodeDef, tuple[Span, ...]]:
        """Return the same, parsed."""
        now: Body = self.now
        if self.heads.ops[index] == now.heads.ops[index]:
            return now._parsed(index, key)
        return message(NodeDef, self.payload(index).small), ()

    def is_there(self, index: int) -> bool:
        """Tell whether an op is one of the model, or a clone of one."""
        return self.heads.names[index][:1] != ADDED


def as_model(body: Body) -> Body:
    """Return the body without what rules did; itself as long as they did nothing.

    It is kept until a rule clones an op: rules do not change the model otherwise.
    """
    if body.model is None and body.signed():
        body.model = _body_before_rules(body)
    return body if body.model is None else body.model


def op_type_in_model(node: Node) -> str:
    """Return the op type of the model's op of this name, whatever a rule put in its place.

    Of an op that a rule added under a name of its own, that op's type.
    """
    model = as_model(node.body)
    index = model.by_name.get(node.name)
    return node.op if index is None else model.heads.ops[index]


def _body_before_rules(body: Body) -> ModelBody:
    heads, old_names, clones = body.heads.copy(), dict[str, str](), list[Node]()
    for node in touched(body):
        before = original(node)
        if before is not None:
            old_names[node.name] = before.name
            heads.names[node.index], heads.ops[node.index] = before.name, before.op
            heads.inputs[node.index] = tuple(before.input)
        elif clone_of(node):
            clones.append(node)
        else:
            heads.names[node.index], heads.inputs[node.index] = f"{ADDED}{node.index}", ()
    for node in clones:  # which read ops by the names that they have now
        read = ((text, names.op_of(text)) for text in node.inputs)
        heads.inputs[node.index] = tuple(
            text.replace(op, old_names.get(op, op), 1) for text, op in read
        )
    return ModelBody(
        body.label,
        body.library,
        body.source,
        heads,
        {**body.ret, **body.returns},
        body.signature,
        edited=body.edited,
        is_ours=body.is_ours,
        now=weakref.proxy(body),
    )
