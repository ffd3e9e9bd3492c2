"""The gradients that a file stores, as TensorFlow takes them, against what their rules say.

At each op of the main graph that a rule patched, TensorFlow takes the gradient of what stands in
the op's place, however that is stored, back to the tensors x0, x1, ... that the op reads; numpy
computes the formula of the rule on the same values, or TensorFlow where numpy has not all its ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from graphpatch import names
from graphpatch.analysis.rule_words import patch_in_words
from graphpatch.differentiation.flow import override_key
from graphpatch.errors import GraphpatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.attach import is_guard
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    Computed,
    InlineFormula,
    LibraryGradient,
    from_key,
    parse_gradient,
)
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.match.spec import WHOLE
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.patches import KINDS
from graphpatch.patches.target import signature
from graphpatch.runtime import tf
from graphpatch.runtime.gradient_functions import surrogate_gradient, tensorflow_output
from graphpatch.runtime.graph_run import first_line
from graphpatch.runtime.tf_gradients import gradients, seeded_upstream
from graphpatch.runtime.values import distance, full_tensor_name
from graphpatch.runtime.verify.session import SessionModel

# By how much of its largest element a gradient may differ: what the dtype's precision leaves.
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-5, "float64": 1e-10}
MOST = 100  # ops of one formula at which it is compared
DROPPED = "this kind has no formula to compare"
TRACED = "it is traced code, not a formula"
INSIDE = "in a function or a v1 loop, or by a reference to a variable, no value can be seen"
NOT_MET = "nothing that runs computes it"


class FormulaCheck(msgspec.Struct, omit_defaults=True):
    """A formula on tensors of these dtypes and shapes, as `verify --json` prints it.

    `max_error`: how far the two sides are apart; `not_compared`: why they were not compared.
    """

    formula: str
    ops: int
    example: str
    shapes: str
    compared_with: str
    max_error: float | None = None
    tolerance: float | None = None
    not_compared: str = ""

    def __str__(self) -> str:
        return f"formula {self.formula}, at {self.example}"

    @property
    def failure(self) -> str:
        """Return in words how the two sides differ; or nothing."""
        if self.max_error is None or self.max_error <= (self.tolerance or 0.0):
            return ""
        sides = "TensorFlow and numpy differ"
        if self.compared_with != "numpy":
            sides = "the file and the rule's formula, as TensorFlow computes it, differ"
        return f"{self}: {sides} by {self.max_error:.3g} of the largest element"


def check_formulas(running: SessionModel) -> list[FormulaCheck]:
    """Check each formula of a patched graph, which is run, on the values that its ops meet."""
    places, counts = list(stored_gradients(running.model_graph)), Counter[str]()
    for place in places:
        counts[place.label] += 1
        place.attempt(place.build, running, counts[place.label] > MOST)
    fetched = [tensor.name for place in places if not place.why for tensor in place.fetched]
    ran = running.run(fetched, False)
    groups: dict[tuple[str, str, str], list[StoredGradient]] = {}
    for place in places:
        place.attempt(place.compare, *ran)
        groups.setdefault((place.label, place.shapes, place.why), []).append(place)
    checks, labels = list[FormulaCheck](), list(counts)
    for key in sorted(groups, key=lambda key: labels.index(key[0])):
        worst = max(groups[key], key=lambda place: place.error)
        example = f"{op_type_in_model(worst.node)} {worst.node.name!r}"
        by = "TensorFlow" if worst.of_rule else "numpy"
        about = worst.label, len(groups[key]), example, worst.shapes, by
        skipped = FormulaCheck(*about, not_compared=worst.why)
        compared = FormulaCheck(*about, worst.error, worst.tolerance)
        checks.append(skipped if worst.why else compared)
    return checks


@dataclass(eq=False)
class StoredGradient:
    """An op that carries a gradient of ours, and what its rule says that flows back.

    `reads` are the tensors that the formula calls x0, x1, ...; `gives` those that it calls y0, ...,
    which the op gives on. `expected` has the gradients, or is a formula that TensorFlow
    differentiates. `of_rule` are those gradients as tensors, where TensorFlow computes them. `why`
    says why nothing can be compared.
    """

    node: Node
    label: str
    reads: Sequence[str] = ()
    gives: Sequence[str] = ()
    expected: Computed | Formula | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    op_type: str = ""
    why: str = ""
    shapes: str = ""
    error: float = 0.0
    tolerance: float = 0.0
    of_rule: Sequence[Any] = ()

    def attempt(self, step: Callable[..., None], *values: Any) -> None:
        """Do a step; where it fails, that is why the place is not compared."""
        try:
            if not self.why:
                step(*values)
        except GraphpatchError as refusal:
            self.why = str(refusal)
        except Exception as failure:  # the reason why it cannot be computed, as others wrote it
            self.why = first_line(failure)

    def build(self, running: SessionModel, is_one_more: bool) -> None:
        """Take the gradients of the place in TensorFlow's graph."""
        graph, known = running.graph, list(map(full_tensor_name, (*self.reads, *self.gives)))
        if not self.node.body.is_main or len(running.there(known)) < len(known):
            raise GraphpatchError(INSIDE)
        if is_one_more:
            raise GraphpatchError(f"it is compared at the first {MOST} ops")
        with graph.as_default(), tf.control_dependencies(None):
            tensors = list(map(graph.get_tensor_by_name, known))
            self.xs, self.ys = tensors[: len(self.reads)], tensors[len(self.reads) :]
            self.dys = list(map(seeded_upstream, self.ys))
            floats = {x.name: x for x in self.xs if x.dtype.is_floating}
            outs = graph.get_operation_by_name(self.node.name).outputs
            pairs = zip(outs, self.dys, strict=False)
            flowing = [(out, dy) for out, dy in pairs if out.dtype.is_floating]
            targets, dys = [out for out, _ in flowing], [dy for _, dy in flowing]
            built = gradients(targets, list(floats.values()), dys, apart=True)
            dense = (None if dx is None else tf.convert_to_tensor(dx) for dx in built)
            self.stored = dict(zip(floats, dense, strict=True))
            assert self.expected is not None
            if isinstance(self.expected, Formula):  # TensorFlow differentiates the formula
                attrs = self.attrs.__getitem__
                op = SimpleNamespace(inputs=self.xs, outputs=self.ys[:1], type="", get_attr=attrs)
                own = len(self.xs) - len(self.expected.tensors)
                formula = self.expected.with_named_inputs(own)
                self.of_rule = surrogate_gradient(formula)(op, self.dys[0])[:own]
            else:
                named = (("x", self.xs), ("y", self.ys), ("dy", self.dys))
                self.tensors = {f"{kind}{n}": t for kind, some in named for n, t in enumerate(some)}
                xs, ys = ([t.dtype.base_dtype.name for t in some] for some in (self.xs, self.ys))
                formula = self.expected.formula
                self.program = interpreter.program(formula, xs, ys, self.attrs, self.op_type)
                if interpreter.missing(self.program):
                    self.of_rule = interpreter.run(self.program, self.tensors, tensorflow_output)
        more = (dx for dx in (*self.stored.values(), *self.of_rule) if dx is not None)
        self.fetched = [*self.xs, *self.ys, *self.dys, *more]

    def compare(self, values: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        """Compare both sides: how far they are apart, as a part of the largest element."""
        for tensor in self.fetched:
            if tensor.name not in values:
                raise GraphpatchError(reasons.get(tensor.name, NOT_MET))
        arrays = (np.asarray(values[tensor.name]) for tensor in (*self.xs, *self.ys))
        self.shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        if self.of_rule:
            dxs = [None if dx is None else values[dx.name] for dx in self.of_rule]
        else:
            read = {name: np.asarray(values[t.name]) for name, t in self.tensors.items()}
            dxs = interpreter.run(self.program, read)
        sums = dict[str, Any]()
        for x, dx in zip(self.xs, dxs, strict=False):
            if dx is not None:
                sums[x.name] = sums[x.name] + dx if x.name in sums else dx
        for name, stored in self.stored.items():
            actual = None if stored is None else values[stored.name]
            self.error = max(self.error, _distance(sums.get(name), actual))
        dtypes = (x.dtype.base_dtype.name for x in self.xs)
        self.tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)


