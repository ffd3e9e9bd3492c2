"""`doctor` foretells what TensorFlow does with every real model, and its rules fix what they can.

The figure over all models: python scripts/doctor_agreement.py
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import pytest

from tests.models import catalogue
from tests.models.doctor_oracle import after_fix, compare
from tests.models.forward import Worker

pytest.importorskip("tensorflow")


@pytest.mark.parametrize("name", catalogue.every_model())
def test_it_foretells_what_tensorflow_does(name: str, worker: Worker) -> None:
    try:
        found = worker(compare, name)
    except BrokenProcessPool:
        pytest.skip("TensorFlow aborts")
    if not found.pairs:
        pytest.skip("; ".join(found.refused) or "no placeholder, or no output")
    assert found.differing == []


@pytest.mark.parametrize("name", catalogue.every_model())
def test_what_its_rules_fix_flows(name: str, worker: Worker) -> None:
    try:
        found = worker(after_fix, name)
    except BrokenProcessPool:
        pytest.skip("TensorFlow aborts")
    if not found.rules:
        pytest.skip("nothing that a rule fixes")
    assert found.failing == []
    assert found.pairs
    assert found.idle == []
    assert len(found.zero) < found.ran or not found.ran
