"""Matches that share ops, or read tensors in several orders: which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from graphpatch.graph.body import Node
from graphpatch.match.pattern.binding import Binding
from graphpatch.match.pattern.topology import Swap, symmetry
from graphpatch.match.spec import WHOLE, Pattern

VertexOrder = tuple[str, ...]
"""The tensors that a match reads from outside: x0, x1, ..."""


class TensorOrders:
    """The orders in which matches read their tensors, of all matches in one body."""

    def __init__(self, bindings: Iterable[Binding]) -> None:
        self._found: dict[tuple[int, ...], dict[VertexOrder, None]] = {}
        self._swaps: dict[int, tuple[Pattern, list[Swap]]] = {}
        for binding in bindings:
            orders = self._found.setdefault(binding.indices, {})
            orders[binding.inputs] = None
            orders.update((other.inputs, None) for other in self._images(binding))

    def besides(self, binding: Binding) -> tuple[VertexOrder, ...]:
        """The other orders in which a pattern could lie on the ops of a match."""
        found = self._found[binding.indices]
        return tuple(order for order in found if order != binding.inputs)

    def _images(self, binding: Binding) -> Iterator[Binding]:
        pattern = binding.pattern
        if id(pattern) not in self._swaps:
            self._swaps[id(pattern)] = pattern, symmetry(pattern)[1]
        for swap in self._swaps[id(pattern)][1]:
            yield _with_nodes_swapped(binding, swap)


def _with_nodes_swapped(binding: Binding, swap: Mapping[str, str]) -> Binding:
    """The match with its nodes swapped: what a node lies on then is what its image lay on."""
    pattern = binding.pattern
    ops = dict(zip(pattern.present, binding.bound, strict=True))
    read = dict(zip(pattern.tensors, binding.read, strict=True))
    return Binding(
        binding.body,
        pattern,
        tuple(ops[swap[name]] for name in pattern.present),
        tuple(read[swap[name]] for name in pattern.tensors),
    )


class DroppedMatch(msgspec.Struct, frozen=True):
    """A match that does not count, and why."""

    binding: Binding
    reason: str


class KeptMatch(msgspec.Struct, frozen=True):
    """A match that counts, and the ops that it brings: those that no match before has.

    `orders` are, with `on` "match", the other orders in which it could read its tensors.
    """

    binding: Binding
    nodes: tuple[Node, ...]
    orders: tuple[VertexOrder, ...] = ()

    @property
    def last(self) -> Node:
        """The op that gives the result."""
        return Node(self.binding.body, self.binding.last)


def resolve(
    bindings: Iterable[Binding], on: Sequence[str]
) -> tuple[list[KeptMatch], list[DroppedMatch]]:
    """Which of the matches in one body count, so that every op is patched once.

    `on` names the ops that the patch goes to, all ops of a run; where it is empty it is the last
    one that no other reads, of a run its last op. A match counts that brings such an op which no
    match before it has. With `on` "match" the patch goes to all its ops as one: a match counts
    that shares none with one before it, apart from those that read nothing, as constants do.
    Matches come in the file's order, of several that start at one op the larger first. One that
    has the same ops as another, in other roles, is not reported as dropped.
    """
    whole = tuple(on) == (WHOLE,)
    bindings = list(bindings)
    orders = TensorOrders(bindings) if whole else None
    kept: list[KeptMatch] = []
    dropped: list[DroppedMatch] = []
    owners: dict[int, Binding] = {}
    seen: set[tuple[int, ...]] = set()
    for binding in sorted(bindings, key=_order_of):
        wanted = binding.indices if whole else binding.of(on) if on else (binding.last,)
        taken = [index for index in wanted if index in owners]
        new = tuple(index for index in wanted if index not in owners)
        if any(binding.body.heads.inputs[index] for index in taken) if whole else not new:
            if binding.indices not in seen:
                dropped.append(DroppedMatch(binding, _reason(binding, on, taken, owners)))
        else:
            nodes = wanted if whole else new
            others = orders.besides(binding) if orders is not None else ()
            kept.append(KeptMatch(binding, tuple(Node(binding.body, one) for one in nodes), others))
            for index in new:
                owners[index] = binding
        seen.add(binding.indices)
    return kept, dropped


def _order_of(binding: Binding) -> tuple[int, int, tuple[int, ...]]:
    return binding.indices[0], -len(binding.indices), binding.indices


def _reason(
    binding: Binding, on: Sequence[str], taken: Sequence[int], owners: Mapping[int, Binding]
) -> str:
    if not taken:
        return f"it has no {' and no '.join(map(repr, on))}"
    shared = next((one for one in taken if binding.body.heads.inputs[one]), taken[0])
    node, owner = Node(binding.body, shared), owners[shared]
    return f"it shares {node} with the match that ends in {owner.captures[owner.pattern.last]}"
