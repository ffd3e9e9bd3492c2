"""Every fix that doctor offers on the real models is applied, and mends the op that it names."""

from __future__ import annotations

import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.errors import ModelError
from tests.models import catalogue

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
