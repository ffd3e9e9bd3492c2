"""Running the gradients that `doctor` foretells: not None is not yet success."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.analysis.doctor.notes import TRAINED
from graphpatch.formats.model import Model
from graphpatch.runtime.graph_run import (
    GraphRun,
    first_line,
    seeded_feeds,
    seeded_variable,
    variables_of,
)
from graphpatch.runtime.imported import imported_graph
from graphpatch.runtime.tf_gradients import RaisedError, control_flow, gradients_or_raised
from graphpatch.runtime.values import GUESSES, Values
from graphpatch.runtime.verify.session import initial_values, restored_values
from graphpatch.table import plural

# One example first: through a batch norm in training form nothing flows then, and that is told.
ONE_FIRST = ((1, (1,)), *GUESSES)


@dataclass(frozen=True, slots=True)
class AskedPair:
    """A pair of tensors, and the tensors of the path between them, by name.

    With a `feed`, placeholders get its values, and variables those of the checkpoint, or of their
    initialisers; without, both are seeded.
    """

    source: str
    target: str
    path: Sequence[str] = ()
    feed: Values | None = None
    checkpoint: str | None = None


def run_pairs(
    model: Model, place: int, pairs: Sequence[AskedPair], control_flow_v2: bool = True
) -> list[dict[str, Any]]:
    """What tf.gradients gives for each pair in graph `place` of a model, and what running it does.

    Placeholders and variables get small seeded values, and so does the upstream gradient: random
    normal numbers, like the target in shape and dtype. `gradient` is `tensor`, `none` or `error`;
    `zero` whether all of it is zero; `says` it in words. The graph runs, with all that it does:
    `analysis.unsafe.refuse_unsafe` first, where it is not trusted.
    """
    with control_flow(control_flow_v2):
        return list(_pair_gradients(model, place, pairs))


def _pair_gradients(
    model: Model, place: int, pairs: Sequence[AskedPair]
) -> Iterator[dict[str, Any]]:
    """Yield each pair in a graph to which no gradient was added before, and where none raised."""
    graph = None
    for pair in pairs:
        graph = imported_graph(model, place) if graph is None else graph
        answer = _pair_gradient(graph, pair)
        yield answer
        if answer["gradient"] != "none":
            graph = None


def _pair_gradient(graph: Any, pair: AskedPair) -> dict[str, Any]:
    try:
        [dx] = gradients_or_raised(graph, pair.target, [pair.source])
        if dx is None:
            return _run_result("none", says="None")
        with graph.as_default():
            upstream = _seeded_upstream(graph.get_tensor_by_name(pair.target))
        [dx] = gradients_or_raised(graph, pair.target, [pair.source], upstream)
        along = _along(graph, pair, upstream)
    except RaisedError as error:  # whatever a gradient function raises is the answer
        return _run_result("error", says=str(error))
    return _run_pair(graph, pair, dx, along)


def _seeded_upstream(target: Any) -> Any:
    """Seeded random numbers to differentiate with; None, for ones, where the target is not a float.

    Of ones the gradient is that of the sum, which for a softmax is constant.
    """
    import tensorflow as tf

    if target.dtype.base_dtype not in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        return None
    seed, dtype = [0, zlib.crc32(target.name.encode()) & 0x7FFFFFFF], target.dtype.base_dtype
    return tf.random.stateless_normal(tf.shape(target), seed, dtype=dtype)


def _along(graph: Any, pair: AskedPair, upstream: Any) -> dict[str, Any]:
    """Return the gradient at each tensor of the path, where there is one that can be fetched.

    Those inside of v1 loops cannot.
    """
    names = dict.fromkeys((pair.source, *pair.path))
    dtypes = {name: graph.get_tensor_by_name(name).dtype for name in names}
    floats = [name for name, dtype in dtypes.items() if _is_float(dtype)]
    gradients_along = gradients_or_raised(graph, pair.target, floats, upstream) if floats else []
    return {
        name: dx
        for name, dx in zip(floats, gradients_along, strict=True)
        if dx is not None and graph.is_fetchable(getattr(dx, "values", dx))
    }


def _is_float(dtype: Any) -> bool:
    return bool(dtype.is_floating and dtype == dtype.base_dtype)


def _run_pair(graph: Any, pair: AskedPair, dx: Any, along: Mapping[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    reasons: list[str] = []
    for size, shape in ONE_FIRST:
        try:
            values = _values(graph, pair, {"": dx, **along}, size, shape)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if not isinstance(error, tf.errors.CancelledError):  # it only tells of another failure
                reasons.append(first_line(error))
            if isinstance(error, (tf.errors.NotFoundError, tf.errors.UnimplementedError)):
                break  # other sizes do not help
            continue
        array = _dense_array(values[""])
        count = array.size - np.count_nonzero(np.isfinite(array))
        if count:
            says = f"NaN or infinite, {count:,} of {plural(array.size, 'element')}"
            return _run_result("tensor", ran=True, finite=False, says=says)
        if array.any() or not array.size:
            largest = float(np.abs(array).max()) if array.size else 0.0
            return _run_result("tensor", ran=True, says=f"largest element {largest:.3g}")
        why = _where_zero(graph, pair, values)
        return _run_result("tensor", ran=True, zero=True, says=f"exactly zero{why}")
    reason = reasons[0] if reasons else "CancelledError, and TensorFlow does not say why"
    return _run_result("tensor", says=f"the gradient is built, and running it fails: {reason}")


def _where_zero(graph: Any, pair: AskedPair, values: Mapping[str, Any]) -> str:
    """Return the op of the path in which the gradient becomes zero."""
    at = [name for name in pair.path if name in values]
    zero = [name for name in at if not _dense_array(values[name]).any()]
    if not zero or zero == at:
        return ""
    last = pair.path[pair.path.index(zero[-1]) + 1]
    op = graph.get_tensor_by_name(last).op
    training = op.type in TRAINED and op.get_attr("is_training")
    why = ", a batch norm in training form: what it gives has mean 0, whatever it reads"
    return f", from {op.type} {op.name} on{why if training else ''}"


def _values(
    graph: Any, pair: AskedPair, fetches: Mapping[str, Any], size: int, whole: tuple[int, ...]
) -> dict[str, Any]:
    """Without a feed, by seeded variables too: no checkpoint is needed to see a gradient flow."""
    if pair.feed is None:
        variables = {op.name: seeded_variable(op, size, whole) for op in variables_of(graph)}
    else:
        restored = restored_values(graph, pair.checkpoint)
        variables = initial_values(graph, restored, size, whole)
    running = GraphRun(graph, seeded_feeds(graph, size, whole, pair.feed or {}), variables)
    return running.evaluate(fetches)


def _dense_array(value: Any) -> Any:
    return np.asarray(getattr(value, "values", value))


def _run_result(
    gradient: str, ran: bool = False, zero: bool = False, finite: bool = True, says: str = ""
) -> dict[str, Any]:
    return {"gradient": gradient, "ran": ran, "zero": zero, "finite": finite, "says": says}
