"""Where an op that is added comes to stand: its name, its index, its place in the file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from graphpatch import names
from graphpatch.graph.body import Body, Node
from graphpatch.graph.inputs import add_use
from graphpatch.graph.long_order import LongOrder

LONG = 200  # ops beside one another from which on a list is too slow to search


class TakenNames:
    """The names that an op of a body cannot have: those of its ops and of its arguments."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def __contains__(self, name: object) -> bool:
        return name in self.body.by_name or name in self.body.arguments


def append(body: Body, name: str, op: str, inputs: tuple[str, ...]) -> Node:
    """The node of a new op behind all others, without a payload yet."""
    return Node(body, append_all(body, [name], [op], [inputs]))


def append_all(
    body: Body, new: Sequence[str], ops: Sequence[str], inputs: Sequence[tuple[str, ...]]
) -> int:
    """The same for several ops, by names, op types and inputs; the index of the first."""
    heads, first = body.heads, len(body)
    heads.names += new
    heads.ops += ops
    heads.inputs += inputs
    body.by_name.update(zip(new, range(first, len(body)), strict=True))
    # The cached indices are kept up to date where they were made: making them anew is linear.
    if "by_type" in body.__dict__:
        lists = defaultdict(list, body.by_type)
        for index, op in enumerate(ops, first):
            lists[op].append(index)
        body.by_type.update(lists)
    if "readers" in body.__dict__:
        for index, read in enumerate(inputs, first):
            for slot, text in enumerate(read):
                add_use(body, names.op_of(text), (index, slot))
    return first


def rename(body: Body, index: int, name: str) -> None:
    """Let an op have another name; who reads the old one reads what takes it."""
    was = body.heads.names[index]
    body.heads.names[index] = name
    body.by_name[name] = body.by_name.pop(was)
    if index not in body.root:
        body.renamed.setdefault(index, was)


def rename_all(body: Body, indices: Sequence[int], new: Sequence[str]) -> None:
    """The same for several ops; none of the new names may be that of an op yet."""
    old = [body.heads.names[index] for index in indices]
    body.by_name.update(zip(new, map(body.by_name.pop, old), strict=True))
    for index, name, was in zip(indices, new, old, strict=True):
        body.heads.names[index] = name
        if index not in body.root:
            body.renamed.setdefault(index, was)


def place_beside(new: Node, beside: int, before: bool) -> None:
    """Write a new op next to another, behind what it reads: files stay in topological order."""
    body = new.body
    root = body.root.get(beside, beside)
    order = body.placed.setdefault(root, [root])
    if len(order) == LONG and isinstance(order, list):
        order = body.placed[root] = LongOrder(order)
    at = order.index(beside)
    if not before:
        read = {body.by_name.get(names.op_of(text)) for text in new.inputs}
        mine = (one for one in read if one is not None and body.root.get(one, one) == root)
        at = max([at, *map(order.index, mine)]) + 1
    order.insert(at, new.index)
    body.root[new.index] = root
