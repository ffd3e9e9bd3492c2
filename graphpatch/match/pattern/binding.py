"""A match of a pattern: which op each of its nodes is, and what goes in and out."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import msgspec

from graphpatch import names
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import data_uses
from graphpatch.match.spec import Pattern
from graphpatch.names import TensorName


class Binding(msgspec.Struct, frozen=True):
    """One match. It holds for the body as it was matched; after an edit, match again.

    `pattern` is the one that was matched, without the optional ops that are missing. `bound` has
    the indices of each of its ops that are there, in its order (several for a run), `read` the
    tensors from outside. `indices` are all of these ops, in the body's order.
    """

    body: Body
    pattern: Pattern
    bound: tuple[tuple[int, ...], ...]
    read: tuple[TensorName, ...]
    indices: tuple[int, ...] = ()  # found out, not given

    def __post_init__(self) -> None:
        found = sorted(itertools.chain.from_iterable(self.bound))
        msgspec.structs.force_setattr(self, "indices", tuple(found))

    @property
    def captures(self) -> dict[str, Node]:
        """The op of each name; of a run its last one."""
        bound = zip(self.pattern.present, self.bound, strict=True)
        return {name: Node(self.body, indices[-1]) for name, indices in bound}

    @property
    def captured_names(self) -> dict[str, str]:
        """The same, by the names of the ops."""
        ops = self.body.heads.names
        bound = zip(self.pattern.present, self.bound, strict=True)
        return {name: ops[indices[-1]] for name, indices in bound}

    @property
    def tensors(self) -> dict[str, str]:
        """The tensor that each name of one from outside stands for, as inputs spell it."""
        return dict(zip(self.pattern.tensors, map(str, self.read), strict=True))

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
        heads = self.body.heads
        mine = set(map(heads.names.__getitem__, self.indices))
        found = list(map(str, self.read))
        for index in itertools.chain.from_iterable(self.bound):
            for text in heads.inputs[index]:
                if text in mine or text[:1] == "^":
                    continue
                if ":" not in text:  # most are an op's output 0, spelled as its name
                    found.append(text)
                elif names.op_of(text) not in mine:
                    found.append(str(names.parse(text)))
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
        mine, node = self.indices, Node(self.body, index)
        for reader, _, text in data_uses(self.body, node.name):
            place = bisect_left(mine, reader)
            if mine[place : place + 1] != (reader,):
                yield text, str(Node(self.body, reader))
        for key, text in self._returned(node):
            yield text, f"result {key!r} of function {self.body.label}"

    @property
    def last(self) -> int:
        """The index of the op that gives the result; of a run its last one."""
        return self.bound[self.pattern.last_place][-1]

    def of(self, wanted: Iterable[str]) -> tuple[int, ...]:
        """The indices of the ops of these names, as far as they are there."""
        present, bound = self.pattern.present, self.bound
        there = (present.index(name) for name in wanted if name in present)
        return tuple(index for place in there for index in bound[place])

    def _returned(self, node: Node) -> list[tuple[str, str]]:
        return [(key, self.body.ret[key]) for key in self.body.returned.get(node.name, ())]
