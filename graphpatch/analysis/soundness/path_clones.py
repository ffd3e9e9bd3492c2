"""`backward_as`: does what an op counts as compute what the op does, with the noise left out?

The tensor that a Select's gradient goes to is compared with the one that the Select gives on, op by
op: a clone must be of the op's type and attrs, and read what the op reads. Where a noisy op was,
its input must come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from graphpatch import names
from graphpatch.analysis.rule_words import StructureFault, fault_at
from graphpatch.analysis.soundness.joined import (
    FileRules,
    counted_by_call,
    input_of,
    is_repeat,
    output_of,
    repeated_to,
)
from graphpatch.analysis.soundness.numbering import SELECTS, is_true
from graphpatch.analysis.soundness.stored_gradients import (
    is_call,
    is_join,
    kind_of,
    patch_of,
    stopped_tensor,
)
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.nodedef import attr_spans
from graphpatch.graph.op_types import GIVES_ON
from graphpatch.graph.provenance import clone_of, name_in_model
from graphpatch.graph.wire import piece_bytes


def clone_faults(graph: Graph) -> Iterator[StructureFault]:
    """The clean tensors of a graph that do not compute what they should."""
    rules = FileRules(graph)
    if not any("backward_as" in patch for patch in rules.values()):
        return
    for body in graph.bodies:
        if body.is_ours or rules.overlap(body):  # told where gradients are compared
            continue
        walks: dict[int, _CleanPathCheck] = {}  # by the input that noisy ops count as
        for node in provenance.touched(body):
            patch = patch_of(node, rules) if is_join(node) or is_call(node) else None
            if patch is not None and kind_of(patch) == "backward_as":
                place = input_of(patch["backward_as"])
                walk = walks.setdefault(place, _CleanPathCheck(body, place, graph))
                yield from _check_counted(node, walk)


def _check_counted(node: Node, walk: _CleanPathCheck) -> Iterator[StructureFault]:
    for output, text in _counted_outputs(node):  # none of a call before an op that gets no gradient
        given = stopped_tensor(node, output)
        if given is None and is_join(node):  # told where its gradient is compared
            continue
        why = "is not known" if given is None else walk.compare(text, given)
        if why:
            yield fault_at("clean", node, f"the tensor that it counts as on the way back {why}")


def _counted_outputs(node: Node) -> list[tuple[int, str]]:
    """The outputs that carry a gradient, each with the tensor that it counts as."""
    if is_join(node):
        return [(0, node.data_inputs[2])]
    outputs = [n for n, arg in enumerate(node.outputs or ()) if arg.dtype in DIFFERENTIABLE]
    return list(zip(outputs, counted_by_call(node), strict=False))


TensorPair: TypeAlias = tuple[str, str]


@dataclass(eq=False)
class _CleanPathCheck:
    """Pairs of tensors of a body, compared on the path to what both are computed of.

    A pair of ops, spelled `^NAME`, stands for all that they read. `told` has what is wrong with a
    pair that was compared; nothing where it is right. `left_out` are the pairs on whose path a
    noisy op is left out.
    """

    body: Body
    place: int  # of the input that a noisy op counts as
    graph: Graph
    told: dict[TensorPair, str] = field(default_factory=dict)
    left_out: set[TensorPair] = field(default_factory=set)

    def compare(self, clean: str, noisy: str) -> str:
        """What is wrong with the clean tensor; nothing where it is right."""
        first = self._through(clean), self._through(noisy)
        behind: dict[TensorPair, list[TensorPair]] = {}
        todo = [first]
        while todo:
            pair = todo.pop()
            if pair in behind:
                continue
            found = (self.told[pair] or []) if pair in self.told else self._step(*pair)
            if isinstance(found, str):
                self.told[first] = found
                return found
            behind[pair] = [(self._through(one), self._through(other)) for one, other in found]
            todo += behind[pair]
        self.told.update(dict.fromkeys(behind, ""))
        self._spread(behind)
        return "" if first in self.left_out else "leaves out no noisy op"

    def _spread(self, behind: Mapping[TensorPair, Sequence[TensorPair]]) -> None:
        """Add the pairs to those with a noisy op on their path that lead to one of these."""
        leading: dict[TensorPair, list[TensorPair]] = {}
        for pair, some in behind.items():
            for one in some:
                leading.setdefault(one, []).append(pair)
        todo = [pair for pair in leading if pair in self.left_out]
        while todo:
            found = [one for one in leading.get(todo.pop(), ()) if one not in self.left_out]
            self.left_out.update(found)
            todo += found

    def _step(self, clean: str, noisy: str) -> str | list[TensorPair]:
        """The pairs that must agree for these to; or what is wrong."""
        one, other = self.body.producer(clean), self.body.producer(noisy)
        if clean.startswith("^") and one and other:
            return self._clone(one, other)
        if names.parse(clean) == names.parse(noisy):
            return f"reads {noisy}, which is noisy" if other and self._is_cloned(other) else []
        if other is None:
            return f"reads {clean} instead of {noisy}"
        if one is not None and clone_of(one) in _names_of(other):
            is_same = output_of(one, clean) == output_of(other, noisy)
            ops = [(f"^{one.name}", f"^{other.name}")]  # all that they read, whichever output it is
            return ops if is_same else f"reads {clean} instead of {noisy}"
        if self._is_cloned(other):
            return f"reads {clean} instead of a clone of {other}"
        return self._left_out(one, clean, other, noisy)

    def _left_out(
        self, one: Node | None, clean: str, other: Node, noisy: str
    ) -> str | list[tuple[str, str]]:
        """A noisy op stands for its input, repeated to its shape where that may be smaller."""
        if self.place >= len(other.data_inputs) or output_of(other, noisy):
            return f"reads {clean} instead of {noisy}"
        read = clean
        if one is not None and is_repeat(one):
            if names.parse(self._through(repeated_to(one))) != names.parse(noisy):
                return f"is repeated to another shape than that of {noisy}"
            clean = one.data_inputs[0]
        self.left_out.add((read, noisy))
        return [(clean, other.data_inputs[self.place])]

    def _clone(self, one: Node, other: Node) -> str | list[TensorPair]:
        """The inputs that must agree for the outputs of a clone to; or what is wrong."""
        done = other if one.op == other.op else _op_in_function(self.graph, other)
        is_like = one.op == done.op and len(one.data_inputs) == len(other.data_inputs)
        if not is_like or _attrs(one) != _attrs(done):
            return f"is computed by {one}, which is not like {other}, whose clone it is"
        return list(zip(one.data_inputs, other.data_inputs, strict=True))

    def _through(self, text: str) -> str:
        """What ops give on that rules added, to carry a gradient."""
        while not text.startswith("^"):
            given = _given_on(self.body.producer(text), text)
            if given is None:
                break
            text = given
        return text

    def _is_cloned(self, node: Node) -> bool:
        return not self._cloned.isdisjoint(_names_of(node))

    @cached_property
    def _cloned(self) -> set[str]:
        """The ops that have clones, by the names that they had before any rule."""
        return {name for node in provenance.touched(self.body) if (name := clone_of(node))}


def _names_of(node: Node) -> set[str]:
    return {node.name, name_in_model(node)}


def _op_in_function(graph: Graph, node: Node) -> Node:
    """What a call computes whose function holds one op that does all of it; else the op itself."""
    body = graph.functions.get(node.op)
    if body is None or body.signature is None or len(body) != 1:
        return node
    [inner] = body
    given = [body.ret.get(arg.name) for arg in body.signature.output_arg]
    outputs = [inner.tensor(place) for place in range(len(inner.outputs or ()))]
    is_whole = inner.inputs == tuple(body.arguments) and given == outputs
    return inner if is_whole else node


def _attrs(node: Node) -> Mapping[str, bytes]:
    """The attrs that say what an op computes."""
    spans = attr_spans(node.body.payload(node.index))
    return {key: piece_bytes(span) for key, span in spans.items() if not key.startswith("_")}


def _given_on(node: Node | None, text: str) -> str | None:
    """What an added op gives on as this tensor; None for other ops, and for clones."""
    if node is None or not provenance.is_added(node) or clone_of(node):
        return None
    inputs, output = node.data_inputs, output_of(node, text)
    if node.op in GIVES_ON or node.op == "IdentityN":
        return inputs[output]
    if node.op in SELECTS and is_true(node.body, inputs[0]):
        return inputs[1]
    if node.op in node.body.library.gradients:
        return inputs[len(inputs) - len(node.outputs or ()) + output]
    return None
