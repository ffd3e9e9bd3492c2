"""Every key of a match is in docs/matching.md, with an example that means something."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import graphpatch
from graphpatch.match.conditions import KEYS
from graphpatch.schema import schema
from tests.match.test_keys import LOOP_DEF

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "matching.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("<!-- keys -->")[2].partition("<!-- /keys -->")[0]
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \| `(\{.*\})` \|$", TABLE, re.MULTILINE)


def test_every_key_of_the_schema_is_documented() -> None:
    documented = {key for key, _, _ in ROWS}
    assert documented == {*KEYS, "control"}
    assert documented == schema()["$defs"]["Match"]["properties"].keys()


@pytest.mark.parametrize(("key", "example"), [(key, text) for key, _, text in ROWS])
def test_an_example_means_some_ops_and_not_all(key: str, example: str) -> None:
    match = json.loads(example)
    assert key in match
    # The trained net of the examples has no loops and branches.
    model = (
        graphpatch.load(LOOP_DEF)
        if key == "inside"
        else graphpatch.load(ROOT / "scripts" / "models" / "digits.pb")
    )
    found = graphpatch.select(model, **match)
    assert 0 < len(found) < model.node_count
