"""A match of a pattern: which op each of its nodes is, and what goes in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphpatch import names
from graphpatch.graph.body import Body, Node
from graphpatch.match.spec import Pattern
from graphpatch.names import TensorName


@dataclass(frozen=True, slots=True)
class Binding:
    """One match. It holds for the body as it was matched; after an edit, match again.

    `pattern` is the one that was matched, without the optional ops that are missing. `bound` has
    the indices of each of its ops that are there, in its order (several for a run), `read` the
    tensors from outside.
    """

    body: Body
    pattern: Pattern
    bound: tuple[tuple[int, ...], ...]
    read: tuple[TensorName, ...]

    @property
    def names(self) -> list[str]:
        """The names of the ops that are there, in the pattern's order."""
        return [name for name in self.pattern.nodes if name not in self.pattern.absent]

    @property
    def captures(self) -> dict[str, Node]:
        """The op of each name; of a run its last one."""
        bound = zip(self.names, self.bound, strict=True)
        return {name: Node(self.body, indices[-1]) for name, indices in bound}

    @property
    def tensors(self) -> dict[str, str]:
        """The tensor that each name of one from outside stands for, as inputs spell it."""
        return dict(zip(self.pattern.tensors, map(str, self.read), strict=True))

    @property
    def indices(self) -> tuple[int, ...]:
        """All ops of the match, those within runs too, in the body's order."""
        return tuple(sorted(index for indices in self.bound for index in indices))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All ops of the match, those within runs too, in the body's order."""
        return tuple(Node(self.body, index) for index in self.indices)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that its ops read from outside, each once.

        First those that the pattern names (`x:_`), in its order; then the others, by the order
        of its ops and their slots.
        """
        mine = set(self.indices)
        found = [str(tensor) for tensor in self.read if self._producer(tensor) not in mine]
        for indices in self.bound:
            for index in indices:
                read = map(names.parse, Node(self.body, index).data_inputs)
                found += [str(one) for one in read if self._producer(one) not in mine]
        return tuple(dict.fromkeys(found))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors of its ops that are read outside, by ops or as a function's results.

        Of an op that nobody reads it is its output 0, which whoever runs the graph may fetch.
        """
        found: list[str] = []
        for indices in self.bound:
            for index in indices:
                node = Node(self.body, index)
                found += dict.fromkeys(str(names.parse(text)) for text, _ in self.readers(index))
                if not self.body.readers.get(node.name) and not self._returned(node):
                    found.append(node.tensor(0) if node.outputs else node.name)
        return tuple(found)

    def readers(self, index: int) -> Iterator[tuple[str, str]]:
        """Who outside reads an op of the match: the tensor, and who it is, in words."""
        mine = set(self.indices)
        node = Node(self.body, index)
        for reader, slot in self.body.readers.get(node.name, ()):
            text = self.body.heads.inputs[reader][slot]
            if reader not in mine and not text.startswith("^"):
                yield text, str(Node(self.body, reader))
        for key, text in self._returned(node):
            yield text, f"result {key!r} of function {self.body.label}"

    def of(self, wanted: Iterable[str]) -> tuple[int, ...]:
        """The indices of the ops of these names, as far as they are there."""
        bound = dict(zip(self.names, self.bound, strict=True))
        return tuple(index for name in wanted for index in bound.get(name, ()))

    def last(self) -> str:
        """The last op of the pattern that none of its other ops reads: where a patch goes."""
        return last(self.pattern)

    def _producer(self, tensor: TensorName) -> int | None:
        return self.body.by_name.get(tensor.op)

    def _returned(self, node: Node) -> list[tuple[str, str]]:
        return [
            (key, text) for key, text in self.body.ret.items() if names.op_of(text) == node.name
        ]


def last(pattern: Pattern) -> str:
    """The last op of a pattern that none of its other ops reads, or runs after."""
    there = [name for name in pattern.nodes if name not in pattern.absent]
    read = {edge.source for edge in pattern.edges if edge.target in there}
    return [name for name in there if name not in read][-1]
