"""The forward pass of real models is bit-equal, whatever flows back."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import pytest

from tests.models import catalogue, forward

pytest.importorskip("tensorflow")

# A model may hold no op that steps or rounds, and what a function carries needs known dtypes.
MAY_FIND_NOTHING = {"straight through"}


@pytest.mark.parametrize("place", range(len(forward.kinds_of(""))))
@pytest.mark.parametrize("name", catalogue.every_model())
def test_outputs_are_bit_equal(name: str, place: int, worker: forward.Worker) -> None:
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
    assert outcome.patched or not outcome.floats or kind in MAY_FIND_NOTHING
