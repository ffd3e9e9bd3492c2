"""Who changed a node: an attr that TensorFlow ignores, written on each node touched or added.

`_graphpatch` is a list of strings, one JSON object an edit, oldest first:
`{"rule": name, "id": fingerprint of the rule, "did": ..., ...}`, where an op was
`added` (`for` the op that the rule was at; `of`: as a clone of that op), `renamed`, `enclosed` in a
function, `shadowed` by another gradient, had an `attr` or `input` changed, or is where an output of
its function is `returned` from, with what was there before, so that the edit can be taken back
(`undo`). On one node of a graph stands besides, as `{"did": "origin", ...}`, what the model was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.nodedef import (
    Payload,
    attr_span,
    attr_value,
    attr_values,
    mentions,
    with_attr,
)

if TYPE_CHECKING:
    from graphpatch.graph.edits import Edit, Origin, Returned
    from graphpatch.graph.graph import Graph

    Written = tuple[tuple[Edit, ...], tuple[Origin, ...]]
from collections.abc import Container

from graphpatch.graph.graph import Graph
from graphpatch.graph.wire import piece_bytes

ORIGIN_BYTES = b'"origin"'


def origin(graph: Graph) -> dict[str, Any]:
    """What the model was before its first rule; nothing where no rule has changed the graph.

    `{"did": "origin", "rules": {id: patch}, ...}`: besides the patch of each rule, what `formats`
    must know of the container. It stays on its node when further rules come.
    """
    node = origin_node(graph)
    found = None if node is None else origin_on(node)
    if found is None:
        return {}
    record: dict[str, Any] = msgspec.to_builtins(found)
    del record["did"]
    return record


def origin_node(graph: Graph) -> Node | None:
    """The node on which it is written down."""
    for body in graph.bodies:
        for node in touched(body):
            span = attr_span(body.payload(node.index), PROVENANCE_ATTR)
            if span is not None and ORIGIN_BYTES in piece_bytes(span) and origin_on(node):
                return node
    return None


def place_for_origin(graph: Graph, among: Container[int] | None = None) -> tuple[Body, int] | None:
    """An edited node: of the main graph, and there one of `among`, or else of a function."""
    for body in graph.bodies:
        for index in sorted(body.edited):
            if among is None or not body.is_main or index in among:
                return body, index
    return None


PROVENANCE_ATTR = "_graphpatch"

E = TypeVar("E", bound="Edit")


class Author(msgspec.Struct, frozen=True):
    """The rule on whose behalf a graph is changed."""

    rule: str
    id: str

    def edit(self, kind: type[E], **details: Any) -> E:
        """One edit by this rule."""
        return kind(rule=self.rule, id=self.id, **details)


def signed(payload: Payload, *more: Edit) -> Payload:
    """The payload with more edits written down."""
    from graphpatch.graph import edits

    span = attr_span(payload, PROVENANCE_ATTR)
    value = AttrValue() if span is None else attr_value(span)
    value.list.s.extend(map(edits.write_entry, more))
    return with_attr(payload, PROVENANCE_ATTR, value.SerializeToString(deterministic=True))


def rewritten(payload: Payload, found: Sequence[Edit | Origin]) -> Payload:
    """The payload with these edits written down, and no others."""
    if not found:
        return with_attr(payload, PROVENANCE_ATTR, None)
    from graphpatch.graph import edits

    value = AttrValue(list=AttrValue.ListValue(s=map(edits.write_entry, found)))
    return with_attr(payload, PROVENANCE_ATTR, value.SerializeToString(deterministic=True))


def entries(node: Node) -> Sequence[Edit]:
    """The edits written down on a node, oldest first; ModelError where they are not ours."""
    found = _written(node)
    return () if found is None else found[0]


def origin_on(node: Node) -> Origin | None:
    """What is written down on a node of the model before its first rule."""
    found = _written(node)
    return None if found is None else next(iter(found[1]), None)


def _written(node: Node) -> Written | None:
    """What a node carries. Asked often, it is read once for what the node is now."""
    body, index = node
    if not body.may_be_signed(index):
        return None
    edited, kept = body.edited.get(index), body.large.written
    if index not in kept or kept[index][0] is not edited:
        kept[index] = edited, _read(node)
    found: Written | None = kept[index][1]
    return found


def _read(node: Node) -> Written | None:
    value = _value(node.body.payload(node.index))
    if value is None:
        return None
    from graphpatch.graph import edits  # most models have none, and need no types for them

    try:
        if value.WhichOneof("value") != "list":
            raise ValueError("it is not a list of edits")
        found = list(map(edits.read_entry, value.list.s))
    except ValueError as error:
        raise ModelError(
            f"{node}: its attr {PROVENANCE_ATTR} is not one that graphpatch wrote: {error}"
        ) from None
    return (
        tuple(one for one in found if isinstance(one, edits.Edit)),
        tuple(one for one in found if isinstance(one, edits.Origin)),
    )


def of_kind(node: Node, kind: str) -> list[Any]:
    """The edits of one kind written down on a node: those that `did` this."""
    return [edit for edit in entries(node) if edit.did == kind]


def is_added(node: Node) -> bool:
    """Whether a rule added an op."""
    return bool(of_kind(node, "added"))


def original_type(node: Node) -> str:
    """The op type that an op had before a rule put it into a function."""
    if not node.body.may_be_signed(node.index):
        return node.op
    return str(next((edit.was for edit in of_kind(node, "enclosed")), node.op))


def clone_of(node: Node) -> str:
    """The op whose clone an op is; "" for other ops."""
    return next((edit.clone_of for edit in of_kind(node, "added") if edit.clone_of), "")


def shadow(node: Node) -> str:
    """The rule that gave an op's outputs another gradient, so that none reaches the op itself."""
    shadowed = (edit for edit in entries(node) if getattr(edit, "shadowed", False))
    return next((edit.rule for edit in shadowed), "")


