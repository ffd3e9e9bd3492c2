"""What the report says where a patch stops in the middle of noise: the gradient stays random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

from graphpatch import names, opdefs
from graphpatch.control_flow.op_types import ENTERS
from graphpatch.differentiation.flow import lets_through
from graphpatch.differentiation.gradient_table import is_linear
from graphpatch.dtypes import NO_NUMBERS
from graphpatch.graph import walk
from graphpatch.graph.node import Body, Node
from graphpatch.patches import op_args
from graphpatch.table import short

SlotsByOp: TypeAlias = dict[Node, list[int]]
"""The ops at which the noise-free path ends, with those of their outputs."""


@cache
def random_ops() -> frozenset[str]:
    """The op types that give other numbers on each run: stateful, by a seed or a generator."""
    return frozenset(op.name for op in opdefs.table().ops if op.stateful and _is_random_op(op))


def _is_random_op(op: opdefs.OpDef) -> bool:
    numbers = [arg for arg in op.outputs if arg.dtype not in NO_NUMBERS and not arg.is_ref]
    return bool(numbers) and (
        any(attr.name == "seed" for attr in op.attrs)
        or (op.name.startswith("Stateful") and any(arg.name == "resource" for arg in op.inputs))
    )


def noise_notes(nodes: Sequence[Node], at_inputs: bool = False) -> Iterator[str]:
    """Yield what to say of ops that let no gradient through to noise, or only as an identity.

    `at_inputs`: what flows back is changed before the op, whose own gradient is taken.
    """
    by_body: dict[str, list[Node]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, []).append(node)
    for in_body in by_body.values():
        body = in_body[0].body
        noise = _ops_behind_noise(body)
        noisy = [node for node in in_body if noise and noise[node.index]]
        behind = _op_differentiated_at_noise(body, noisy, noise, at_inputs)
        if behind is not None:
            yield _noise_note(noisy, behind, at_inputs)


def _ops_behind_noise(body: Body) -> bytearray:
    """Return which ops of a body give other numbers on each run; nothing where none does."""
    sources = [index for op in random_ops() for index in body.by_type.get(op, ())]
    if not sources:
        return bytearray()
    tensors = [_first_output(Node(body, index)) for index in sources]
    marks = walk.downstream(body, tensors)
    for index in sources:
        marks[index] = 1
    return marks


def _op_differentiated_at_noise(
    body: Body, noisy: list[Node], noise: bytearray, at_inputs: bool
) -> Node | None:
    """Return the first op whose gradient is taken at a noisy value, and comes back to these ops."""
    if not noisy:
        return None
    marks = walk.downstream(body, [_first_output(node) for node in noisy])
    mine = {node.index for node in noisy}
    for index, mark in enumerate(marks):
        is_asked = at_inputs if index in mine else mark
        node = Node(body, index)
        if is_asked and noise[index] and gives_on(node) and not is_linear_in(node, noise, {}):
            return node
    return None


def _first_output(node: Node) -> names.TensorName:
    return names.parse(node.tensor(0))


def _noise_note(noisy: Sequence[Node], behind: Node, at_inputs: bool) -> str:
    where = "at" if at_inputs else "behind"
    some = short([str(node) for node in noisy])
    return (
        f"the gradient is still noisy {where} {some}: that of {behind} is taken at a value "
        f"that differs from run to run, and so does the gradient; backward_as on the op that adds "
        f'the noise, without "until", takes it at values without noise'
    )


def gives_on(node: Node) -> bool:
    """Whether a float tensor is made of what the op reads, and gradients flow back through it."""
    flat = node.outputs
    return lets_through(node) and (flat is None or any(map(op_args.is_asked_for, flat)))


def is_linear_in(node: Node, marks: bytearray, ends: SlotsByOp) -> bool:
    """Whether what flows back through an op does not depend on the noisy tensors that it reads."""
    producers = [node.body.producer(text) for text in node.data_inputs]
    noisy = [
        producer is not None and bool(marks[producer.index] or producer in ends)
        for producer in producers
    ]
    return is_linear(node.op, noisy, [comes_from_constant(producer) for producer in producers])


def comes_from_constant(node: Node | None) -> bool:
    """Return whether a tensor that this op gives is a constant of the file, passed on unchanged."""
    ops = (producer.op for producer in walk.first_producers(node))
    return next((op for op in ops if op not in {"Identity", *ENTERS}), "") == "Const"
