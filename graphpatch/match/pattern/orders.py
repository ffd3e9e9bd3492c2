"""In which other order a match could read its tensors: by the pattern alone it is not clear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphpatch.match.pattern.binding import Binding
from graphpatch.match.pattern.symmetry import Swap, symmetry
from graphpatch.match.spec import Pattern

VertexOrder = tuple[str, ...]
"""The tensors that a match reads from outside: x0, x1, ..."""


class Orders:
    """The orders in which matches read their tensors, of all matches in one body."""

    def __init__(self, bindings: Iterable[Binding]) -> None:
        self._found: dict[tuple[int, ...], dict[VertexOrder, None]] = {}
        self._swaps: dict[int, tuple[Pattern, list[Swap]]] = {}
        for binding in bindings:
            orders = self._found.setdefault(binding.indices, {})
            orders[binding.inputs] = None
            orders.update((other.inputs, None) for other in self._swapped(binding))

    def besides(self, binding: Binding) -> tuple[VertexOrder, ...]:
        """The other orders in which a pattern could lie on the ops of a match."""
        found = self._found[binding.indices]
        return tuple(order for order in found if order != binding.inputs)

    def _swapped(self, binding: Binding) -> Iterator[Binding]:
        pattern = binding.pattern
        if id(pattern) not in self._swaps:
            self._swaps[id(pattern)] = pattern, list(symmetry(pattern).swaps)
        for swap in self._swaps[id(pattern)][1]:
            yield _with(binding, swap)


def _with(binding: Binding, swap: Mapping[str, str]) -> Binding:
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
