"""Real models, patched wherever a kind of patch can be put: the same forward bits, and verified."""

from __future__ import annotations

import tempfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.models import catalogue, forward
from tests.models.forward import Outcome, Worker, _rules

pytest.importorskip("tensorflow")


@pytest.mark.parametrize("place", range(len(forward.kinds_of(""))))
@pytest.mark.parametrize("name", catalogue.every_model())
def test_outputs_are_bit_equal(name: str, place: int, worker: Worker) -> None:
    kind = forward.kinds_of(name)[place]
    try:
        reason = worker(forward.why_not, name)
    except BrokenProcessPool:
        reason = "TensorFlow aborts the process"
    if reason:
        pytest.skip(f"it does not run: {reason}")
    outcome = worker(forward.compare, name, kind)
    assert outcome.differing == [], kind
    assert outcome.compared or not outcome.patched
    assert outcome.patched or not outcome.floats or kind == "straight through"  # no op steps


# Each kind of tests.models.forward that needs nothing registered; and one by the library.
KINDS = (
    *("guided", "override, function", "filter outputs, function", "stop inputs"),
    "straight through",
)
GUIDED = {
    "match": {"op": ["Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"]},
    "patch": {"override_gradient": "guided_relu"},
    "expect": {"min": 0},
}
SAMPLE = 2  # ways of each model


def verified(name: str, kind: str) -> tuple[list[str], str, int] | None:
    """Patch a model wherever that kind can be put, and verify it.

    Returns what fails, why it could not be run, and how much was compared; None where nothing can
    be patched.
    """
    path = catalogue.models()[name]
    model = graphpatch.load(path)
    rules: list[Any] = [GUIDED]
    if kind != "guided":
        rules = [rule for graph in model.graphs for rule in _rules(graph, kind, Outcome())]
    result = graphpatch.apply(rules, model) if rules else None
    if result is None or not any(rule["matches"] for rule in result.report["rules"]):
        return None
    with tempfile.TemporaryDirectory() as folder:
        result.model.save(Path(folder) / path.name)
        done = graphpatch.verify(path, Path(folder) / path.name)
    graphs = [graph for graph in done.document()["graphs"] if "forward" in graph]
    compared = sum(len(graph["forward"]["compared"]) for graph in graphs)
    return done.failures, "; ".join(done.not_compared), compared


@pytest.mark.parametrize("place", range(SAMPLE))
@pytest.mark.parametrize("name", sorted(catalogue.sample()))
def test_patched_models_verify_clean(name: str, place: int, worker: Worker) -> None:
    kind = catalogue.drawn(KINDS, name, SAMPLE)[place]
    try:
        found = worker(verified, name, kind)
    except BrokenProcessPool:
        pytest.skip("TensorFlow aborts")
    if found is None:
        pytest.skip("nothing to patch in that way")
    failures, why, compared = found
    assert failures == []
    if why:
        pytest.skip(why)
    assert compared