def _distance(expected: Any, actual: Any) -> float:
    """Return how far apart they are; no gradient, `null` in a formula, is the same as zeros."""
    if expected is None or actual is None:
        flows = [dx for dx in (expected, actual) if dx is not None]
        return float("inf") if any(np.any(np.asarray(dx)) for dx in flows) else 0.0
    expected = np.asarray(expected)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    return distance(expected, actual)[1]


def stored_gradients(graph: ModelGraph) -> Iterator[StoredGradient]:
    """Yield each op of a graph that carries a gradient of ours."""
    patches = provenance.patches(graph)
    for body in graph.bodies:
        for node in () if body.is_ours else provenance.touched(body):
            key, calls_function = override_key(node) or "", node.op in graph.library.gradients
            is_join = node.op == "Select" and key == "AddN" and provenance.is_added(node)
            computed = from_key(key)
            if isinstance(computed, Computed) and not calls_function:
                gives = [node.tensor(index) for index in range(len(node.outputs or ()))]
                attrs = dict(signature(node).attrs)
                about = node.data_inputs, gives, computed, attrs, node.op
                yield StoredGradient(node, computed.key, *about)
            elif is_join or (calls_function and provenance.is_added(node) and not is_guard(key)):
                rules = [rule.id for rule in provenance.rules_that_patched(node)]
                patch = next((patches[rule] for rule in rules if rule in patches), {})
                kind = next((key for key in patch if key in KINDS and KINDS[key].verified), None)
                stored = StoredGradient(node, patch_in_words(patch), why="" if kind else DROPPED)
                if kind is not None:
                    stored.attempt(_expect, stored, kind, patch, is_join)
                if kind is not None or not is_join:
                    yield stored


