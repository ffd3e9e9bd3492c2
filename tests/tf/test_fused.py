"""oneDNN computes Mul(x, Sigmoid(x)) as one op: a match that is patched as a whole stays so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tf.batch import RUNTIMES, Batch, graph
from tests.tf.places import PLACES

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")

SWISH = {"pattern": "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"}
PATCHES: dict[str, dict[str, Any]] = {
    "linear": {"override_gradient": {"formula": "0.5 * dy"}, "on": "match"},
    "not linear": {"override_gradient": {"formula": "clip(dy, 0, 0.25)"}, "on": "match"},
    "surrogate": {"surrogate_gradient": "3 * x0", "on": "match"},
}
SLOPES = {"linear": 0.5, "not linear": 0.25, "surrogate": 3.0}
CHOSEN = ("PartitionedCall", "nested two deep")
FEEDS = {"finite": [0.0, 1.0, -3.0], "infinite": [0.0, np.inf, -3.0]}


def swish(x: Any) -> Any:
    return x * tf.sigmoid(x)


@pytest.fixture(scope="module")
def batches(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[bool, Batch]:
    """The same models with oneDNN off and on."""
    found = {}
    for onednn in (False, True):
        batch = Batch(tmp_path_factory.mktemp("fused"), onednn)
        for place in CHOSEN:
            for feed, more in FEEDS.items():
                built = graph(
                    lambda x, at=PLACES[place], more=more: at.build(lambda x: swish(x + more), x)
                )
                for name, patch in PATCHES.items():
                    batch.add(f"{place}, {feed}, {name}", built, [{"match": SWISH, "patch": patch}])
        found[onednn] = batch.run(request)
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("place", CHOSEN)
@pytest.mark.parametrize("onednn", [False, True])
def test_forward_bits_and_the_gradient(
    batches: dict[bool, Batch], onednn: bool, place: str, feed: str, name: str, runtime: str
) -> None:
    found = batches[onednn].gradient(f"{place}, {feed}, {name}", runtime)
    np.testing.assert_array_equal(found, np.full(3, SLOPES[name], np.float32))


def test_ops_were_fused(batches: dict[bool, Batch]) -> None:
    """Otherwise the test above has shown nothing of fusion."""
    off, on = (batches[onednn].values["tensorflow2"] for onednn in (False, True))
    before = [name for name in off if name.endswith(".before/y")]
    assert before
    if all(off[name].tobytes() == on[name].tobytes() for name in before):
        pytest.skip("with oneDNN on, this processor gives the bits that it gives with oneDNN off")
