"""Who changed a node: the edits that are written down on nodes, as `edits` reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edits import PROVENANCE_ATTR as PROVENANCE_ATTR
from graphpatch.graph.edits import (
    Added,
    AttrSet,
    Edit,
    Enclosed,
    Origin,
    Renamed,
    Returned,
    Shadowed,
    Written,
    read_entry,
)
from graphpatch.graph.graph import Graph
from graphpatch.graph.nodedef import Payload, attr_span, attr_value, attr_values, mentions
from graphpatch.graph.wire import piece_bytes

ORIGIN_BYTES = b'"origin"'

E = TypeVar("E", bound=Edit)


def entries(node: Node) -> tuple[Edit, ...]:
    """The edits written down on a node, oldest first; ModelError where they are not ours."""
    found = _written(node)
    return () if found is None else found.edits


def edits_of(node: Node, kind: type[E]) -> list[E]:
    """Those of one kind."""
    return [edit for edit in entries(node) if isinstance(edit, kind)]


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


def added(node: Node) -> Added | None:
    """The edit that added an op; None for an op that no rule added."""
    return next(iter(edits_of(node, Added)), None)


def is_added(node: Node) -> bool:
    """Whether a rule added an op."""
    return added(node) is not None


def clone_of(node: Node) -> str:
    """The op whose clone an op is; "" for other ops."""
    edit = added(node)
    return "" if edit is None else edit.clone_of


def clones(body: Body, names: Collection[str]) -> Iterator[Node]:
    """The ops of a body that rules cloned from these."""
    return (node for node in touched(body) if clone_of(node) in names)


def original_type(node: Node) -> str:
    """The op type that an op had before a rule put it into a function."""
    if not node.body.may_be_signed(node.index):
        return node.op
    return next((edit.was for edit in edits_of(node, Enclosed)), node.op)


def shadow(node: Node) -> str:
    """The rule that gave an op's outputs another gradient, so that none reaches the op itself."""
    for edit in entries(node):
        if isinstance(edit, Renamed | Shadowed) and edit.shadowed:
            return edit.rule
    return ""


def key_setter(node: Node, key: str) -> str:
    """The last rule that set an attr of an op; nothing where none did, or took it off again."""
    if not node.body.may_be_signed(node.index) or node.attr(key) is None:
        return ""
    edits = reversed(edits_of(node, AttrSet))
    return next((edit.rule for edit in edits if edit.attr == key), "")


def name_in_model(node: Node) -> str:
    """The name that an op had before rules gave it another one."""
    return next((edit.was for edit in edits_of(node, Renamed)), node.name)


def name_to_match(node: Node) -> str:
    """The name by which a match means an op: the one in the model, of what was added its own."""
    if not node.body.may_be_signed(node.index) or is_added(node):
        return node.name
    return name_in_model(node)


def returned(body: Body) -> list[tuple[Node, Returned]]:
    """The outputs of a function that an edit returns from another tensor, the oldest edit first.

    Each is written down on the node that it is returned from.
    """
    nodes = () if body.is_main else touched(body)
    found = [(node, edit) for node in nodes for edit in edits_of(node, Returned)]
    return sorted(found, key=lambda one: one[1].turn)


def origin(graph: Graph) -> Origin | None:
    """What the model was before its first rule; None where no rule has changed the graph.

    It stays on its node when further rules come. graphpatch 0.1.0 did not write it down.
    """
    node = origin_node(graph)
    found = None if node is None else _written(node)
    return None if found is None else found.origin


def patches(graph: Graph) -> Mapping[str, dict[str, Any]]:
    """The patch of each rule that was applied to a graph, by the rule's id; as JSON has it."""
    found = origin(graph)
    return {} if found is None else found.rules


def origin_node(graph: Graph) -> Node | None:
    """The node on which it is written down what the model was."""
    for body in graph.bodies:
        for node in touched(body):
            span = attr_span(body.payload(node.index), PROVENANCE_ATTR)
            if span is not None and ORIGIN_BYTES in piece_bytes(span):
                found = _written(node)
                if found is not None and found.origin is not None:
                    return node
    return None


def _written(node: Node) -> Written | None:
    """What a node carries. Asked often, it is read once for what the node is now."""
    body, index = node
    if not body.may_be_signed(index):
        return None
    edited, kept = body.edited.get(index), body.large.written
    if index not in kept or kept[index][0] is not edited:
        kept[index] = edited, _read(node)
    return kept[index][1]


def _read(node: Node) -> Written | None:
    value = _value(node.body.payload(node.index))
    if value is None:
        return None
    try:
        if value.WhichOneof("value") != "list":
            raise ValueError("it is not a list of edits")
        found = list(map(read_entry, value.list.s))
    except ValueError as error:
        raise ModelError(
            f"{node}: its attr {PROVENANCE_ATTR} is not one that graphpatch wrote: {error}"
        ) from None
    return Written(
        tuple(one for one in found if isinstance(one, Edit)),
        next((one for one in found if isinstance(one, Origin)), None),
    )


def _value(payload: Payload) -> AttrValue | None:
    if not mentions(payload, PROVENANCE_ATTR):
        return None
    if len(payload) == 1 and isinstance(payload[0], bytes):
        return attr_values(payload).get(PROVENANCE_ATTR)
    span = attr_span(payload, PROVENANCE_ATTR)
    return None if span is None else attr_value(span)
