"""Where NaN starts: the first op whose output, or whose gradient, is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from graphpatch.analysis.doctor.causes import RuleDict
from graphpatch.control_flow.op_types import EXITS, MERGES
from graphpatch.dtypes import HANDLES
from graphpatch.formats.model import Model
from graphpatch.graph.op_types import CALLS, CASES, IFS, LOOPS
from graphpatch.runtime.graph_run import ops_before, placeholders
from graphpatch.runtime.tf_gradients import RaisedError, gradients, gradients_or_raised
from graphpatch.runtime.values import Values
from graphpatch.runtime.verify.session import SessionModel, fetchable, ops_in_control_flow

FROM_START = "it is there from the start: give other values"
FORWARD = "no rule: a patch changes no forward value. In the program, {}"
# What makes the forward value of an op finite, in the program that builds the graph.
FORWARD_CURES = {
    **dict.fromkeys(("Div", "RealDiv"), "divide with tf.math.divide_no_nan"),
    **dict.fromkeys(("Log", "Pow", "Rsqrt", "Sqrt"), "let it read tf.maximum(x, 1e-7)"),
    "Exp": "let it read tf.minimum(x, 80.)",
}
BOUNDED = "bound what it reads"
INSIDE = "; the functions that the op calls are not looked into"


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
    session = SessionModel(model, model.graphs[place])
    session.choose([target], feed)
    seeded = tuple(t.name for t in placeholders(session.graph) if t.name not in feed)
    reasons = session.run([target], False)[1]
    if reasons:
        return NotFinite(target, "not run", reasons[target], seeded=seeded)
    return _Search(session, target, sources, seeded).answer()


class _Search:
    """One run of a graph: what is computed for the target, and which of it is not finite."""

    def __init__(
        self, session: SessionModel, target: str, sources: Sequence[str], seeded: tuple[str, ...]
    ) -> None:
        self.graph, self.running = session.graph, session
        self.target, self.sources, self.seeded = target, sources, seeded
        inside = ops_in_control_flow(self.graph)
        self.order = [
            op
            for op in ops_before([self.graph.get_tensor_by_name(target).op], control=False)
            # A constant of a loop reads nothing there; what leads out of it is outside of it.
            if op not in inside
            and (op.type in EXITS | MERGES or op._get_control_flow_context() is None)
        ]
        made = {t.name: t for op in self.order for t in op.outputs if t.dtype.is_floating}
        self.tensors = {name: made[name] for name in fetchable(self.graph, made)}

    def answer(self) -> NotFinite:
        """Return the first op forward, or else backward."""
        bad = self._not_finite(self.tensors)
        if self.target in bad:
            return self._forward(bad)
        try:
            dxs = gradients_or_raised(self.graph, self.target, list(self.tensors))
        except RaisedError as error:
            reason = str(error).partition(". ")[0]
            return self._found("not run", f"it is finite; its gradients: {reason}")
        dense = zip(self.tensors, (getattr(dx, "values", dx) for dx in dxs), strict=True)
        self.dx_at = {name: dx for name, dx in dense if dx is not None}
        bad = self._not_finite(self.dx_at)
        coming, todo = set[str](), [name for name in bad if self._is_end(name)]
        while todo:
            name = todo.pop()
            if name not in coming:
                coming.add(name)
                readers = self.tensors[name].consumers()
                todo += [t.name for op in readers for t in op.outputs if t.name in bad]
        if coming:  # NaN that a filter takes out comes to no end
            return self._backward(bad, coming)
        return self._found("finite", "it is finite, and so are its gradients")

    def _is_end(self, name: str) -> bool:
        """Return whether it is a source, or what no gradient comes back through, but a constant."""
        op = self.tensors[name].op
        is_leaf = op.type != "Const" and not any(read.name in self.dx_at for read in op.inputs)
        return is_leaf or name in self.sources

    def _found(
        self, phase: str, says: str, op: Any = None, tensors: Sequence[Any] = (), **more: Any
    ) -> NotFinite:
        """Describe what an op gives, and what it reads at the first element that is not finite."""
        if op is not None:
            says += INSIDE if op.type in CALLS | IFS | CASES | LOOPS else ""
            more |= {"op": op.name, "type": op.type}
        values, _ = self.running.run([tensor.name for _, tensor in tensors], False)
        known = [(words, values[t.name]) for words, t in tensors if t.name in values]
        at = np.argwhere(~np.isfinite(_numbers(known[0][1])))[0] if known else ()
        more["values"] = tuple(f"{words}: {_described(value, at)}" for words, value in known)
        return NotFinite(self.target, phase, says, seeded=self.seeded, **more)

    def _not_finite(self, tensors: Mapping[str, Any]) -> set[str]:
        """Return the names of the tensors that hold NaN or infinity, found where they are."""
        import tensorflow as tf

        with self.graph.as_default(), tf.control_dependencies(None):
            tests = {n: tf.reduce_all(tf.math.is_finite(t)).name for n, t in tensors.items()}
        values, _ = self.running.run(list(tests.values()), False)
        return {name for name, test in tests.items() if not values.get(test, True)}

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
        tensors = [(f"gives {gives.name}", gives), *_reads(first)]
        remedy = remedy if first.inputs else FROM_START
        return self._found("forward", "its value is not finite", first, tensors, remedy=remedy)

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
                    tensors = [(f"gives the gradient for input {slot}", dense), *_reads(op)]
                    tensors += ((f"reads the gradient at {t.name}", dy) for t, dy in dys.items())
                    says = "it is finite; its gradient is not"
                    return self._found("backward", says, op, tensors, slot=slot)
        last = next(
            made.name for op in reversed(self.order) for made in op.outputs if made.name in coming
        )
        return self._found(
            "backward",
            f"it is finite; its gradient is not at {last}: a sum of gradients, or a v1 loop or "
            "branch, which cannot be looked into",
        )


def _reads(op: Any) -> list[tuple[str, Any]]:
    """Return what an op reads that is an array, each in words."""
    arrays = {t.name: t for t in op.inputs if t.dtype.base_dtype.name not in HANDLES}
    return [(f"reads {name}", tensor) for name, tensor in arrays.items()]


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
