"""Which overrides of a patched graph fired, and why the others did not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphpatch.analysis.doctor.diagnosis import doctors
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.hidden import shadowed_ops
from graphpatch.differentiation.override_keys import CUSTOM, override_key
from graphpatch.formats import Model
from graphpatch.gradients.attach import PASS, is_guard
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.graph.walk import downstream, upstream
from graphpatch.names import OpKey, TensorName, op_of

LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")


@dataclass(frozen=True, slots=True)
class Override:
    """An op with another gradient than its type's: by a key, or by a function of the library."""

    node: Node
    key: str
    is_function: bool

    @property
    def place(self) -> OpKey:
        """Return the body and the name of the op."""
        return self.node.body.label, self.node.name

    def __str__(self) -> str:
        body = "" if self.node.body.is_main else f" in function {self.node.body.label}"
        return f"{op_type_in_model(self.node)} {self.node.name}{body}"

    def document(self) -> dict[str, Any]:
        """Return the override as `verify --json` prints it."""
        return {"body": self.node.body.label, "op": self.node.name, "key": self.key}


@dataclass(frozen=True, slots=True)
class UnfiredOverride:
    """An override whose op was not asked for its gradient.

    `is_new`: the original does not have it. `kind`: TensorFlow ignores it (`ignored`), its op is in
    a function that is differentiated in C++ (`unseen`), nothing that runs calls that function or
    reads the op in it (`uncalled`), or no gradient came to it (`idle`).
    """

    override: Override
    why: str
    is_new: bool
    kind: str

    @property
    def is_wrong(self) -> bool:
        """Return whether the patch added it in vain, wherever gradients are taken."""
        return self.is_new and self.kind == "ignored"

    def document(self) -> dict[str, Any]:
        """Return the override as `verify --json` prints it."""
        op = {**self.override.document(), "type": op_type_in_model(self.override.node)}
        return {**op, "why": self.why, "fails": self.is_wrong}


def overrides(graph: ModelGraph) -> Iterator[Override]:
    """Yield the ops that have one, in functions too, in the order of the file.

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
class Firing:
    """Sorts the overrides of a patched graph by what happened when gradients were taken.

    `asked` are the ops that TensorFlow asked for their gradient, `pairs` the sources and targets of
    the gradients, `registered` the keys for which its process has gradients.
    """

    before: ModelGraph
    model: Model
    graph: ModelGraph
    asked: Collection[OpKey]
    pairs: Sequence[tuple[str, str]]
    registered: Collection[str]
    control_flow_v2: bool
    _read: dict[Body, set[int]] = field(default_factory=dict)

    def sort(self) -> tuple[list[Override], list[UnfiredOverride]]:
        """Return the overrides that fired, and those that did not."""
        fired, unfired = [], []
        passed, is_loaded = shadowed_ops(self.graph), self.graph.around.is_object_based
        known = {(override.place, override.key) for override in overrides(self.before)}
        for override in overrides(self.graph):
            key, is_new = override.key, (override.place, override.key) not in known
            is_unknown = not override.is_function and key not in self.registered and not is_loaded
            if is_unknown and not key.startswith(CUSTOM):
                kind = "ignored"
                why = (
                    f"no program registers the key {key!r}: name the module or .py file that does "
                    "with --import (in Python: imports=[...])"
                )
            elif is_new and override.place in passed:
                says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
                kind, why = "idle", f"{passed[override.place]} {says}"
            elif self._has_fired(override):
                fired.append(override)
                continue
            else:
                kind, why = self._why(override)
            unfired.append(UnfiredOverride(override, why, is_new, kind))
        return fired, unfired

    def _has_fired(self, override: Override) -> bool:
        if not self.graph.around.is_object_based:
            return override.place in self.asked
        body, name = override.place
        # Of most names of functions the loader leaves but the middle; others get a longer one.
        return any(
            op == name and (part in body or LOADED_BODY.sub(r"\1", part) == body)
            for part, op in self.asked
        )

    def _why(self, override: Override) -> tuple[str, str]:
        """Return the kind of an override that did not fire, and why it did not, in words."""
        node, label = override.node, override.node.body.label
        if node.body.is_main:
            return "idle", self._blocked(node)
        if not self._is_called(label):
            return "uncalled", f"nothing that runs calls function {label}"
        if node.index not in self._read_ops(node.body):
            return "uncalled", f"no output of function {label} is computed of it"
        came = f"no gradient that was taken comes to it in function {label}"
        if self.graph.around.is_object_based:
            return "idle", came
        caller = self._bodies.place_of(node).ignoring
        if caller is None:
            return "idle", f"no gradient that was taken comes to function {label}"
        if not override.is_function:
            says = f"function {label} is called by {caller}, where a Session ignores it"
            return "ignored", says
        return "unseen", came

    @cached_property
    def _bodies(self) -> Bodies:
        return Bodies(self.graph)

    def _is_called(self, function: str) -> bool:
        """Return whether an op of the main graph calls a function, or calls one that does."""
        todo, met = [function], {function}
        while todo:
            callers = self._bodies.callers.get(todo.pop(), ())
            if any(caller.body.is_main for caller in callers):
                return True
            labels = {caller.body.label for caller in callers} - met
            met |= labels
            todo += labels
        return False

    def _read_ops(self, body: Body) -> set[int]:
        """Return the ops that outputs of a function are computed of, not by their shapes alone."""
        if body not in self._read:
            todo = [body.by_name.get(op_of(text)) for text in body.ret.values()]
            read = self._read[body] = set()
            while todo:
                index = todo.pop()
                if index is not None and index not in read:
                    read.add(index)
                    if not flow.reads_shape_alone(body.heads.ops[index]):
                        inputs = body.heads.inputs[index]
                        todo += [body.by_name.get(op_of(text)) for text in inputs]
        return self._read[body]

    def _blocked(self, node: Node) -> str:
        """Say what keeps the gradients of the targets from the op."""
        if not self._behind[node.index]:
            return "none of the tensors whose gradients are taken is computed of it"
        if not self._before[node.index]:
            return "it is not on the way from what the gradients are taken by"
        wiring = self._doctor.session.wiring(self.graph.main)
        for target in dict.fromkeys(target for _, target in self.pairs):
            diagnosis = self._doctor.diagnose((node.index, 0), wiring.tensor(target))
            is_blocked = diagnosis.connected and diagnosis.verdict != "flows"
            if is_blocked and diagnosis.of_session:
                first = diagnosis.of_session[0]
                return f"no gradient of {target} comes to it: {first.node}: {first.what}"
        return "no gradient that was taken comes to it"

    @cached_property
    def _behind(self) -> bytearray:
        return upstream(self.graph.main, {_tensor_name(target) for _, target in self.pairs})

    @cached_property
    def _before(self) -> bytearray:
        return downstream(self.graph.main, {_tensor_name(source) for source, _ in self.pairs})

    @cached_property
    def _doctor(self) -> Any:
        tags = [graph.around.tags for graph in self.model.graphs]
        return doctors(self.model, self.control_flow_v2)[tags.index(self.graph.around.tags)]


def _tensor_name(tensor: str) -> TensorName:
    op, _, output = tensor.rpartition(":")
    return TensorName(op, int(output))
