"""What graphpatch says to the mistakes of scripts/provoke.py, as somebody reads it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import provoke
import pytest
from provoking.verdicts import TWICE

from tests.examples import ROOT

CLICK = 4  # of click 8: older ones word wrong usage in another way
# Words of version 0.1 that nobody says; each has a plain one.
CLUMSY = re.compile(
    r"\bstock\b|where silent|\bmends?\b|hangs on|holds? on a tape|passed over|there is to say"
    r"|\bis due\b|whoever|\bis no [a-z]+ (?:name|expression|file)"
)


@pytest.fixture(scope="module")
def provoked() -> list[dict[str, Any]]:
    command = [sys.executable, ROOT / "scripts" / "provoke.py", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_each_is_refused_in_plain_words_that_say_where(provoked: list[dict[str, Any]]) -> None:
    """The file, the option, the argument or the word that is wrong is in each message."""
    assert len(provoked) >= 110
    for one in provoked:
        assert one["code"] in (1, 2), one
        assert "Traceback" not in one["says"], one
        assert not CLUMSY.search(one["says"]), one
        words = [word for word in one["command"].split()[1:] if word != "-"]
        said = one["says"].partition("Error: ")[2] or one["says"]
        named = re.findall(r"[A-Z]{3,}|--?[a-z]+|standard input", said)
        assert named or any(word.strip("@") in said for word in words), one


def test_the_table_for_readers_is_up_to_date(provoked: list[dict[str, Any]]) -> None:
    """Whoever changes a message reads it in the table: `python scripts/provoke.py --record`."""
    if int(version("click").split(".")[1]) < CLICK:
        pytest.skip(f"click {version('click')} words its messages in another way than 8.{CLICK}")
    before = json.loads(provoke.BEFORE.read_text())
    assert before.keys() <= {provoke.key(one) for one in provoked}
    recorded = provoke.record(provoked, before)
    assert provoke.RECORD.read_text() == recorded, "run: python scripts/provoke.py --record"
    assert TWICE.keys() <= {one["what"] for one in provoked}
