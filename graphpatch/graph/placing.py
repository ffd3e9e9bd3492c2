"""Where an op that is added comes to stand: its name, its index, its place in the file."""

from __future__ import annotations

from graphpatch import names
from graphpatch.graph.body import Body, Node


class Taken:
    """The names that an op of a body cannot have: those of its ops and of its arguments."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def __contains__(self, name: object) -> bool:
        return name in self.body.by_name or name in self.body.arguments


def append(body: Body, name: str, op: str, inputs: tuple[str, ...]) -> Node:
    """The node of a new op behind all others, without a payload yet."""
    index = len(body)
    body.heads.names.append(name)
    body.heads.ops.append(op)
    body.heads.inputs.append(inputs)
    body.by_name[name] = index
    # The cached indices are kept up to date where they were made: making them anew is linear.
    if "by_type" in body.__dict__:
        body.by_type.setdefault(op, []).append(index)
    if "readers" in body.__dict__:
        for slot, text in enumerate(inputs):
            body.readers.setdefault(names.op_of(text), []).append((index, slot))
    return Node(body, index)


def rename(body: Body, index: int, name: str) -> None:
    """Let an op have another name; who reads the old one reads what takes it."""
    was = body.heads.names[index]
    body.heads.names[index] = name
    body.by_name[name] = body.by_name.pop(was)
    if index not in body.root:
        body.renamed.setdefault(index, was)


def place(new: Node, beside: int, before: bool) -> None:
    """Write a new op next to another, behind what it reads: files stay in topological order."""
    body = new.body
    root = body.root.get(beside, beside)
    order = body.placed.setdefault(root, [root])
    at = order.index(beside)
    if not before:
        read = {body.by_name.get(names.op_of(text)) for text in new.inputs}
        at = max(at, *(place for place, index in enumerate(order) if index in read | {beside})) + 1
    order.insert(at, new.index)
    body.root[new.index] = root
