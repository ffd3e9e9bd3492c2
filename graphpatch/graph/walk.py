"""Who reads what in a body: tensors by name, and all that lies before or behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.names import TensorName
from graphpatch.opdefs import FlatArg, tensor_index

Passes = Callable[[int], bool]
"""Whether an op, by its index, is one of those that are meant."""


def anywhere(index: int) -> bool:
    """Every op is."""
    return True


def nowhere(index: int) -> bool:
    """No op is."""
    return False


def first_producers(node: Node | None) -> Iterator[Node]:
    """An op, the op that its first data input comes from, and so on; on a circle, each op once."""
    seen: set[int] = set()
    while node is not None and node.index not in seen:
        yield node
        seen.add(node.index)
        node = node.body.producer(node.data_inputs[0]) if node.data_inputs else None


def tensor_named(body: Body, text: str) -> TensorName | None:
    """The tensor that a user means by `op`, `op:1` or, in a function, `op:arg:0`; None if none.

    In a function `op:1` is understood too, and the name of an argument is the tensor it gives.
    """
    found = names.parse(text)
    index = body.by_name.get(found.op)
    if found.control or (body.is_main and found.arg):
        return None
    if index is None:
        is_argument = found.op in body.arguments and not found.arg and not found.index
        return found if is_argument else None
    flat = _outputs(Node(body, index))
    if flat is None:
        return found
    if found.arg:
        return None if tensor_index(flat, found.arg, found.index) is None else found
    if found.index >= len(flat):
        return None
    one = flat[found.index]
    return found if body.is_main else TensorName(found.op, one.index, one.name)


def _outputs(node: Node) -> list[FlatArg] | None:
    """The outputs of an op; None where its type is unknown, or its attrs don't tell them."""
    try:
        return node.outputs
    except ModelError:
        return None


def readers_of(body: Body, tensor: TensorName) -> Iterator[tuple[int, int]]:
    """Who reads a tensor: the op's index, and the slot in its NodeDef.input."""
    inputs = body.heads.inputs
    for index, slot in body.readers.get(tensor.op, ()):
        if names.parse(inputs[index][slot]) == tensor:
            yield index, slot


def data_uses(body: Body, op: str) -> Iterator[tuple[int, int, str]]:
    """Who reads a tensor of an op: the reader's index, the slot, and how the tensor is spelled."""
    inputs = body.heads.inputs
    for index, slot in body.readers.get(op, ()):
        text = inputs[index][slot]
        if not text.startswith("^"):
            yield index, slot, text


def in_order(reads: Sequence[Collection[int]]) -> Iterator[int]:
    """The numbers of ops, each behind those that it reads, without those on circles and behind."""
    readers: list[list[int]] = [[] for _ in reads]
    for index, others in enumerate(reads):
        for other in others:
            readers[other].append(index)
    waits = [len(others) for others in reads]
    ready = [index for index, count in enumerate(waits) if not count]
    for index in ready:
        yield index
        for reader in readers[index]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)


def upstream(
    body: Body,
    tensors: Iterable[TensorName],
    control: bool = False,
    through: Passes = anywhere,
    last: Passes = nowhere,
) -> bytearray:
    """Marks, by index, all ops that these tensors are computed from, their own ops included.

    With `control`, those that run before them too. Other ops than those `through` which it leads
    are left out; what lies before the `last` is not looked at. Linear in the size of what is
    found; loops are followed once.
    """
    by_name, inputs = body.by_name, body.heads.inputs
    marks = bytearray(len(body))
    stack = [by_name[tensor.op] for tensor in tensors if tensor.op in by_name]
    while stack:
        index = stack.pop()
        if marks[index] or not through(index):
            continue
        marks[index] = 1
        if last(index):
            continue
        for text in inputs[index]:
            if control or not text.startswith("^"):
                producer = by_name.get(names.op_of(text))
                if producer is not None and not marks[producer]:
                    stack.append(producer)
    return marks


def downstream(
    body: Body,
    tensors: Iterable[TensorName],
    control: bool = False,
    through: Passes = anywhere,
    last: Passes = nowhere,
) -> bytearray:
    """Marks, by index, all ops that depend on one of these tensors.

    The op that gives a tensor is not among them, unless a loop leads back to it. With `control`,
    those that run after it are, too. Other ops than those `through` which it leads are left out;
    what lies behind the `last` is not looked at. Linear in the size of what is found.
    """
    op_names, inputs, readers = body.heads.names, body.heads.inputs, body.readers
    marks = bytearray(len(body))
    stack: list[int] = []
    for tensor in tensors:
        stack += [index for index, _ in readers_of(body, tensor)]
        if control:
            uses = readers.get(tensor.op, ())
            stack += [index for index, slot in uses if inputs[index][slot].startswith("^")]
    while stack:
        index = stack.pop()
        if marks[index] or not through(index):
            continue
        marks[index] = 1
        if last(index):
            continue
        for reader, slot in readers.get(op_names[index], ()):
            if not marks[reader] and (control or not inputs[reader][slot].startswith("^")):
                stack.append(reader)
    return marks


def uses(node: Node, output: int) -> list[tuple[Node, int]]:
    """Who reads this output: the op, and the slot in its NodeDef.input."""
    tensor, body = node.tensor(output), node.body
    return [
        (Node(body, index), slot)
        for index, slot in body.readers.get(node.name, ())
        if _same_tensor(body.heads.inputs[index][slot], tensor)
    ]


def _same_tensor(text: str, other: str) -> bool:
    return names.parse(text) == names.parse(other) and not text.startswith("^")
