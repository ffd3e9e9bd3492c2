"""`doctor` foretells what TensorFlow does with every real model, and its rules fix what they can.

The figure over all models: python scripts/doctor_agreement.py
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.errors import ModelError
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


# Every fix that doctor offers on the real models is applied, and mends the op that it names.


MOST = 12  # pairs of a model of which each offered rule is applied alone


def blamed(pair: PairDiagnosis) -> set[tuple[str, str]]:
    """The ops that block a pair in a Session."""
    return {(one.node.body.label, one.node.name) for one in pair.of_session}


@pytest.mark.parametrize("name", catalogue.every_model())
def test_each_fix_is_accepted_and_changes_the_verdict_as_foretold(name: str) -> None:
    path = catalogue.models()[name]
    try:
        before = graphpatch.diagnose(path, every=False)
    except ModelError as error:
        pytest.skip(str(error)[:80])
    blocked = [pair for pair in before.pairs if pair.verdict != "flows" and pair.connected]
    tried = set()
    for pair in blocked[:MOST]:
        for finding in pair.of_session:
            place = (finding.node.body.label, finding.node.name)
            if not finding.rules or place in tried:
                continue
            tried.add(place)
            patched = graphpatch.apply([finding.rules[0]], before.loaded)
            [after] = graphpatch.diagnose(patched, pair.source, pair.target).pairs[:1]
            assert place not in blamed(after), (finding.rules[0], after.says)
