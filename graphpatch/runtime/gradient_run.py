"""Running the gradients that `doctor` foretells: not None is not yet success."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from graphpatch.formats.model import Model
from graphpatch.runtime.graph_run import GraphRun, checkpoint, initial_values, seeded_variables
from graphpatch.runtime.imported import imported_graph
from graphpatch.runtime.tf_gradients import (
    RaisedError,
    control_flow,
    gradients_or_raised,
    seeded_upstream,
)
from graphpatch.runtime.values import GUESSES, Guess, Values
from graphpatch.table import plural

# One example first, as a note on batch norms says.
ONE_EXAMPLE_FIRST = (Guess(1, (1,)), *GUESSES)


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
    # No checkpoint is needed to see a gradient flow.
    values = seeded_variables if feed is None else partial(initial_values, checkpoint(model))
    results, running = [], None
    with control_flow(control_flow_v2):
        for source, target in pairs:
            # One to which no gradient was added before, and where none raised.
            running = running or GraphRun(imported_graph(model, place), value_variables=values)
            results.append(_run_pair(running, source, target, feed or {}))
            if results[-1]["gradient"] != "none":
                running = None
    return results


def _run_pair(running: GraphRun, source: str, target: str, fed: Values) -> dict[str, Any]:
    x, y = running.tensor(source), running.tensor(target)
    try:
        if gradients_or_raised(y, [x]) == [None]:
            return _result("none", "None")
        with running.graph.as_default():
            upstream = seeded_upstream(y) if y.dtype.is_floating else None
        [built] = gradients_or_raised(y, [x], upstream)
    except RaisedError as error:  # whatever a gradient function raises is the answer
        return _result("error", str(error))
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
