"""The links of a body as the edges of a pattern ask for them: from an op, from a tensor, runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec

from graphpatch import names
from graphpatch.errors import MatchError, ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import Passes, readers_of
from graphpatch.match.pattern.columns import order_of
from graphpatch.match.spec import Link
from graphpatch.names import TensorName

Vertex = int | TensorName
"""An op by its index, or a tensor from outside."""

VertexInput = tuple[Vertex, int]
"""What a link leads to, and the slot of the reader by which it does."""

LEAST, FOR_EACH = 1_000_000, 20
"""Links that may be followed for one pattern in one body: so many, and so many more for each op.

How often a pattern matches, and how many ops its runs have, may grow as any power of the body. A
pattern that says which ops it means follows about ten links for each of them.
"""

WHOLE_RUN = -1
"""Stands for the slot of a link that is a whole run."""


class LinkWalker(msgspec.Struct, eq=False, dict=True):
    """Follows links in one body."""

    body: Body
    outputs: dict[tuple[int, int], TensorName | None] = msgspec.field(default_factory=dict)
    walked: int = 0

    def forward(self, vertex: Vertex, link: Link) -> Iterator[tuple[int, int]]:
        """The ops that read this op or tensor by such a link, and the slot."""
        if isinstance(vertex, TensorName):
            self.walk(len(self.body.readers.get(vertex.op, ())))
            for index, slot in readers_of(self.body, vertex):
                if link.input is None or slot == link.input:
                    yield index, slot
            return
        heads = self.body.heads
        inputs, control, wanted, output = heads.inputs, link.control, link.input, link.output
        uses = self.body.readers.get(heads.names[vertex], ())
        self.walk(1 + len(uses))
        for use in uses:
            index, slot = use
            text = inputs[index][slot]
            if (
                text.startswith("^") is control
                and (wanted is None or slot == wanted)
                and (output is None or names.parse(text) == self._output(vertex, output))
            ):
                yield use

    def backward(self, index: int, link: Link) -> Iterator[tuple[int, int]]:
        """The ops that this op reads by such a link, and the slot."""
        by_name = self.body.by_name
        for slot, text in self._slots(index, link):
            producer = by_name.get(text)  # most inputs are an op's output 0, spelled as its name
            if producer is None:
                producer = by_name.get(names.op_of(text))
            if producer is None or text.startswith("^") is not link.control:
                continue
            if link.output is None or names.parse(text) == self._output(producer, link.output):
                yield producer, slot

    def tensors(self, index: int, link: Link) -> Iterator[tuple[TensorName, int]]:
        """The tensors that this op reads by such a link, and the slot."""
        for slot, text in self._slots(index, link):
            if not text.startswith("^"):
                yield names.parse(text), slot

    def run_forward(self, vertex: Vertex, link: Link, passes: Passes) -> Iterator[tuple[int, int]]:
        """The last ops of the runs that start behind this op or tensor."""
        on = Link(input=link.input)
        seen: set[int] = set()
        stack = [index for index, _ in self.forward(vertex, link)]
        while stack:
            index = stack.pop()
            if index not in seen and passes(index):
                seen.add(index)
                stack += [reader for reader, _ in self.forward(index, on)]
        return ((index, WHOLE_RUN) for index in seen)

    def run_backward(
        self, index: int, link: Link, passes: Passes, from_tensor: bool
    ) -> Iterator[VertexInput]:
        """The ops or tensors behind which a run starts that ends in this op."""
        found: set[Vertex] = set()
        on = Link(input=link.input)
        seen, stack = {index}, [index]
        while stack:
            at = stack.pop()
            found.update(one for one, _ in self._sources(at, link, from_tensor))
            for producer, _ in self.backward(at, on):
                if producer not in seen and passes(producer):
                    seen.add(producer)
                    stack.append(producer)
        return ((one, WHOLE_RUN) for one in found)

    def walk(self, count: int) -> None:
        """Count links that were followed; MatchError where they are too many by now."""
        self.walked += count
        most = LEAST + FOR_EACH * len(self.body)
        if self.walked > most:
            raise MatchError(
                f"to find the pattern in {self.body.label} takes more than {most:,} steps"
                f" ({LEAST:,}, and {FOR_EACH} for each op), as its number of matches, or the ops"
                " of its runs, grow faster than the graph: name op types instead of *, give the"
                " input slots of links (-> add:0), and say what a run starts behind and ends before"
            )

    @property
    def is_worn(self) -> bool:
        """Whether so many links were followed that it pays to look at all ops of the body once."""
        return self.walked > len(self.body)

    @cached_property
    def order(self) -> list[int]:
        """Of each op a number: an op that reads another has a greater one, apart from loops.

        Ops in loops, and those that read them, have one number, which is the greatest.
        """
        return order_of(self.body)

    def _sources(self, index: int, link: Link, from_tensor: bool) -> Iterator[VertexInput]:
        return self.tensors(index, link) if from_tensor else self.backward(index, link)

    def _slots(self, index: int, link: Link) -> Iterator[tuple[int, str]]:
        inputs = self.body.heads.inputs[index]
        self.walk(1 + len(inputs))
        if link.input is None:
            return enumerate(inputs)
        return iter([(link.input, inputs[link.input])] if link.input < len(inputs) else [])

    def _output(self, producer: int, output: int) -> TensorName | None:
        """How an output of an op is read; None where there is no such output, or none is known."""
        key = producer, output
        if key not in self.outputs:
            try:
                found = names.parse(Node(self.body, producer).tensor(output))
            except (IndexError, ModelError):
                found = None
            self.outputs[key] = found
        return self.outputs[key]