def _expect(stored: StoredGradient, kind: str, patch: Mapping[str, Any], is_join: bool) -> None:
    """Say what the rule of a Select, or of a call of a function, gives back."""
    node, own = stored.node, len(stored.node.outputs or ())
    body, inputs = node.body, node.data_inputs
    if not is_join and len(inputs) == own:  # it gives on what it reads
        stored.reads = stored.gives = inputs
        if kind == "filter_gradient":
            stored.expected = _gradient_of(patch[kind])
        else:
            stored.label = f"{stored.label}, where no gradient comes to the op"
            stored.expected = InlineFormula(Formula.parse("zeros_like(dy)"))
        return
    joined, behind = (inputs[1:2], inputs[2:]) if is_join else (inputs[-own:], inputs[:-own])
    gives = list(filter(None, (_before_stops(body, text) for text in joined)))
    moved = body.producer(gives[0]) if len(gives) == len(joined) else None
    if moved is None:
        raise GraphpatchError("it does not pass on what a StopGradient reads")
    record = provenance.record(node)
    stored.reads = (() if record is None else record.reads) or moved.data_inputs
    stored.gives = gives
    roots = [_counted(body, text) for text in behind]
    if kind == "backward_as":
        outputs = moved.outputs or []
        floats = [t for n, t in enumerate(gives) if outputs[n].dtype in DIFFERENTIABLE]
        stored.reads, stored.gives = roots, (floats if len(gives) > 1 else gives)[: len(roots)]
        sums = [f"sum_like(dy{n}, x{n})" for n in range(len(roots))]
        stored.expected = InlineFormula(Formula.parse(sums))
    elif kind == "straight_through":
        place = patch[kind].get("input", 0) if isinstance(patch[kind], Mapping) else 0
        if isinstance(place, str):  # a name of the pattern
            place = list(map(names.parse, stored.reads)).index(names.parse(roots[0]))
        texts = [f"sum_like(dy, x{n})" if n == place else None for n in range(len(stored.reads))]
        stored.expected = InlineFormula(Formula.parse(texts))
    elif patch.get("on") == WHOLE and kind == "override_gradient":
        stored.expected = _gradient_of(patch[kind])  # attrs would be those of one of its ops
    else:
        stored.attrs = dict(signature(moved).attrs)
        if kind == "surrogate_gradient":
            stored.expected = Formula.parse(patch[kind])
        else:
            gradient = _gradient_of(patch[kind])
            stored.op_type = provenance.in_model(moved).op if kind == "override_gradient" else ""
            stored.expected = gradient.for_op(stored.op_type) if stored.op_type else gradient


def _gradient_of(spec: Any) -> LibraryGradient | InlineFormula:
    """Return the formula that a rule gives; raise GraphpatchError where it gives none."""
    gradient = parse_gradient(spec)
    if not isinstance(gradient, LibraryGradient | InlineFormula):
        raise GraphpatchError(TRACED)
    return gradient


def _before_stops(body: Body, text: str) -> str | None:
    """Return the tensor that the op gives, behind a StopGradient."""
    node = body.producer(text)
    if node is None or not provenance.is_added(node) or node.op != "StopGradient":
        return None
    return _before_stops(body, node.data_inputs[0]) or node.data_inputs[0]


def _counted(body: Body, text: str) -> str:
    """Return the tensor that gets a gradient: before a guard, and before it was repeated."""
    node = body.producer(text)
    while node is not None and provenance.is_added(node) and not provenance.clone_of(node):
        if not is_guard(override_key(node) or "") and node.op != "BroadcastTo":
            break
        text = node.data_inputs[0]
        node = body.producer(text)
    return text
