"""Gradients in a graph: built by tf.gradients, run in a Session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.names import OpKey
from graphpatch.runtime.gradients import GradientAnswer, RaisedError, built
from graphpatch.runtime.running import Running, first_line
from graphpatch.runtime.verify.lookups import recorded


@dataclass(eq=False)
class Graphed(Running):
    """A tf.Graph that is run, and differentiated."""

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""
        there, asked = _built(self, sources, target, dy)
        tensors = {name: one.value for name, one in there.items() if one.kind == "tensor"}
        return {**there, **_ran(self, tensors)}, asked


def _built(
    running: Running, sources: Sequence[str], target: str, dy: Any
) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
    import tensorflow as tf

    with running.graph.as_default(), recorded() as asked:
        upstream = tf.constant(dy, running.graph.get_tensor_by_name(target).dtype)
        try:
            found = built(running.graph, target, sources, upstream, dense=True)
        except RaisedError as error:
            return {name: GradientAnswer("error", says=str(error)) for name in sources}, asked
    return {
        name: GradientAnswer("none") if dx is None else GradientAnswer("tensor", dx)
        for name, dx in zip(sources, found, strict=True)
    }, asked


def _ran(running: Running, tensors: Mapping[str, Any]) -> dict[str, GradientAnswer]:
    """The values, all in one run; where that fails, each in a run of its own.

    Where it takes too long, all fail: each alone might take as long again.
    """
    import tensorflow as tf

    try:
        values = running.evaluate(tensors) if tensors else {}
    except Exception as error:  # what TensorFlow raises there is told
        if len(tensors) == 1 or isinstance(error, tf.errors.DeadlineExceededError):
            failed = GradientAnswer("error", says=f"running it fails: {first_line(error)}")
            return dict.fromkeys(tensors, failed)
        alone = [_ran(running, {name: tensor}) for name, tensor in tensors.items()]
        return {name: one for found in alone for name, one in found.items()}
    return {name: GradientAnswer("tensor", np.asarray(value)) for name, value in values.items()}
