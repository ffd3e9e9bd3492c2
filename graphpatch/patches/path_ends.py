"""Where the noise-free path ends, which ops get no gradient then, and what is noisy anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from graphpatch import names
from graphpatch.control_flow.op_types import ENTERS
from graphpatch.differentiation.flow import lets_through
from graphpatch.differentiation.linear import is_linear
from graphpatch.graph import topology
from graphpatch.graph.body import Node
from graphpatch.graph.topology import data_uses, uses
from graphpatch.patches import op_args
from graphpatch.patches.clean_path import CleanPath

SlotsByOp: TypeAlias = dict[Node, list[int]]
"""The ops at which the noise-free path ends, with those of their outputs."""


def all_ends(path: CleanPath) -> SlotsByOp:
    """The outputs of the body: of the main graph, float tensors that no other is made of."""
    found: SlotsByOp = {}
    for node in path.body:
        if path.holds(node) and lets_through(node):
            outputs = [n for n, arg in enumerate(node.outputs or ()) if op_args.carries(arg)]
            ending = [output for output in outputs if _is_end(node, output)]
            if ending:
                found[node] = ending
    return found


def _is_end(node: Node, output: int) -> bool:
    body = node.body
    if not body.is_main:
        given = (body.ret[key] for key in body.returned.get(node.name, ()))
        return names.parse(node.tensor(output)) in map(names.parse, given)
    return not any(gives_on(reader) for reader, _ in uses(node, output))


def gives_on(node: Node) -> bool:
    """Whether a float tensor is made of what the op reads, and gradients flow back through it."""
    flat = node.outputs
    return lets_through(node) and (flat is None or any(map(op_args.is_asked_for, flat)))


@dataclass(frozen=True, slots=True)
class UnreachedOps:
    """What remains of the noisy path once the ends are given on.

    `dead` are the ops that no gradient reaches any more, the ends not among them. `beside` has,
    for each op that one still reaches by a path round the ends, who reads it there ("" for the
    output of a function).
    """

    dead: list[Node]
    beside: dict[Node, str]


def unreached_ops(path: CleanPath, ends: SlotsByOp) -> UnreachedOps:
    """What the ends leave; to be asked before the graph is changed."""
    region = {node.index: node for node in (*path.clones, *path.noisy_nodes())}
    stopped = {node.index for node in ends if _has_all_outputs(node, ends[node])}
    beside = {
        node: reader
        for index, node in region.items()
        if index not in stopped and (reader := _reader_outside(node, region)) is not None
    }
    alive = {node.index for node in beside}
    todo = list(beside)
    while todo:
        for text in todo.pop().data_inputs:
            producer = path.body.producer(text)
            index = -1 if producer is None else producer.index
            if index in region and index not in stopped and index not in alive:
                alive.add(index)
                todo.append(region[index])
    return UnreachedOps([region[i] for i in sorted(region.keys() - stopped - alive)], beside)


def _has_all_outputs(node: Node, outputs: list[int]) -> bool:
    carrying = [n for n, arg in enumerate(node.outputs or ()) if op_args.carries(arg)]
    return set(carrying) <= set(outputs)


def _reader_outside(node: Node, region: Mapping[int, Node]) -> str | None:
    """Who reads an op outside of the region so that gradients flow back to it."""
    body = node.body
    for index, _, _ in data_uses(body, node.name):
        if index not in region and gives_on(Node(body, index)):
            return str(Node(body, index))
    return "" if body.returned.get(node.name) else None


def noisy_after(path: CleanPath, ends: SlotsByOp, dead: Collection[Node]) -> Node | None:
    """An op behind the ends whose gradient is taken at a noisy value."""
    tensors = [names.parse(node.tensor(n)) for node, outputs in ends.items() for n in outputs]
    marks = topology.downstream(path.body, tensors)
    clean = {node.index for node in (*dead, *ends)}
    for index, mark in enumerate(marks):
        node = Node(path.body, index)
        if mark and index not in clean and gives_on(node) and not is_linear_in(node, marks, ends):
            return node
    return None


def is_linear_in(node: Node, marks: bytearray, ends: SlotsByOp) -> bool:
    """Whether what flows back through an op does not depend on the noisy tensors that it reads."""
    producers = [node.body.producer(text) for text in node.data_inputs]
    noisy = [one is not None and bool(marks[one.index] or one in ends) for one in producers]
    return is_linear(node.op, noisy, [comes_from_constant(one) for one in producers])


def comes_from_constant(node: Node | None) -> bool:
    """Whether a tensor that this op gives is a constant of the file, passed on unchanged."""
    found = (one.op for one in topology.first_producers(node))
    return next((op for op in found if op not in {"Identity", *ENTERS}), "") == "Const"


def end_notes(
    path: CleanPath, ends: SlotsByOp, found: UnreachedOps, is_named: bool
) -> Iterator[str]:
    """What the report says of a gradient that is still noisy, or where the noise-free path ends."""
    reached = ", ".join(node.tensor(n) for node, outputs in ends.items() for n in outputs)
    if not is_named:
        yield f"in {path.body.label} the noise-free path goes up to {reached}"
    after = noisy_after(path, ends, found.dead)
    if after is not None:
        yield (
            f"the gradient is still noisy behind {reached}: that of {after} is taken at a noisy "
            f'value; without "until" the noise-free path goes up to the end'
        )
    for node, reader in list(found.beside.items())[:1]:
        by = reader or f"the output of function {path.body.label}"
        yield f"the gradient is still noisy beside {reached}: {by} reads {node}"
    if path.in_loop:
        yield (
            f"{reached}: the noise-free path ends with each iteration of a v1 loop; the next one "
            f"begins with noisy values"
        )
    if not path.body.is_main:
        yield (
            f"function {path.body.label}: the noise-free path ends in it; what comes after it "
            f"takes its gradient at noisy values"
        )
