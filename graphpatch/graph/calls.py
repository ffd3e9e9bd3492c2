"""Which ops call functions: as their op type, or in an attr, as PartitionedCall and While do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorboard.compat.proto.function_pb2 import FunctionDef

from graphpatch import opdefs
from graphpatch.graph.body import Body, Node
from graphpatch.graph.wire import message

ATTR = 5  # in FunctionDef
NO_INLINE = "_noinline"  # the attr of a FunctionDef that keeps it from being inlined


def calls(body: Body) -> Iterator[tuple[Node, str]]:
    """The ops of a body that call functions, and which function each calls."""
    functions = body.library.signatures
    for op, indices in body.by_type.items():
        keys = _function_attrs(op)
        for index in indices if keys or op in functions else ():
            node = Node(body, index)
            yield from ((node, name) for name in called_functions(node, keys))


def called_by_op(body: Body) -> dict[int, list[str]]:
    """The functions that each op calls, by the op's index."""
    found: dict[int, list[str]] = {}
    for caller, callee in calls(body):
        found.setdefault(caller.index, []).append(callee)
    return found


def called_functions(node: Node, keys: Sequence[str] | None = None) -> Iterator[str]:
    """The functions that an op calls; `keys` are the attrs of its op type that name functions."""
    if node.op in node.body.library.signatures:
        yield node.op
    for key in _function_attrs(node.op) if keys is None else keys:
        yield from named_by(node, key)


def _function_attrs(op: str) -> list[str]:
    known = opdefs.lookup(op)
    attrs = () if known is None else known.attrs
    return [attr.name for attr in attrs if attr.type in {"func", "list(func)"}]


def named_by(node: Node, key: str) -> list[str]:
    """The functions that an attr of an op names."""
    value = node.attr(key)
    if value is None:
        return []
    return [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]


def may_be_inlined(function: Body) -> bool:
    """Whether a FunctionDef lets its calls be inlined."""
    source, entries = function.source, (part for part in function.others if part.holds(ATTR))
    found = (message(FunctionDef.AttrEntry, source.data[one.value : one.end]) for one in entries)
    return not any(one.key == NO_INLINE and one.value.b for one in found)
