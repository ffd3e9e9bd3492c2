"""A part of the main graph as the body of a function: what is computed from some tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph import nodedef
from graphpatch.graph.body import Body, Node
from graphpatch.graph.colocation import located, without_absent
from graphpatch.graph.edit import OUTPUT_SHAPES
from graphpatch.graph.op_types import PLACEHOLDERS


@dataclass(frozen=True, eq=False)
class Part:
    """The ops of a main graph that `results` are computed from, as a function would hold them.

    `arguments` has for each tensor that is cut (`x`, `split:1`) the argument that stands for it.
    """

    body: Body
    arguments: Mapping[str, str]
    results: tuple[str, ...]

    @cached_property
    def indices(self) -> list[int]:
        """The ops, in the order of the file; ModelError where a name is not one of an op."""
        found: set[int] = set()
        waiting = [self._op(text) for text in self.results if not self._argument(text)]
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting.extend(self._read(Node(self.body, index)))
        return sorted(found)

    def naming(self, arguments: Mapping[str, str]) -> Part:
        """The same ops, the arguments that stand for what is cut by other names."""
        part = replace(self, arguments=arguments)
        vars(part)["indices"] = self.indices
        return part

    def unfed(self) -> Iterator[Node]:
        """The placeholders among them: nothing feeds them inside a function."""
        return (node for node in map(self._node, self.indices) if node.op in PLACEHOLDERS)

    def read(self) -> set[str]:
        """All that the ops read, and the results."""
        inputs = (text for index in self.indices for text in self._node(index).data_inputs)
        return {*self.results, *inputs}

    def payloads(self) -> Iterator[nodedef.Payload]:
        """The NodeDefs, their inputs spelled as in a function, without stale shapes."""
        inside = {self._node(index).name for index in self.indices}
        places = set(map(located, inside))
        for node in map(self._node, self.indices):
            spelled = [self._spelled(text, inside) for text in node.inputs]
            payload = nodedef.with_attr(self.body.payload(node.index), OUTPUT_SHAPES, None)
            payload = without_absent(payload, places)
            yield nodedef.with_inputs(payload, [text for text in spelled if text])

    def spelled(self, tensor: str) -> str:
        """How the function spells a tensor of the main graph."""
        argument = self._argument(tensor)
        if argument:
            return argument
        name = names.parse(tensor)
        flat = self.body.node(name.op).outputs
        if flat is None or name.index >= len(flat):
            count = "not known" if flat is None else len(flat)
            raise ModelError(f"there is no {tensor}: the outputs of {name.op!r} are {count}")
        return f"{name.op}:{flat[name.index].name}:{flat[name.index].index}"

    def _spelled(self, text: str, inside: set[str]) -> str:
        """An input; nothing for a control input on an op that was cut off."""
        if not text.startswith("^"):
            return self.spelled(text)
        return text if names.op_of(text) in inside else ""

    def _read(self, node: Node) -> Iterable[int]:
        """The ops that this one reads, or waits for, unless an argument stands for them."""
        return [self._op(text) for text in node.inputs if not self._argument(text)]

    def _argument(self, text: str) -> str:
        tensor = names.parse(text)
        return self.arguments.get(tensor.op if tensor.control else str(tensor), "")

    def _op(self, text: str) -> int:
        return self.body.node(names.op_of(text)).index

    def _node(self, index: int) -> Node:
        return Node(self.body, index)
