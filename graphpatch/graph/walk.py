"""Who reads what in a body: tensors by name, and all that lies before or behind them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import NEXTS
from graphpatch.names import TensorName
from graphpatch.opdefs import tensor_index
from graphpatch.shown import plural

T = TypeVar("T", bound=Hashable)
Passes = Callable[[int], bool]
"""Whether an op, by its index, is one of those that are meant."""


def reached(starts: Iterable[T], after: Callable[[T], Iterable[T]]) -> dict[T, int]:
    """Return all that is reached from some starts, nearest first, each with how many steps off."""
    steps = dict.fromkeys(starts, 0)
    todo = list(steps)
    for number in todo:
        step = steps[number] + 1
        for following in after(number):
            if following not in steps:
                steps[following] = step
                todo.append(following)
    return steps


def first_producers(node: Node | None) -> Iterator[Node]:
    """Yield an op, the op that its first data input comes from, and so on; on a circle, once."""
    visited: set[int] = set()
    while node is not None and node.index not in visited:
        yield node
        visited.add(node.index)
        node = node.body.producer(node.data_inputs[0]) if node.data_inputs else None


def outputs_there(bodies: Iterable[Body], tensor: str) -> str:
    """Say how many outputs the op of a tensor has that is not there; nothing where no op has it."""
    for body in bodies:
        node = body.producer(tensor)
        if node is not None and node.outputs is not None and tensor_named(body, tensor) is None:
            return f"{node} has {plural(len(node.outputs), 'output')}, counted from 0"
    return ""


def tensor_named(body: Body, text: str) -> TensorName | None:
    """Return the tensor that a user means by `op`, `op:1` or, in a function, `op:arg:0`; or None.

    In a function `op:1` is understood too, and the name of an argument is the tensor it gives.
    """
    tensor = names.parse(text)
    index = body.by_name.get(tensor.op)
    if tensor.control or (body.is_main and tensor.arg):
        return None
    if index is None:
        is_argument = tensor.op in body.arguments and not tensor.arg and not tensor.index
        return tensor if is_argument else None
    try:
        outputs = Node(body, index).outputs
    except ModelError:  # its attrs don't tell them
        outputs = None
    if outputs is None:
        return tensor
    if tensor.arg:
        return None if tensor_index(outputs, tensor.arg, tensor.index) is None else tensor
    if tensor.index >= len(outputs):
        return None
    output = outputs[tensor.index]
    return tensor if body.is_main else TensorName(tensor.op, output.index, output.name)


def tensors_in(body: Body, wanted: Iterable[str]) -> list[TensorName]:
    """Return the tensors of these names that a body has."""
    tensors = (tensor_named(body, text) for text in wanted)
    return [tensor for tensor in tensors if tensor is not None]


def readers_of(body: Body, tensor: TensorName) -> Iterator[tuple[int, int]]:
    """Yield who reads a tensor: the op's index, and the slot in its NodeDef.input."""
    inputs = body.heads.inputs
    for index, slot in body.readers.get(tensor.op, ()):
        if names.parse(inputs[index][slot]) == tensor:
            yield index, slot


def uses(node: Node, output: int) -> list[tuple[Node, int]]:
    """Return who reads this output: the op, and the slot in its NodeDef.input."""
    tensor = names.parse(node.tensor(output))
    return [(Node(node.body, index), slot) for index, slot in readers_of(node.body, tensor)]


def data_uses(body: Body, op: str) -> Iterator[tuple[int, int, str]]:
    """Yield who reads a tensor of an op: the reader's index, the slot, and the tensor's name."""
    inputs = body.heads.inputs
    for index, slot in body.readers.get(op, ()):
        text = inputs[index][slot]
        if not text.startswith("^"):
            yield index, slot, text


def in_order(reads: Mapping[int, Collection[int]]) -> Iterator[int]:
    """Yield ops, by their numbers, each behind those that it reads; none on a circle or behind."""
    readers: dict[int, list[int]] = {index: [] for index in reads}
    for index, producers in reads.items():
        for producer in producers:
            readers[producer].append(index)
    waits = {index: len(producers) for index, producers in reads.items()}
    ready = [index for index, count in waits.items() if not count]
    for index in ready:
        yield index
        for reader in readers[index]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)


def depths(body: Body) -> list[int]:
    """Return of each op the length of the longest path to it, control inputs apart.

    What a loop's NextIteration gives back is left out, so that a loop is as deep as its body. Ops
    on any other circle, and those behind them, are deepest.
    """
    by_name, reads = body.by_name, list[list[int]]()
    backward = {index for op in NEXTS for index in body.by_type.get(op, ())}
    for inputs in body.heads.inputs:
        read = (by_name.get(names.op_of(text)) for text in inputs if text[:1] != "^")
        reads.append([index for index in read if index is not None and index not in backward])
    deep = [len(body)] * len(body)
    for index in in_order(dict(enumerate(reads))):
        deep[index] = max((deep[producer] + 1 for producer in reads[index]), default=0)
    return deep


def upstream(
    body: Body,
    tensors: Iterable[TensorName],
    control: bool = False,
    through: Passes | None = None,
    last: Passes | None = None,
) -> bytearray:
    """Mark, by index, all ops that these tensors are computed from, their own ops included.

    With `control`, those that run before them too. Only ops that it may lead `through` are marked,
    and what lies before the `last` is not looked at. Linear in the size of what is marked.
    """
    by_name, inputs = body.by_name, body.heads.inputs

    def read_by(index: int) -> list[int]:
        texts = [text for text in inputs[index] if control or not text.startswith("^")]
        return [by_name[op] for op in map(names.op_of, texts) if op in by_name]

    starts = [by_name[tensor.op] for tensor in tensors if tensor.op in by_name]
    return _marked(body, starts, through, last, read_by)


def downstream(
    body: Body,
    tensors: Iterable[TensorName],
    control: bool = False,
    through: Passes | None = None,
    last: Passes | None = None,
) -> bytearray:
    """Mark, by index, all ops that depend on one of these tensors, as `upstream` does.

    The op that gives a tensor is not among them, unless a loop leads back to it. With `control`,
    those that run after it are, too.
    """
    op_names, inputs = body.heads.names, body.heads.inputs

    def read_from(index: int) -> list[int]:
        uses_here = body.readers.get(op_names[index], ())
        return [at for at, slot in uses_here if control or inputs[at][slot][:1] != "^"]

    starts = [
        index
        for tensor in tensors
        for index, slot in body.readers.get(tensor.op, ())
        if names.parse(text := inputs[index][slot]) == tensor or (control and text[:1] == "^")
    ]
    return _marked(body, starts, through, last, read_from)


def _marked(
    body: Body,
    stack: list[int],
    through: Passes | None,
    last: Passes | None,
    beyond: Callable[[int], Iterable[int]],
) -> bytearray:
    """Mark the ops on a stack, and those that `beyond` leads to from each."""
    marks = bytearray(len(body))
    while stack:
        index = stack.pop()
        if not marks[index] and (through is None or through(index)):
            marks[index] = 1
            stack.extend(beyond(index) if last is None or not last(index) else ())
    return marks
