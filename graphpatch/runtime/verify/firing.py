"""Which overrides fired when gradients were taken, and what is wrong with those that did not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from graphpatch.analysis.soundness.overrides import Override, UnfiredReasons, overrides
from graphpatch.differentiation.hidden import shadowed_ops
from graphpatch.differentiation.override_keys import CUSTOM
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.names import OpKey
from graphpatch.runtime.verify.result import RunResult, UnfiredOverride

LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")
Probe = Callable[[Sequence[OpKey]], Collection[OpKey]]


def sort_out(
    before: ModelGraph,
    reasons: UnfiredReasons,
    registered: Collection[str],
    probe: Probe,
    ran: RunResult,
) -> None:
    """Fill in the overrides of a patched graph that fired, and those that did not.

    Wrong are, of those that its original does not have, the ones that TensorFlow ignores where they
    stand, and those by a key that is not `registered` in the process that runs the graph. `probe`
    says which of those fired that TensorFlow differentiates in C++.
    """
    hidden: list[UnfiredOverride] = []
    for one in _unfired_overrides(before, reasons, registered, ran):
        (hidden if one.kind == "unseen" else ran.unfired).append(one)
    places = [(one.override.node.body.label, one.override.node.name) for one in hidden]
    fired = probe(places) if places else ()
    for place, unseen in zip(places, hidden, strict=True):
        if place in fired:
            ran.fired.append(unseen.override)
        else:
            ran.unfired.append(unseen)


def _unfired_overrides(
    before: ModelGraph, reasons: UnfiredReasons, registered: Collection[str], ran: RunResult
) -> Iterator[UnfiredOverride]:
    """Those that did not fire; the others are filled in."""
    graph, passed = reasons.graph, shadowed_ops(reasons.graph)
    known = {(one.node.body.label, one.node.name, one.key) for one in overrides(before)}
    for one in overrides(graph):
        place = one.node.body.label, one.node.name
        is_new = (*place, one.key) not in known
        lacks = (
            not one.is_function and one.key not in registered and not graph.around.is_object_based
        )
        if lacks and not one.key.startswith(CUSTOM):
            says = (
                f"no program registers the key {one.key!r}: name the module or .py file that does "
                f"with --import (in Python: imports=[...])"
            )
            yield UnfiredOverride(one, says, is_new, "ignored")
        elif is_new and place in passed:
            says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
            yield UnfiredOverride(one, f"{passed[place]} {says}", is_new, "idle")
        elif _has_fired(one, ran.backward.asked, graph.around.is_object_based):
            ran.fired.append(one)
        else:
            kind, why = reasons.why(one)
            yield UnfiredOverride(one, why, is_new, kind)


def _has_fired(one: Override, asked: Collection[OpKey], is_loaded: bool) -> bool:
    body, name = one.node.body.label, one.node.name
    if is_loaded:
        return any(other == name and _is_loaded(part, body) for part, other in asked)
    return (body, name) in asked


def _is_loaded(name: str, body: str) -> bool:
    """Whether a function of a SavedModel may be called `name` once it is loaded.

    Of most names the loader leaves but the middle; the bodies of If and While get a longer one.
    """
    return name in body or LOADED_BODY.sub(r"\1", name) == body
