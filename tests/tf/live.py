"""Live graphs for tests, and the gradients that TensorFlow gives in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

import graphpatch
from tests.tf.consumer import session as run

tf1 = tf.compat.v1

Rule = dict[str, Any]

CLIP = {"clip": {"min": -0.1, "max": 0.1}}


def filtered(match: Any, gradient: Any, **more: Any) -> Rule:
    return {"match": _match(match), "patch": {"filter_gradient": gradient, **more}}


def overridden(match: Any, gradient: Any) -> Rule:
    return {"match": _match(match), "patch": {"override_gradient": gradient}}


def stopped(match: Any, **more: Any) -> Rule:
    return {"match": _match(match), "patch": {"stop_gradient": True, **more}}


def _match(match: Any) -> Any:
    return {"name": match} if isinstance(match, str) else match


def gradients(graph: Any, of: str, wrt: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """The gradients of a tensor by tf.gradients and a Session; None stays."""
    with graph.as_default():
        tensors = [graph.get_tensor_by_name(name) for name in wrt]
        found = tf.gradients(graph.get_tensor_by_name(of), tensors)
    return run(graph, found, feeds)


def imported(model: Any) -> Any:
    """The tf.Graph of a model."""
    with tf1.Graph().as_default() as graph:
        graphpatch.import_model(model)
    return graph