def key_setter(node: Node, key: str) -> str:
    """The last rule that set an attr of an op; nothing where none did, or took it off again."""
    if not node.body.may_be_signed(node.index) or node.attr(key) is None:
        return ""
    return next((edit.rule for edit in reversed(of_kind(node, "attr")) if edit.attr == key), "")


def name_in_model(node: Node) -> str:
    """The name that an op had before rules gave it another one."""
    return str(next((edit.was for edit in of_kind(node, "renamed")), node.name))


def added_under(body: Body) -> dict[str, int]:
    """By name, the first op that a rule added under the name of another."""
    found: dict[str, int] = {}
    for node in touched(body):
        if is_added(node):
            found.setdefault(name_in_model(node), node.index)
    return found


def clones(body: Body, names: Collection[str]) -> Iterator[Node]:
    """The ops of a body that rules cloned from these."""
    for node in touched(body):
        if any(edit.clone_of in names for edit in of_kind(node, "added")):
            yield node


def all_entries(graph: Graph) -> Iterator[Edit]:
    """The edits written down in a graph."""
    for body in graph.bodies:
        for node in touched(body):
            yield from entries(node)


def touched(body: Body) -> Iterator[Node]:
    """The nodes of a body that carry provenance."""
    for node in may_be_signed(body):
        if _written(node) is not None:
            yield node


def may_be_signed(body: Body) -> list[Node]:
    """The nodes of a body that may carry provenance; quick, as none of them is read."""
    found = {index for some in body.heads.marked for index in some} | body.edited.keys()
    return [Node(body, index) for index in sorted(found)]


def returned(body: Body) -> list[tuple[Node, Returned]]:
    """The outputs of a function that an edit returns from another tensor, the oldest edit first.

    Each is written down on the node that it is returned from.
    """
    return sorted(_returned(body), key=lambda one: one[1].turn)


def turns(body: Body) -> int:
    """The turn of the next such edit."""
    return 1 + max((edit.turn for _, edit in _returned(body)), default=-1)


def _returned(body: Body) -> Iterator[tuple[Node, Returned]]:
    if not body.is_main:
        for node in touched(body):
            yield from ((node, edit) for edit in of_kind(node, "returned"))


def _value(payload: Payload) -> AttrValue | None:
    if not mentions(payload, PROVENANCE_ATTR):
        return None
    if len(payload) == 1 and isinstance(payload[0], bytes):
        return attr_values(payload).get(PROVENANCE_ATTR)
    span = attr_span(payload, PROVENANCE_ATTR)
    return None if span is None else attr_value(span)
