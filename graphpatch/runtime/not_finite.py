"""Where NaN starts: the first op whose output, or whose gradient, is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from graphpatch.analysis.doctor.causes import RuleDict
from graphpatch.control_flow.op_types import EXITS, MERGES
from graphpatch.dtypes import HANDLES
from graphpatch.formats.model import Model
from graphpatch.runtime.graph_run import GraphRun, placeholders
from graphpatch.runtime.tf_gradients import RaisedError, gradients, gradients_or_raised
from graphpatch.runtime.values import Values
from graphpatch.runtime.verify.session import fetchable, ops_in_control_flow
from graphpatch.runtime.verify.worker import SessionModel

CONCISE_HEALTH = 3  # of DebugNumericSummaryV2: id, elements, -inf, inf, NaN
FROM_START = "it is there from the start: give other values"
FORWARD = "no rule: a patch changes no forward value. In the program, {}"
# What makes the forward value of an op finite, in the program that builds the graph.
FORWARD_CURES = {
    **dict.fromkeys(("Div", "RealDiv"), "divide with tf.math.divide_no_nan"),
    **dict.fromkeys(("Log", "Pow", "Rsqrt", "Sqrt"), "let it read tf.maximum(x, 1e-7)"),
    "Exp": "let it read tf.minimum(x, 80.)",
}
BOUNDED = "bound what it reads"


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Where the value or the gradients of `target` first are NaN or infinite.

    `phase` is "forward", "backward", "finite" where neither are, or "not run". `values` describe
    what the op gives and reads, with the element at which it starts; `seeded` are the placeholders
    that were not fed. `remedy` says what fixes it, and `rule` is the rule that does, where one can.
    """

    target: str
    phase: str
    says: str
    op: str = ""
    type: str = ""
    slot: int | None = None
    values: tuple[str, ...] = ()
    seeded: tuple[str, ...] = ()
    remedy: str = ""
    rule: RuleDict | None = None

    def document(self) -> dict[str, Any]:
        """Return it as `doctor --json` prints it."""
        return {**asdict(self), "values": list(self.values), "seeded": list(self.seeded)}


def first_not_finite(
    model: Model, place: int, target: str, sources: Sequence[str], feed: Values
) -> NotFinite:
    """Run a graph forward and backward, and name the first op that gives NaN or infinity.

    Forward, it is the first op of those from which NaN comes to the target; backward, where the
    target is finite, the first op that is given finite gradients and gives back others, which come
    to a placeholder, a variable or one of `sources`. Variables have the values of the checkpoint,
    or of their initialisers; placeholders that are not in `feed` are seeded. Ops in functions, v1
    loops and v1 branches are not looked into: the call, or the tensor that they read, is named.
    """
    session = SessionModel(model, model.graphs[place], model)
    session.choose([target], feed)
    graph = session.tf_graph
    seeded = [tensor.name for tensor in placeholders(graph) if tensor.name not in feed]
    reasons = session.run([target], False)[1]
    if reasons:
        return NotFinite(target, "not run", reasons[target], seeded=tuple(seeded))
    return _Search(graph, session.running, target, sources, tuple(seeded)).answer()


