"""Running the gradients that `doctor` foretells: not None is not yet success."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphpatch.formats.model import Model
from graphpatch.runtime.graph_run import (
    GraphRun,
    first_line,
    seeded_feeds,
    seeded_variable,
    variables_of,
)
from graphpatch.runtime.imported import imported_graph
from graphpatch.runtime.tf_gradients import (
    RaisedError,
    control_flow,
    gradients_or_raised,
    seeded_upstream,
)
from graphpatch.runtime.values import GUESSES, Values
from graphpatch.runtime.verify.session import checkpoint, initial_values, restored_values
from graphpatch.table import plural


def run_pairs(
    model: Model,
    place: int,
    pairs: Sequence[tuple[str, str]],
    control_flow_v2: bool = True,
    feed: Values | None = None,
) -> list[dict[str, Any]]:
    """What tf.gradients gives for each pair in graph `place` of a model, and what running it does.

    The upstream gradient is seeded random numbers. With a `feed`, placeholders get its values, and
    variables those of the checkpoint, or of their initialisers; without, both get small seeded
    values. `gradient` is `tensor`, `none` or `error`; `zero` whether all of it is zero. The graph
    runs, with all that it does: `refuse_unsafe` first, where it is not trusted.
    """
    results, graph = [], None
    with control_flow(control_flow_v2):
        for source, target in pairs:
            # One to which no gradient was added before, and where none raised.
            graph = imported_graph(model, place) if graph is None else graph
            prefix = None if feed is None else checkpoint(model)
            results.append(_run_pair(graph, source, target, feed, prefix))
            if results[-1]["gradient"] != "none":
                graph = None
    return results


def _run_pair(
    graph: Any, source: str, target: str, feed: Values | None, prefix: str | None
) -> dict[str, Any]:
    import tensorflow as tf

    try:
        if gradients_or_raised(graph, target, [source]) == [None]:
            return _result("none", "None")
        y = graph.get_tensor_by_name(target)
        with graph.as_default():
            upstream = seeded_upstream(y) if y.dtype.is_floating else None
        [built] = gradients_or_raised(graph, target, [source], upstream)
    except RaisedError as error:  # whatever a gradient function raises is the answer
        return _result("error", str(error))
    dx = getattr(built, "values", built).name
    reasons: list[str] = []
    for size, whole in ((1, (1,)), *GUESSES):  # one example first, as a note on batch norms says
        try:
            if feed is None:  # no checkpoint is needed to see a gradient flow
                variables = {o.name: seeded_variable(o, size, whole) for o in variables_of(graph)}
            else:
                variables = initial_values(graph, restored_values(graph, prefix), size, whole)
            running = GraphRun(graph, seeded_feeds(graph, size, whole, feed or {}), variables)
            values, failed = running.run([dx], False)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            values, failed = {}, {dx: first_line(error)}
        if dx in values:
            return _result_of(np.asarray(values[dx]))
        if not failed[dx].startswith("CancelledError"):  # it only tells of another failure
            reasons.append(failed[dx])
        if failed[dx].startswith(("NotFoundError", "UnimplementedError")):
            break  # other sizes do not help
    reason = reasons[0] if reasons else "CancelledError, and TensorFlow does not say why"
    return _result("tensor", f"the gradient is built, and running it fails: {reason}")


def _result_of(array: Any) -> dict[str, Any]:
    """Describe a gradient that was run."""
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
