"""Real models, patched wherever a kind of patch can be put, verify clean, as far as they run."""

from __future__ import annotations

import tempfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.models import catalogue
from tests.models.forward import Outcome, Worker, _rules

pytest.importorskip("tensorflow")

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
# Quickly run, and of another kind each: a net of images, an LSTM in a v1 loop, and
# a training graph with variables, which holds gradients already.
FEW = (
    ("mobilenet_v1_0.25_128_frozen.pb", "guided"),
    ("kws_basic_lstm_s.pb", "straight through"),
    ("zoo/h2oai+deepwater__main_resources_mlp_784x1x1_10.meta", "guided"),
)
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


def parameters() -> list[object]:
    """FEW, and slow ones: the models of the sample, each in two of the ways."""
    if not catalogue.models():
        missing = pytest.mark.skip(reason=f"no real models in {catalogue.folder()}")
        return [pytest.param("", "", marks=missing)]
    names = sorted(catalogue.sample())
    rest = [(name, kind) for name in names for kind in catalogue.drawn(KINDS, name, SAMPLE)]
    return list(dict.fromkeys([*FEW, *rest]))


@pytest.mark.parametrize(("name", "kind"), parameters())
def test_patched_models_verify_clean(name: str, kind: str, worker: Worker) -> None:
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
