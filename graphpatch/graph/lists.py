"""Attrs that say how many tensors a list has: a few bytes must not make millions of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.opdefs import Arg, OpDef

MOST_LISTED = 1 << 14  # tensors of one list, where no input of the node shows them
MOST_IN_ALL = 2_000_000  # outputs of such lists, of all nodes of a graph


def refuse_long_lists(bodies: Iterable[Body]) -> None:
    """Raise ModelError where attrs (`num_split`, `N`) ask for more tensors than graphpatch makes.

    A list of inputs may be as long as the node has inputs, which take bytes of the file each.
    """
    total = 0
    for node, known in (one for body in bodies for one in _with_lists(body)):
        for arg in known.inputs:
            _refuse(node, arg, max(MOST_LISTED, len(node.inputs)))
        total += sum(_refuse(node, arg, MOST_LISTED) for arg in known.outputs)
        if total > MOST_IN_ALL:
            raise ModelError(
                f"lists of outputs have more than {MOST_IN_ALL:,} tensors up to {node}; "
                f"graphpatch reads no more"
            )


def _with_lists(body: Body) -> Iterator[tuple[Node, OpDef]]:
    """The nodes whose op type has a list that an attr says the length of."""
    types = {op: known for op in set(body.heads.ops) if (known := _listing(body, op)) is not None}
    for index, op in enumerate(body.heads.ops if types else ()):
        if op in types:
            yield Node(body, index), types[op]


def _listing(body: Body, op: str) -> OpDef | None:
    known = body.library.opdef(op)
    if known is None or not any(arg.number_attr for arg in (*known.inputs, *known.outputs)):
        return None
    return known


def _refuse(node: Node, arg: Arg, most: int) -> int:
    """How many tensors an attr says that the list has; 0 where it says nothing."""
    value = node.attr(arg.number_attr) if arg.number_attr else None
    count = value.i if value is not None else arg.number_default or 0
    if count > most:
        raise ModelError(
            f"{node}: attr {arg.number_attr!r} asks for {count:,} tensors in the list "
            f"{arg.name!r}; graphpatch reads up to {most:,}"
        )
    return max(count, 0)
