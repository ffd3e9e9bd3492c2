"""Methods on real models, each by one recipe, against the method as its peers have it.

The models, what they are fed, and the peers are those of `scripts/methods`, which prints the table
of docs/methods-on-models.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models import catalogue

tf = pytest.importorskip("tensorflow")

sys.path.insert(0, str(catalogue.CHECKOUT / "scripts"))

from methods import peers  # noqa: E402
from methods.__main__ import row  # noqa: E402
from methods.models import SUBJECTS, Subject  # noqa: E402

LIMIT = 1e-5  # of the largest element
NOTHING = {"nothing to patch", "no batch"}


@pytest.fixture(scope="module", autouse=True)
def old_control_flow() -> Any:
    """The detector has v1 loops."""
    tf.compat.v1.disable_control_flow_v2()
    peers.register()
    yield
    tf.compat.v1.enable_control_flow_v2()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.label)
def test_each_method_is_that_of_its_peers(subject: Subject) -> None:
    if not Path(subject.file).is_absolute():
        catalogue.existing(subject.file)
    found = row(subject, catalogue.folder())
    assert any(not one.why for one in found.values())
    for method, one in found.items():
        assert one.why in NOTHING if one.why else one.difference <= LIMIT, (method, one.told)