class _Search:
    """One run of a graph: what is computed for the target, and which of it is not finite."""

    def __init__(
        self,
        graph: Any,
        running: GraphRun,
        target: str,
        sources: Sequence[str],
        seeded: tuple[str, ...],
    ) -> None:
        self.graph, self.running = graph, running
        self.target, self.sources, self.seeded = target, sources, seeded
        ordered = _ordered(graph.get_tensor_by_name(target).op)
        inside = ops_in_control_flow(graph)
        self.order = [op for op in ordered if op not in inside and _is_open(op)]
        outputs = {made.name: made for op in self.order for made in op.outputs if _is_float(made)}
        self.tensors = {name: outputs[name] for name in fetchable(graph, outputs)}

    def answer(self) -> NotFinite:
        """Return the first op forward, or else backward."""
        bad = self._not_finite(self.tensors)
        if self.target in bad:
            return self._forward(bad)
        try:
            dxs = gradients_or_raised(self.graph, self.target, list(self.tensors))
        except RaisedError as error:
            reason = str(error).partition(". ")[0]
            return self._says("not run", f"it is finite; its gradients: {reason}")
        dense = zip(self.tensors, (getattr(dx, "values", dx) for dx in dxs), strict=True)
        self.dx_at = {name: dx for name, dx in dense if dx is not None}
        bad = self._not_finite(self.dx_at)
        coming = self._coming(bad)
        if coming:
            return self._backward(bad, coming)
        return self._says("finite", "it is finite, and so are its gradients")

    def _coming(self, bad: set[str]) -> set[str]:
        """Return those of these tensors from whose gradients NaN comes to an end of the graph.

        An end is a source, or what no gradient comes back through, but for constants: a placeholder
        or a variable. NaN that a filter takes out comes to none.
        """
        coming, todo = set[str](), [name for name in bad if self._is_end(name)]
        while todo:
            name = todo.pop()
            if name not in coming:
                coming.add(name)
                readers = self.tensors[name].consumers()
                todo += [m.name for op in readers for m in op.outputs if m.name in bad]
        return coming

    def _is_end(self, name: str) -> bool:
        op = self.tensors[name].op
        is_leaf = op.type != "Const" and not any(read.name in self.dx_at for read in op.inputs)
        return is_leaf or name in self.sources

    def _says(self, phase: str, says: str, **more: Any) -> NotFinite:
        return NotFinite(self.target, phase, says, seeded=self.seeded, **more)

    def _not_finite(self, tensors: Mapping[str, Any]) -> set[str]:
        """Return the names of the tensors that hold NaN or infinity, counted where they are."""
        import tensorflow as tf

        count = partial(
            tf.raw_ops.DebugNumericSummaryV2,
            tensor_id=-1,
            tensor_debug_mode=CONCISE_HEALTH,
            output_dtype=tf.float64,
        )
        with self.graph.as_default(), tf.control_dependencies(None):
            counted = {name: count(input=tensor).name for name, tensor in tensors.items()}
        counts, _ = self.running.run(list(counted.values()), False)
        return {
            name for name, count in counted.items() if count in counts and any(counts[count][2:])
        }

    def _forward(self, bad: set[str]) -> NotFinite:
        """Follow NaN from the target back to the ops that read only finite values."""
        met, todo = set[Any](), [self.graph.get_tensor_by_name(self.target).op]
        while todo:
            op = todo.pop()
            if op not in met:
                met.add(op)
                todo += [read.op for read in op.inputs if read.name in bad]
        first = next(
            op for op in self.order if op in met and bad.isdisjoint(read.name for read in op.inputs)
        )
        gives = next(made for made in first.outputs if made.name in bad)
        remedy = FORWARD.format(FORWARD_CURES.get(first.type, BOUNDED))
        return self._says(
            "forward",
            "its value is not finite",
            op=first.name,
            type=first.type,
            values=self._values(gives, gives.name, {read.name: read for read in first.inputs}),
            remedy=remedy if first.inputs else FROM_START,
        )

    def _backward(self, bad: set[str], coming: set[str]) -> NotFinite:
        """Find the first op, from the target back, to which finite gradients come alone."""
        for op in reversed(self.order):
            dys = {made: self.dx_at[made.name] for made in op.outputs if made.name in self.dx_at}
            slots = [slot for slot, read in enumerate(op.inputs) if read.name in coming]
            is_first = dys and slots and not any(made.name in bad for made in dys)
            if not is_first or op.type in EXITS | MERGES:
                continue
            with self.graph.as_default():
                xs = [op.inputs[slot] for slot in slots]
                dxs = gradients(list(dys), xs, list(dys.values()), apart=True)
            for slot, dx in zip(slots, dxs, strict=True):
                dense = getattr(dx, "values", dx)
                if dx is not None and self._not_finite({"dx": dense}):
                    reads = {read.name: read for read in op.inputs}
                    reads |= {f"the gradient at {made.name}": dy for made, dy in dys.items()}
                    return self._says(
                        "backward",
                        "it is finite; its gradient is not",
                        op=op.name,
                        type=op.type,
                        slot=slot,
                        values=self._values(dense, f"the gradient for input {slot}", reads),
                    )
        last = next(
            made.name for op in reversed(self.order) for made in op.outputs if made.name in coming
        )
        return self._says(
            "backward",
            f"it is finite; its gradient is not at {last}: a sum of gradients, or a v1 loop or "
            "branch, which cannot be looked into",
        )

    def _values(self, gives: Any, called: str, reads: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe what an op gives, and what it reads at the first element that is not finite."""
        tensors = {f"gives {called}": gives}
        tensors |= {f"reads {name}": read for name, read in reads.items() if _is_array(read)}
        values, _ = self.running.run([tensor.name for tensor in tensors.values()], False)
        at = _first_element(values[gives.name]) if gives.name in values else ()
        return tuple(
            f"{words}: {_described(values[tensor.name], at)}"
            for words, tensor in tensors.items()
            if tensor.name in values
        )


def _ordered(target: Any) -> list[Any]:
    """Return the ops of which a target is computed, each behind those that it reads."""
    order, met, todo = list[Any](), set[Any](), [(target, False)]
    while todo:
        op, is_done = todo.pop()
        if is_done:
            order.append(op)
        elif op not in met:
            met.add(op)
            todo += [(op, True), *((read.op, False) for read in reversed(op.inputs))]
    return order


def _is_open(op: Any) -> bool:
    """Return whether an op outside of loops may read it: a constant of a loop reads nothing there.

    What leads out of a loop or branch is outside of it.
    """
    return op.type in EXITS | MERGES or op._get_control_flow_context() is None


def _is_array(tensor: Any) -> bool:
    return tensor.dtype.base_dtype.name not in HANDLES


def _is_float(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating)


def _numbers(value: Any) -> Any:
    """Return an array as doubles; None where it holds no numbers."""
    array = np.asarray(value)
    return None if array.dtype.kind in "OSU" else array.astype(np.float64)


def _first_element(value: Any) -> tuple[int, ...]:
    """Return where the first element is that is NaN or infinite."""
    return tuple(map(int, np.argwhere(~np.isfinite(_numbers(value)))[0]))


def _described(value: Any, at: Sequence[int]) -> str:
    """Say what a tensor holds: its range, how much of it is not finite, and one element."""
    array, numbers = np.asarray(value), _numbers(value)
    words = [f"{array.dtype.name} {list(array.shape)}"]
    if numbers is None or not numbers.size:
        return words[0]
    known = numbers[np.isfinite(numbers)]
    if known.size:
        words.append(f"{known.min():g} to {known.max():g}")
    for count, kind in ((np.isnan(numbers).sum(), "NaN"), (np.isinf(numbers).sum(), "infinite")):
        words += [f"{count:,} {kind}"] if count else []
    text = ", ".join(words)
    is_inside = at and len(at) == numbers.ndim and all(np.less(at, numbers.shape))
    return f"{text}; {numbers[tuple(at)]:g} at {list(at)}" if is_inside else text
