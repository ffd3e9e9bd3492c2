"""The overrides of a patched graph, and why one of them never fires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphpatch.analysis.doctor.diagnosis import Doctor
from graphpatch.analysis.doctor.survey import doctors
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.override_keys import override_key
from graphpatch.formats import Model
from graphpatch.gradients.attach import PASS, is_guard
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.topology import downstream, upstream
from graphpatch.names import TensorName


@dataclass(frozen=True, slots=True)
class Override:
    """An op with another gradient than its type's: by a key, or by a function of the library."""

    node: Node
    key: str
    is_function: bool

    def __str__(self) -> str:
        return f"{self.node.op} {self.node.name}" + (
            "" if self.node.body.is_main else f" in function {self.node.body.label}"
        )


def overrides(graph: ModelGraph) -> Iterator[Override]:
    """The ops that have one, in functions too, in the order of the file.

    Left out are keys that are for tf.saved_model.load alone, the guards that go with overrides, and
    functions that rules only keep from being differentiated.
    """
    gradients = graph.library.gradients
    for body in graph.bodies:
        for node in () if body.is_ours else body:
            key = override_key(node)
            if key is not None and (key.startswith(PASS) or is_guard(key)):
                continue
            if key is not None:
                yield Override(node, key, node.op in gradients)
            elif node.op in gradients and provenance.original_type(node) == node.op:
                yield Override(node, gradients[node.op], True)


@dataclass(eq=False)
class UnfiredReasons:
    """Asked of overrides that did not fire, with the pairs whose gradients were taken."""

    model: Model
    graph: ModelGraph
    pairs: Sequence[tuple[str, str]]
    control_flow_v2: bool = True

    def __post_init__(self) -> None:
        self._doctor: Doctor | None = None
        self._bodies = Bodies(self.graph)

    def why(self, one: Override) -> tuple[str, str]:
        """Whether it is `idle`, `unseen` or `ignored`, and why it did not fire, in words."""
        node = one.node
        if self.graph.around.is_object_based:
            return "idle", self._unasked(node.body.label)
        caller = None if node.body.is_main else self._bodies.place_of(node).ignoring
        if caller is not None and not one.is_function:
            says = f"function {node.body.label} is called by {caller}, where a Session ignores it"
            return "ignored", says
        if not node.body.is_main:
            says = f"no gradient that was taken comes to it in function {node.body.label}"
            if caller is None:
                says = f"no gradient that was taken comes to function {node.body.label}"
            return "unseen" if caller is not None else "idle", says
        return "idle", self._blocked(node)

    def _unasked(self, function: str) -> str:
        """Why no gradient comes to a function of a TF2 SavedModel."""
        todo, found = [function], {function}
        while todo:
            callers = self._bodies.callers.get(todo.pop(), ())
            if any(one.body.is_main for one in callers):
                return f"no gradient that was taken comes to it in function {function}"
            labels = {one.body.label for one in callers} - found
            found |= labels
            todo += labels
        return (
            f"no signature calls function {function}, and verify runs signatures; export the model "
            f"with a signature for it, or compare its gradients after tf.saved_model.load"
        )

    def _blocked(self, node: Node) -> str:
        """What keeps the gradients of the targets from the op."""
        if not self._behind[node.index]:
            return "none of the tensors whose gradients are taken is computed of it"
        if not self._before[node.index]:
            return "it is not on the way from what the gradients are taken by"
        asked = self._doctor = self._doctor or self._made()
        wiring = asked.session.wiring(self.graph.main)
        for target in dict.fromkeys(target for _, target in self.pairs):
            found = asked.diagnose((node.index, 0), wiring.tensor(target))
            if found.connected and found.verdict != "flows" and found.of_session:
                first = found.of_session[0]
                return f"no gradient of {target} comes to it: {first.node}: {first.what}"
        return "no gradient that was taken comes to it"

    @cached_property
    def _behind(self) -> bytearray:
        """What the tensors are computed from whose gradients are taken."""
        return upstream(self.graph.main, {_tensor_name(target) for _, target in self.pairs})

    @cached_property
    def _before(self) -> bytearray:
        """What is computed of the tensors by which gradients are taken."""
        return downstream(self.graph.main, {_tensor_name(source) for source, _ in self.pairs})

    def _made(self) -> Doctor:
        place = [graph.around.tags for graph in self.model.graphs].index(self.graph.around.tags)
        return doctors(self.model, self.control_flow_v2)[place]


def _tensor_name(tensor: str) -> TensorName:
    """A tensor as TensorFlow spells it, `op:0`."""
    op, _, output = tensor.rpartition(":")
    return TensorName(op, int(output))
