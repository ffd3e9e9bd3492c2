"""What `doctor --run` runs: the gradients that it foretells, and where NaN starts in them.

That is at the first op whose output, or whose gradient, is NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphpatch.analysis.doctor.causes import RuleDict
from graphpatch.control_flow import contexts
from graphpatch.errors import ModelError
from graphpatch.formats.model import Model
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import BOUNDARIES, BRANCHES, CALLS, CASES, ENDS, ENTERS, IFS, LOOPS
from graphpatch.graph.walk import reached
from graphpatch.opdefs import HANDLES
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import GraphRun, ops_before, placeholders
from graphpatch.runtime.imported import imported_graph, spliced_function
from graphpatch.runtime.tf_gradients import (
    RaisedError,
    control_flow,
    gradients,
    gradients_or_raised,
    seeded_upstream,
)
from graphpatch.runtime.values import GUESSES, Guess, Values
from graphpatch.runtime.verify.session import DEAD, SessionModel
from graphpatch.shown import Document, plural

# One example first, as a note on batch norms says.
ONE_EXAMPLE_FIRST = (Guess(1, (1,)), *GUESSES)
FROM_START = "it is there from the start: give other values"
FORWARD = "no rule: a patch changes no forward value. In the program, {}"
# What makes the forward value of an op finite, in the program that builds the graph.
FORWARD_CURES = {
    **dict.fromkeys(("Div", "RealDiv"), "divide with tf.math.divide_no_nan"),
    **dict.fromkeys(("Log", "Pow", "Rsqrt", "Sqrt"), "let it read tf.maximum(x, 1e-7)"),
    "Exp": "let it read tf.minimum(x, 80.)",
}
BOUNDED = "bound what it reads"
UNKNOWN_INSIDE = "; which op of the functions that it calls is not known"
UNSEEN = "{} cannot be looked into"
SEE_INTO = (
    "to look into it, build the graph with tf.compat.v1.enable_control_flow_v2(), or call "
    "tf.debugging.check_numerics in it"
)
INSIDE = "graphpatch_inside_"  # scopes of the ops of functions
MOST_STEPS = 100  # of a loop that is looked into


def run_pairs(
    model: Model,
    place: int,
    pairs: Sequence[tuple[str, str]],
    control_flow_v2: bool = True,
    feed: Values | None = None,
) -> list[dict[str, Any]]:
    """Run the gradient of each pair in graph `place` of a model; return what that gives.

    The upstream gradient is seeded random numbers. With a `feed`, placeholders get its values, and
    variables those of the checkpoint, or of their initialisers; without, both get small seeded
    values. `gradient` is `tensor`, `none` or `error`; `zero` whether all of it is zero. The graph
    runs, with all that it does: `refuse_unsafe` first, where it is not trusted.
    """
    valued = None if feed is None else model  # no checkpoint is needed to see a gradient flow
    results, running = [], None
    with control_flow(control_flow_v2):
        for source, target in pairs:
            # One to which no gradient was added before, and where none raised.
            running = running or GraphRun(imported_graph(model, place), model=valued)
            results.append(_run_pair(running, source, target, feed or {}))
            if results[-1]["gradient"] != "none":
                running = None
    return results


def _run_pair(running: GraphRun, source: str, target: str, fed: Values) -> dict[str, Any]:
    x, y = running.tensor(source), running.tensor(target)
    try:
        with running.graph.as_default():
            upstream = seeded_upstream(y) if y.dtype.is_floating else None
        [built] = gradients_or_raised(y, [x], upstream)
    except RaisedError as error:  # whatever a gradient function raises is the answer
        return _result("error", str(error))
    if built is None:
        return _result("none", "None")
    dx = getattr(built, "values", built).name
    values, reasons = running.choose([dx], fed, ONE_EXAMPLE_FIRST)
    if dx not in values:
        why = f"the gradient is built, and running it fails: {reasons[dx]}"
        return _result("tensor", why)
    array = np.asarray(values[dx])
    count = array.size - np.count_nonzero(np.isfinite(array))
    if count:
        says = f"NaN or infinite, {count:,} of {plural(array.size, 'element')}"
        return _result("tensor", says, ran=True, finite=False)
    if array.any() or not array.size:
        says = f"largest element {np.max(np.abs(array), initial=0):.3g}"
        return _result("tensor", says, ran=True)
    return _result("tensor", "exactly zero on these values", ran=True, zero=True)


def _result(
    gradient: str, says: str, ran: bool = False, zero: bool = False, finite: bool = True
) -> dict[str, Any]:
    return {"gradient": gradient, "ran": ran, "zero": zero, "finite": finite, "says": says}


@dataclass(frozen=True, slots=True)
class NotFinite(Document):
    """Where the value or the gradients of `target` first are NaN or infinite.

    `phase` is "forward", "backward", "finite" where neither are, or "not run". `values` describe
    what the op gives and reads, with the element at which it starts; `seeded` are the placeholders
    that were not fed. `body` is "main", or the function that has the op. `remedy` says what fixes
    it, and `rule` is the rule that does, where one can.
    """

    keys = "target phase says op type body slot values seeded remedy rule"
    target: str
    phase: str
    says: str
    op: str = ""
    type: str = ""
    body: str = ""
    slot: int | None = None
    values: tuple[str, ...] = ()
    seeded: tuple[str, ...] = ()
    remedy: str = ""
    rule: RuleDict | None = None


def first_not_finite(
    model: Model, place: int, target: str, sources: Sequence[str], feed: Values
) -> NotFinite:
    """Run a graph forward and backward, and name the first op that gives NaN or infinity.

    Forward, it is the first op of those from which NaN comes to the target; backward, where the
    target is finite, the first op that is given finite gradients and gives back others, which come
    to a placeholder, a variable or one of `sources`. Variables have the values of the checkpoint,
    or of their initialisers; placeholders that are not in `feed` are seeded. What functions compute
    is put into the graph where NaN starts in a call, a branch or a loop of them. v1 loops and
    branches are not looked into: they are named, and the tensor that they read.
    """
    search = _Search(model, model.graphs[place])
    _, reasons = search.choose([target], feed)
    seeded = tuple(t.name for t in placeholders(search.graph) if t.name not in feed)
    if reasons:
        return NotFinite(target, "not run", reasons[target], seeded=seeded)
    return replace(search.start(target, sources), target=target, seeded=seeded)


@dataclass(frozen=True, slots=True)
class _Region:
    """Ops in the order of a run, and the tensors that are computed of them.

    It is a graph, or what the functions of an op compute: then `ends` are the tensors that it
    reads. `floats` are those that can be fetched.
    """

    order: Sequence[Any]
    outputs: Sequence[Any]
    floats: Mapping[str, Any]
    ends: frozenset[str] = frozenset()


class _Search(SessionModel):
    """One run of a graph: what is computed for a target, and which of it is not finite."""

    def __init__(self, model: Model, graph: ModelGraph) -> None:
        super().__init__(model, graph)
        # Gradients of loops change their bodies: this is what the model has.
        graph_def = self.graph.as_graph_def()
        self.functions = {item.signature.name: item for item in graph_def.library.function}
        self.nodes = {node.name: node for node in graph_def.node}
        self.reasons: list[str] = []  # why some tensors could not be run
        self.labels: dict[str, str] = {}  # of scopes, the functions whose ops were put there

    def start(self, target_name: str, sources: Sequence[str]) -> NotFinite:
        """Return the first op forward, or else backward."""
        target, self.sources = self.graph.get_tensor_by_name(target_name), sources
        ops = ops_before([target.op], control=False)
        order = [op for op in ops if op.type in ENDS or op.name not in self.inside]
        region = self._region(order, [target])
        start = self._forward(region)
        if start is not None:
            return start
        try:
            dxs = gradients_or_raised(target, list(region.floats.values()))
        except RaisedError as error:
            reason = str(error).partition(". ")[0]
            return self._answer("not run", f"it is finite; its gradients: {reason}")
        self.reasons.clear()
        start = self._backward(region, dict(zip(region.floats, dxs, strict=True)))
        if start is None and self.reasons:
            return self._answer("not run", f"it is finite; its gradients: {self.reasons[0]}")
        return start or self._answer("finite", "it is finite, and so are its gradients")

    def _region(self, order: Sequence[Any], outputs: Sequence[Any]) -> _Region:
        made = {t.name: t for op in order for t in op.outputs if t.dtype.is_floating}
        return _Region(order, outputs, {name: made[name] for name in self.there(made)})

    def _answer(
        self, phase: str, says: str, op: Any = None, tensors: Sequence[Any] = (), **more: Any
    ) -> NotFinite:
        """Describe what an op gives, and what it reads at the first element that is not finite."""
        if op is not None:
            says += UNKNOWN_INSIDE if self._calls_functions(op) else ""
            if op.type in ENDS:
                says += f"; {UNSEEN.format(self._context(op))}"
                more["remedy"] = SEE_INTO
            body, name = self._place(op.name)
            more |= {"op": name, "type": op.type, "body": body}
        values, _ = self.run([tensor.name for _, tensor in tensors], False)
        known = [(words, values[t.name]) for words, t in tensors if t.name in values]
        at = np.argwhere(~np.isfinite(_numbers(known[0][1])))[0] if known else ()
        more["values"] = tuple(f"{words}: {_described(value, at)}" for words, value in known)
        return NotFinite("", phase, says, **more)

    def _not_finite(self, tensors: Mapping[str, Any]) -> set[str]:
        """Return the names of the tensors that hold NaN or infinity, found where they are."""
        with self.graph.as_default(), tf.control_dependencies(None):
            tests = {n: tf.reduce_all(tf.math.is_finite(t)).name for n, t in tensors.items()}
        values, reasons = self.run(list(tests.values()), False)
        self.reasons += [why for why in reasons.values() if DEAD not in why]
        return {name for name, test in tests.items() if not values.get(test, True)}

    def _forward(self, region: _Region) -> NotFinite | None:
        """Follow NaN from the outputs back to the ops that read only finite values."""
        bad = self._not_finite(region.floats)
        met = reached(
            (made.op for made in region.outputs if made.name in bad),
            lambda op: (read.op for read in op.inputs if read.name in bad),
        )
        if not met:
            return None
        order = (op for op in region.order if op in met)
        first = next(op for op in order if bad.isdisjoint(read.name for read in op.inputs))
        inside = self._inside(first)
        if inside is not None:
            outputs = [inside.outputs[t.value_index] for t in first.outputs if t.name in bad]
            start = self._forward(replace(inside, outputs=outputs))
            if start is not None:
                return start
        gives = next(made for made in first.outputs if made.name in bad)
        remedy = FORWARD.format(FORWARD_CURES.get(first.type, BOUNDED))
        tensors = [(f"gives {self._place(gives.name)[1]}", gives), *self._reads(first)]
        remedy = remedy if first.inputs else FROM_START
        return self._answer("forward", "its value is not finite", first, tensors, remedy=remedy)

    def _backward(self, region: _Region, dxs: Mapping[str, Any]) -> NotFinite | None:
        """Find the first op, from the outputs back, to which finite gradients come alone.

        `dxs` are the gradients of the region's tensors. None where they are finite, or where NaN
        comes to no end: a filter takes it out.
        """
        dx_at = {name: getattr(dx, "values", dx) for name, dx in dxs.items() if dx is not None}
        bad = self._not_finite(dx_at)
        coming = reached(
            (name for name in bad if self._is_end(name, region, dx_at)),
            lambda name: (
                t.name for op in self._readers(name) for t in op.outputs if t.name in bad
            ),
        )
        for op in reversed(region.order):
            dys = {made: dx_at[made.name] for made in op.outputs if made.name in dx_at}
            slots = [slot for slot, read in enumerate(op.inputs) if read.name in coming]
            is_first = dys and slots and not any(made.name in bad for made in dys)
            if is_first and op.type not in ENDS:
                start = self._backward_of(op, dys, slots)
                if start is not None:
                    return start
        if not coming or region.ends:
            return None
        last = next(t.name for op in reversed(region.order) for t in op.outputs if t.name in coming)
        readers = (op for op in self._readers(last) if op.name in self.nodes)  # as in the model
        starts = [op for op in readers if op.type in ENTERS | BRANCHES]
        says = f"it is finite; its gradient is not at {last}: "
        if not starts:
            return self._answer("backward", f"{says}the sum of the gradients that come there")
        unseen = " and ".join(dict.fromkeys(map(self._context, starts)))
        return self._answer("backward", says + UNSEEN.format(unseen), remedy=SEE_INTO)

    def _readers(self, name: str) -> list[Any]:
        return list(self.graph.get_tensor_by_name(name).consumers())

    def _context(self, op: Any) -> str:
        """Name the v1 loop or branch that begins or ends at an op."""
        main = self.model_graph.main
        try:
            flow, index = contexts.control_flow(main), main.by_name[op.name]
            if index in flow.in_loop and op.type not in BRANCHES:
                return contexts.described(flow.in_loop[index])
            read = op.inputs[0 if op.type in ENDS else 1]
            context = flow.given(main.by_name[read.op.name], read.name)
            if op.type in ENDS and isinstance(context, contexts.Branch):
                return f"the v1 branch by {context.cond.current.pred!r}"
            return f"the v1 branch by {read.op.name!r}"
        except (KeyError, ModelError):  # contexts that TensorFlow could not tell of
            return f"the v1 loop or branch at {op.name}"

    def _is_end(self, name: str, region: _Region, dx_at: Mapping[str, Any]) -> bool:
        """Return whether it is a source, or what no gradient comes back through, but a constant."""
        if region.ends:
            return name in region.ends
        op = region.floats[name].op
        is_leaf = op.type != "Const" and not any(read.name in dx_at for read in op.inputs)
        return is_leaf or name in self.sources

    def _backward_of(
        self, op: Any, dys: Mapping[Any, Any], slots: Sequence[int]
    ) -> NotFinite | None:
        """Return what an op gives back that is not finite, to one of these slots, if it does."""
        with self.graph.as_default():
            dxs = gradients(list(dys), list(op.inputs), list(dys.values()), apart=True)
        for slot in slots:
            dense = getattr(dxs[slot], "values", dxs[slot])
            if dense is None or not self._not_finite({"dx": dense}):
                continue
            start = self._backward_inside(op, dys, op.inputs[slot])
            if start is not None:
                return start
            values = [(f"gives the gradient for input {slot}", dense), *self._reads(op)]
            places = ((self._place(made.name)[1], dy) for made, dy in dys.items())
            values += ((f"reads the gradient at {place}", dy) for place, dy in places)
            says = "it is finite; its gradient is not"
            return self._answer("backward", says, op, values, slot=slot)
        return None

    def _backward_inside(self, op: Any, dys: Mapping[Any, Any], x: Any) -> NotFinite | None:
        """Return the op of a function that `op` calls from which NaN comes to a tensor it reads."""
        inside = self._inside(op)
        if inside is None:
            return None
        tensors = {**inside.floats, x.name: x}
        ys = [inside.outputs[made.value_index] for made in dys]
        try:
            with self.graph.as_default():
                dxs = gradients(ys, list(tensors.values()), list(dys.values()))
        except Exception:
            return None  # whatever a gradient function raises, in Python alone: the call is named
        region = replace(inside, ends=frozenset({x.name}))
        return self._backward(region, dict(zip(tensors, dxs, strict=True)))

    def _calls_functions(self, op: Any) -> bool:
        return op.type in CALLS | IFS | CASES | LOOPS or op.type in self.functions

    def _inside(self, op: Any) -> _Region | None:
        """Put what the functions of an op compute beside it; None of others, and where it fails.

        Of branches it is the one that is taken, of a loop one body for each step.
        """
        if not self._calls_functions(op):
            return None
        count = len(self.graph.get_operations())
        try:
            with self.graph.as_default(), tf.control_dependencies(None):
                outputs = self._computed(op)
        except (KeyError, ValueError, tf.errors.OpError):
            return None  # a function that TensorFlow makes no graph of: the call is named
        if outputs is None:
            return None
        added = set(self.graph.get_operations()[count:])
        if any(op.type in BOUNDARIES for op in added):
            return None  # v1 loops and branches in a function: the call is named
        order = ops_before([output.op for output in outputs], control=False)
        return self._region([op for op in order if op in added], outputs)

    def _computed(self, op: Any) -> list[Any] | None:
        """Return what an op that calls functions gives, computed beside it."""
        node = self.nodes[op.name]
        reads = op.inputs[: sum(not text.startswith("^") for text in node.input)]
        if op.type in LOOPS:
            for _ in range(MOST_STEPS):
                if not self._choice(self._inlined(node.attr["cond"].func.name, reads)[0]):
                    return list(reads)
                reads = self._inlined(node.attr["body"].func.name, reads)
            return None
        if op.type in IFS:
            taken = "then_branch" if self._choice(reads[0]) else "else_branch"
            return self._inlined(node.attr[taken].func.name, reads[1:])
        if op.type in CASES:
            branches, number = node.attr["branches"].list.func, self._choice(reads[0])
            branch = branches[number if 0 <= number < len(branches) else -1]
            return self._inlined(branch.name, reads[1:])
        return self._inlined(node.attr["f"].func.name if op.type in CALLS else op.type, reads)

    def _choice(self, tensor: Any) -> Any:
        """Return the value by which a branch is taken; of an array how many elements it has."""
        value = np.asarray(self.run([tensor.name], False)[0][tensor.name])
        return value.size if value.ndim else value.item()

    def _inlined(self, function: str, reads: Sequence[Any]) -> list[Any]:
        """Return what a function computes of these tensors."""
        scope = f"{INSIDE}{len(self.labels)}"
        self.labels[scope] = function
        producer = self.model_graph.library.producer
        tensors, nodes = spliced_function(self.functions[function], reads, scope, producer)
        self.nodes |= {f"{scope}/{node.name}": node for node in nodes}
        return tensors

    def _place(self, name: str) -> tuple[str, str]:
        """Return the body that an op or a tensor is of, and what it is called there."""
        scope, _, inner = name.partition("/")
        return (self.labels[scope], inner) if scope in self.labels else ("main", name)

    def _reads(self, op: Any) -> list[tuple[str, Any]]:
        """Return what an op reads that is an array, each in words."""
        arrays = {t.name: t for t in op.inputs if t.dtype.base_dtype.name not in HANDLES}
        return [(f"reads {self._place(name)[1]}", tensor) for name, tensor in arrays.items()]


def _numbers(value: Any) -> Any:
    """Return an array as doubles; None where it holds no numbers."""
    array = np.asarray(value)
    return None if array.dtype.kind in "OSU" else array.astype(np.float64)


def _described(value: Any, at: Sequence[int]) -> str:
    """Say what a tensor holds: its range, how much of it is not finite, and one element."""
    array, numbers = np.asarray(value), _numbers(value)
    words = [f"{array.dtype.name} {list(array.shape)}"]
    if numbers is None or not numbers.size:
        return words[0]
    known = numbers[np.isfinite(numbers)]
    words += [f"{known.min():g} to {known.max():g}"] if known.size else []
    for count, kind in ((np.isnan(numbers).sum(), "NaN"), (np.isinf(numbers).sum(), "infinite")):
        words += [f"{count:,} {kind}"] if count else []
    text = ", ".join(words)
    is_inside = len(at) == numbers.ndim > 0 and all(np.less(at, numbers.shape))
    return f"{text}; {numbers[tuple(at)]:g} at {list(map(int, at))}" if is_inside else text
