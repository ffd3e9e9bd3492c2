"""Which overrides fired when gradients were taken, and what is wrong with those that did not."""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.analysis.verify.overrides import Override, Reasons, overrides
from graphpatch.graph.graph import Graph
from graphpatch.runtime.verify.answers import Asked
from graphpatch.runtime.verify.result import Ran, Unfired

CUSTOM = "CustomGradient-"


def sort_out(before: Graph, reasons: Reasons, ran: Ran) -> None:
    """Fill in the overrides of a patched graph that fired, and those that did not.

    Wrong are, of those that its original does not have, the ones that TensorFlow ignores where they
    stand, and those by a key that nobody has registered in this process.
    """
    graph = reasons.graph
    known = {(one.node.body.label, one.node.name, one.key) for one in overrides(before)}
    registered = _registered()
    for one in overrides(graph):
        is_new = (one.node.body.label, one.node.name, one.key) not in known
        lacks = not one.is_function and one.key not in registered and not graph.is_object_based
        if lacks and not one.key.startswith(CUSTOM):
            says = f"nobody registers the key {one.key!r}: register it before, in Python"
            ran.unfired.append(Unfired(one, says, is_new))
        elif _has_fired(one, ran.backward.asked, graph.is_object_based):
            ran.fired.append(one)
        else:
            kind, why = reasons.why(one)
            ran.unfired.append(Unfired(one, why, is_new and kind == "ignored"))


def _has_fired(one: Override, asked: Asked, is_loaded: bool) -> bool:
    """Of a function of a SavedModel, the loader leaves but the middle of its name."""
    body, name = one.node.body.label, one.node.name
    if is_loaded:
        return any(other == name and part in body for part, other in asked.ops)
    return asked.holds(body, name)


def _registered() -> Iterable[str]:
    from tensorflow.python.framework import ops

    return set(ops.gradient_registry.list())
