"""Real models, patched in several ways, verify clean; each as far as TensorFlow can run it.

The figures over all models: python -m tests.models.verified
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import pytest

from tests.models import catalogue
from tests.models.forward import Worker
from tests.models.verified import KINDS, verified

pytest.importorskip("tensorflow")

# Quickly run, and of another kind each: a net of images, an LSTM in a v1 loop, and
# a training graph with variables, which holds gradients already.
FEW = (
    ("mobilenet_v1_0.25_128_frozen.pb", "guided"),
    ("kws_basic_lstm_s.pb", "straight through"),
    ("zoo/h2oai+deepwater__main_resources_mlp_784x1x1_10.meta", "guided"),
)

SAMPLE = 2  # ways of each model


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    started = Worker()
    yield started
    started.pool.shutdown()


def parameters() -> list[object]:
    """FEW, and slow ones: the models of the sample, each in two of the ways."""
    if not catalogue.models():
        missing = pytest.mark.skip(reason=f"no real models in {catalogue.folder()}")
        return [pytest.param("", "", marks=missing)]
    names = sorted(catalogue.sample())
    slow = [(name, kind) for name in names for kind in catalogue.drawn(KINDS, name, SAMPLE)]
    return [
        *FEW,
        *(pytest.param(*one, marks=pytest.mark.slow) for one in slow if one not in FEW),
    ]


@pytest.mark.parametrize(("name", "kind"), parameters())
def test_patched_models_verify_clean(name: str, kind: str, worker: Worker) -> None:
    try:
        found = worker(verified, name, kind)
    except BrokenProcessPool:
        pytest.skip("TensorFlow aborts")
    if not found.patched:
        pytest.skip("nothing to patch in that way")
    assert found.failures == []
    if found.why:
        pytest.skip(found.why)
    assert found.compared
