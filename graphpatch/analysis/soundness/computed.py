"""Whether each op of a patched graph computes what the op of its name did in the original."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import Differences
from graphpatch.analysis.rule_words import StructureFault
from graphpatch.analysis.soundness.numbering import (
    SELECTS,
    KnownOps,
    Numbering,
    ValueNumber,
    ValueNumbers,
    has_name,
    is_true,
    label_in_both,
    tensor_of,
)
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.op_types import GIVES_ON

OpValues = Mapping[str, Sequence[ValueNumber]]


def differently_computed(one: Graph, other: Graph, differ: Differences) -> Iterator[StructureFault]:
    """The ops, in functions too, that compute something else; not those that merely read them.

    Whatever rules tell, or somebody forged, does not count: forward, the graphs are compared as
    they are. Both graphs must be sound.
    """
    numbers, alike = ValueNumbers(), _pairs_alike(other, differ)
    before = Numbering(one, numbers, alike, one.functions)
    after = Numbering(other, numbers, alike, one.functions)
    for body in one.bodies:
        there = other.counterpart(body)
        if there is not None:
            yield from _Pair(body, there, before, after).faults()


def _pairs_alike(other: Graph, differ: Differences) -> dict[str, set[str]]:
    found = {}
    for body, unlike in differ.items():
        there = other.counterpart(body)
        known = there.by_name if there is not None else ()
        found[label_in_both(body)] = {
            name for name, n in body.by_name.items() if name in known and n not in unlike
        }
    return found


@dataclass(eq=False)
class _Pair:
    """A body and its patched copy."""

    one: Body
    other: Body
    before: Numbering
    after: Numbering
    found: list[StructureFault] = field(default_factory=list)

    def faults(self) -> list[StructureFault]:
        numbers = self.before.numbers
        given = {
            name: (numbers.of(("argument", place)), 0)
            for place, name in enumerate(self.one.arguments)
        }
        self.values: OpValues = self.before.body(self.one, given, KnownOps())
        self.original = _stands_for(self.other, self.one)
        known = KnownOps(lambda node: self.original.get(node.name, node.name), self._settle)
        given = {
            name: (numbers.of(("argument", place)), 0)
            for place, name in enumerate(self.other.arguments)
        }
        after = self.after.body(self.other, given, known)
        self._turns(after)
        self._returned(after)
        return self.found

    def _settle(self, node: Node, values: list[ValueNumber]) -> list[ValueNumber]:
        """Told once: what reads an op that differs finds in it what the original's op gave."""
        wanted = self.values.get(node.name)
        if wanted is None or node.name not in self.one.by_name:
            return values
        if list(values) != list(wanted):
            self._tell(node, values)
        return list(wanted)

    def _tell(self, node: Node, values: Sequence[ValueNumber]) -> None:
        was, now = self.one.node(node.name), _op_given_on(node)
        changes = [one for one in differences(was, now) if not one.startswith(("attr _", "device"))]
        says = f"{was} computes something else than in the original"
        kinds = [one for one in changes if one.startswith(("op type", "attr", "value"))]
        why = (kinds or changes or [f"it passes on what {now} gives"])[0]
        self.found.append(StructureFault("computed", self.one.label, node.name, f"{says}: {why}"))

    def _turns(self, after: OpValues) -> None:
        """What the next turn of a loop reads, which was left out for the loop's sake."""
        for index, op in enumerate(self.one.heads.ops):
            name = self.one.heads.names[index]
            if op in NEXTS and name in self.other.by_name:
                texts = [self.one.heads.inputs[index], _op_given_on(self.other.node(name)).inputs]
                left, right = (
                    [_value_read(values, text) for text in some if not text.startswith("^")]
                    for values, some in zip((self.values, after), texts, strict=True)
                )
                if left != right:
                    says = f"{op} {name!r} gives the next turn of its loop something else"
                    self.found.append(StructureFault("computed", self.one.label, name, says))

    def _returned(self, after: OpValues) -> None:
        for output, text in self.one.ret.items():
            now = self.other.ret.get(output)
            if now is None or tensor_of(self.other, after, now) != tensor_of(
                self.one, self.values, text
            ):
                says = f"function {self.one.label!r} returns something else as {output!r}"
                self.found.append(StructureFault("computed", self.one.label, output, says))


def _value_read(values: OpValues, text: str) -> ValueNumber:
    tensor = names.parse(text)
    found = values.get(tensor.op, ())
    return found[tensor.index] if tensor.index < len(found) else (-1, tensor.index)


def _op_given_on(node: Node) -> Node:
    """The op whose values a node gives on, which a rule put in its place."""
    for _ in range(len(node.body)):
        text = _tensor_given_on(node)
        found = node.body.producer(text) if text else None
        if found is None:
            break
        node = found
    return node


def _tensor_given_on(node: Node) -> str:
    """What an op gives on, where it is one that carries a gradient."""
    inputs = node.data_inputs
    if not inputs:
        return ""
    if node.op in GIVES_ON or node.op == "IdentityN":
        return inputs[0]
    if node.op in SELECTS and is_true(node.body, inputs[0]):
        return inputs[1]
    return inputs[-1] if node.op in node.body.library.gradients and not has_name(node) else ""


def _stands_for(other: Body, one: Body) -> dict[str, str]:
    """The ops with a state that stand elsewhere now, and whose place was taken; by their names."""
    found = {}
    for name, index in other.by_name.items():
        node = Node(other, index)
        if name in one.by_name and has_name(one.node(name)) and not has_name(node):
            moved = _op_given_on(node)
            if moved.name not in one.by_name and has_name(moved):
                found[moved.name] = name
    return found
