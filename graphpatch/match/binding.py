"""One match of a pattern, and which of several count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch import names
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.spec import WHOLE, Pattern
from graphpatch.names import TensorName


class Binding(msgspec.Struct, frozen=True):
    """One match. It holds for the body as it was matched; after an edit, match again.

    `pattern` is the one that was matched, without the optional ops that are missing. `bound` has
    the indices of each of its ops (several for a run), `read` the tensors from outside, `swapped`
    the matches that differ from it by a swap of the pattern's nodes alone. Where it counts,
    `patched` are the ops that the patch goes to, and `orders`, with `on` "match", the other orders
    in which it could read its tensors. Where it does not, `reason` says why.
    """

    body: Body
    pattern: Pattern
    bound: tuple[tuple[int, ...], ...]
    read: tuple[TensorName, ...]
    indices: tuple[int, ...]
    swapped: tuple[Binding, ...] = ()
    patched: tuple[Node, ...] = ()
    orders: tuple[tuple[str, ...], ...] = ()
    reason: str = ""

    @property
    def captures(self) -> dict[str, Node]:
        """Return the op of each name; of a run its last one."""
        bound = zip(self.pattern.present, self.bound, strict=True)
        return {name: Node(self.body, indices[-1]) for name, indices in bound}

    @property
    def tensors(self) -> dict[str, str]:
        """Return the tensor that each name of one from outside stands for, as inputs spell it."""
        named = zip(self.pattern.tensors, self.read, strict=True)
        return {name: str(tensor) for name, tensor in named} if self.read else {}

    def document(self, with_reads: bool) -> dict[str, Any]:
        """Return the match as a report lists it; `with_reads`, with the x0, x1, ... of formulas."""
        op_names, bound = self.body.heads.names, zip(self.pattern.present, self.bound, strict=True)
        document: dict[str, Any] = {"captures": {name: op_names[ops[-1]] for name, ops in bound}}
        if with_reads:
            inputs = {f"x{place}": tensor for place, tensor in enumerate(self.inputs)}
            document |= {"inputs": inputs, "tensors": self.tensors}
        return document

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return all ops of the match, those within runs too, in the body's order."""
        return tuple(Node(self.body, index) for index in self.indices)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the tensors that its ops read from outside, first those that it names (`x:_`)."""
        heads = self.body.heads
        mine = {heads.names[index] for index in self.indices}
        tensors = dict.fromkeys(map(str, self.read)) if self.read else {}
        for text in chain.from_iterable(heads.inputs[i] for i in chain.from_iterable(self.bound)):
            if text in mine or text[:1] == "^":
                continue
            if ":" not in text:  # most are an op's output 0, spelled as its name
                tensors[text] = None
            elif names.op_of(text) not in mine:
                tensors[str(names.parse(text))] = None
        return tuple(tensors)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the tensors of its ops that are read outside, by ops or as a function's results.

        Of an op that nobody reads it is its output 0, which whoever runs the graph may fetch.
        """
        tensors: list[str] = []
        for index in chain.from_iterable(self.bound):
            node = Node(self.body, index)
            tensors += dict.fromkeys(str(names.parse(text)) for text, _ in self.readers(index))
            if not self.body.readers.get(node.name) and not self._returned(node):
                tensors.append(node.tensor(0) if node.outputs else node.name)
        return tuple(tensors)

    def readers(self, index: int) -> Iterator[tuple[str, str]]:
        """Yield who outside reads an op of the match: the tensor, and who it is, in words."""
        mine, node = self.indices, Node(self.body, index)
        for reader, _, text in data_uses(self.body, node.name):
            place = bisect_left(mine, reader)
            if mine[place : place + 1] != (reader,):
                yield text, str(Node(self.body, reader))
        for key, text in self._returned(node):
            yield text, f"result {key!r} of function {self.body.label}"

    @property
    def last(self) -> int:
        """Return the index of the op that gives the result; of a run its last one."""
        return self.bound[self.pattern.present.index(self.pattern.last)][-1]

    @property
    def last_op(self) -> Node:
        """Return the op that gives the result."""
        return Node(self.body, self.last)

    def of(self, names: Collection[str]) -> tuple[int, ...]:
        """Return the indices of the ops of these names that are there; of none, the last one."""
        present, bound = self.pattern.present, self.bound
        if not names:
            return (self.last,)
        places = (present.index(name) for name in names if name in present)
        return tuple(index for place in places for index in bound[place])

    def _returned(self, node: Node) -> list[tuple[str, str]]:
        return [(key, self.body.ret[key]) for key in self.body.returned.get(node.name, ())]


def resolve(
    bindings: Iterable[Binding], on: Sequence[str], body: Body
) -> tuple[list[Binding], list[Binding]]:
    """Return the matches in one body that count, so that every op is patched once; and the others.

    `on` names the ops that the patch goes to, all ops of a run; without it the last op. A match
    counts that brings such an op which no match before it has. With `on` "match" one counts that
    shares no op with one before it, apart from those that read nothing, as constants do. Of several
    that start at one op the larger comes first. `body` is what the body has become since.
    """
    whole, counted, dropped = tuple(on) == (WHOLE,), list[Binding](), list[Binding]()
    orders: dict[tuple[int, ...], dict[tuple[str, ...], None]] = {}
    bindings = sorted(bindings, key=lambda m: (m.indices[0], -len(m.indices), m.indices))
    for binding in bindings if whole else ():
        images = (binding, *binding.swapped)
        orders.setdefault(binding.indices, {}).update((image.inputs, None) for image in images)
    owners: dict[int, Binding] = {}
    known: set[tuple[int, ...]] = set()
    for binding in bindings:
        wanted = binding.indices if whole else binding.of(on)
        new = [index for index in wanted if index not in owners]
        inputs = binding.body.heads.inputs
        shared = [index for index in wanted if index in owners and (inputs[index] or not whole)]
        if not (shared if whole else not new):
            nodes = tuple([Node(body, index) for index in (wanted if whole else new)])
            every = [order for order in orders.get(binding.indices, ()) if order != binding.inputs]
            counted.append(replace(binding, patched=nodes, orders=tuple(every)))
            owners |= dict.fromkeys(new, binding)
        elif binding.indices not in known:
            reason = f"it has no {' and no '.join(map(repr, on))}"
            if shared:
                first, end = Node(binding.body, shared[0]), owners[shared[0]].last_op
                reason = f"it shares {first} with the match that ends in {end}"
            dropped.append(replace(binding, reason=reason))
        known.add(binding.indices)
    return counted, dropped
