"""Who changed a node, and what it was before: what its record tells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.errors import ModelError
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.record import PROVENANCE_ATTR as PROVENANCE_ATTR
from graphpatch.graph.record import Author, NodeRecord
from graphpatch.graph.wire import message

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


def clones(body: Body, names: Collection[str]) -> Iterator[Node]:
    """The ops of a body that rules cloned from these."""
    return (node for node in touched(body) if clone_of(node) in names)


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
