"""What the report says where a patch stops in the middle of noise: the gradient stays random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from graphpatch import names, opdefs
from graphpatch.differentiation.flow import is_linear, lets_through
from graphpatch.dtypes import NO_NUMBERS
from graphpatch.graph import walk
from graphpatch.graph.node import Body, Node
from graphpatch.patches.shape_checks import comes_from_constant
from graphpatch.patches.target import is_asked_for
from graphpatch.table import short


@cache
def random_ops() -> frozenset[str]:
    """Return the op types that give other numbers on each run: stateful, by a seed or generator."""
    return frozenset(op.name for op in opdefs.table().ops if op.stateful and _is_random(op))


def _is_random(op: opdefs.OpDef) -> bool:
    numbers = [arg for arg in op.outputs if arg.dtype not in NO_NUMBERS and not arg.is_ref]
    has_seed = any(attr.name == "seed" for attr in op.attrs)
    takes_generator = any(arg.name == "resource" for arg in op.inputs)
    return bool(numbers) and (has_seed or (op.name.startswith("Stateful") and takes_generator))


def noise_notes(nodes: Sequence[Node], at_inputs: bool = False) -> Iterator[str]:
    """Yield what to say of ops that let no gradient through to noise, or only as an identity.

    `at_inputs`: what flows back is changed before the op, whose own gradient is taken.
    """
    by_body: dict[str, list[Node]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, []).append(node)
    where = "at" if at_inputs else "behind"
    for body, in_body in ((group[0].body, group) for group in by_body.values()):
        sources = [index for op in random_ops() for index in body.by_type.get(op, ())]
        noise = _behind(body, sources)
        for index in sources:
            noise[index] = 1
        noisy = [node for node in in_body if noise[node.index]]
        own = {node.index for node in noisy}
        behind = _behind(body, own)
        for index in own:
            behind[index] = at_inputs
        asked = (index for index, mark in enumerate(behind) if mark and noise[index])
        op = differentiated_at_noise(body, asked if noisy else (), noise.__getitem__)
        if op is not None:
            yield (
                f"the gradient is still noisy {where} {short([str(node) for node in noisy])}: that "
                f"of {op} is taken at a value that differs from run to run, and so does the "
                f"gradient; backward_as on the op that adds the noise, without "
                f'"until", takes it at values without noise'
            )


def _behind(body: Body, indices: Iterable[int]) -> bytearray:
    """Mark the ops that depend on the first outputs of these."""
    outputs = [names.parse(Node(body, index).tensor(0)) for index in indices]
    return walk.downstream(body, outputs) if outputs else bytearray(len(body))


def differentiated_at_noise(
    body: Body, indices: Iterable[int], is_noisy: Callable[[int], object]
) -> Node | None:
    """Return the first of these ops whose gradient depends on the noisy tensors that it reads."""
    for node in (Node(body, index) for index in indices):
        if gives_on(node):
            producers = [body.producer(text) for text in node.data_inputs]
            noisy = [op is not None and bool(is_noisy(op.index)) for op in producers]
            if not is_linear(node.op, noisy, [comes_from_constant(op) for op in producers]):
                return node
    return None


def gives_on(node: Node) -> bool:
    """Return whether an op makes a float tensor of what it reads, and gradients flow back."""
    flat = node.outputs
    return lets_through(node) and (flat is None or any(map(is_asked_for, flat)))
