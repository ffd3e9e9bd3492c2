"""Which overrides fired when gradients were taken, and what is wrong with those that did not."""

from __future__ import annotations

from collections.abc import Collection

from graphpatch.analysis.soundness.overrides import Override, Reasons, overrides
from graphpatch.graph.graph import Graph
from graphpatch.runtime.verify.answers import Place
from graphpatch.runtime.verify.result import Ran, Unfired

CUSTOM = "CustomGradient-"


def sort_out(before: Graph, reasons: Reasons, registered: Collection[str], ran: Ran) -> None:
    """Fill in the overrides of a patched graph that fired, and those that did not.

    Wrong are, of those that its original does not have, the ones that TensorFlow ignores where they
    stand, and those by a key that is not `registered` in the process that runs the graph.
    """
    graph = reasons.graph
    known = {(one.node.body.label, one.node.name, one.key) for one in overrides(before)}
    for one in overrides(graph):
        is_new = (one.node.body.label, one.node.name, one.key) not in known
        lacks = not one.is_function and one.key not in registered and not graph.is_object_based
        if lacks and not one.key.startswith(CUSTOM):
            says = (
                f"nobody registers the key {one.key!r}: name the module or .py file that does with "
                f"--import (in Python: imports=[...])"
            )
            ran.unfired.append(Unfired(one, says, is_new, is_new))
        elif _has_fired(one, ran.backward.asked, graph.is_object_based):
            ran.fired.append(one)
        else:
            kind, why = reasons.why(one)
            ran.unfired.append(Unfired(one, why, is_new, is_new and kind == "ignored"))


def _has_fired(one: Override, asked: Collection[Place], is_loaded: bool) -> bool:
    """Of a function of a SavedModel, the loader leaves but the middle of its name."""
    body, name = one.node.body.label, one.node.name
    if is_loaded:
        return any(other == name and part in body for part, other in asked)
    return (body, name) in asked
