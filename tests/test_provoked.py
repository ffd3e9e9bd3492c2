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


def test_each_is_refused_with_a_message(provoked: list[dict[str, Any]]) -> None:
    assert len(provoked) >= 110
    for one in provoked:
        assert one["code"] in (1, 2), one
        assert "Traceback" not in one["says"], one
        assert one["says"].strip(), one


def test_messages_are_in_plain_words(provoked: list[dict[str, Any]]) -> None:
    assert [one["says"] for one in provoked if CLUMSY.search(one["says"])] == []


def test_messages_say_where(provoked: list[dict[str, Any]]) -> None:
    """The file, the option, the argument or the word that is wrong is in each message."""
    for one in provoked:
        words = [word for word in one["command"].split()[1:] if word != "-"]
        said = one["says"].partition("Error: ")[2] or one["says"]
        named = re.findall(r"[A-Z]{3,}|--?[a-z]+|standard input", said)
        assert named or any(word.strip("@") in said for word in words), one


def test_the_table_for_readers_is_up_to_date(provoked: list[dict[str, Any]]) -> None:
    """Whoever changes a message reads it in the table: `python scripts/provoke.py --record`."""
    if int(version("click").split(".")[1]) < CLICK:
        pytest.skip(f"click {version('click')} words its messages in another way than 8.{CLICK}")
    before = json.loads(provoke.BEFORE.read_text())
    assert before.keys() == {provoke.key(one) for one in provoked}
    assert provoke.RECORD.read_text() == provoke.record(provoked, before)


def test_verdicts_are_of_messages_that_there_are(provoked: list[dict[str, Any]]) -> None:
    assert TWICE.keys() <= {one["what"] for one in provoked}


SWAPPED = "the arguments look swapped: model.pb is a model, and rules.json a rules file"

# What was done wrong, and what the message says.
SAYS = {
    "rules and model swapped in apply": f"{SWAPPED}; write: graphpatch apply rules.json model.pb",
    "rules and model swapped in match": f"{SWAPPED}; write: graphpatch match rules.json model.pb",
    "rules and model swapped in check": f"{SWAPPED}; write: graphpatch check rules.json model.pb",
    "original and patched swapped in verify": "the arguments look swapped: model.pb is patched.pb",
    "-o one.pb for two models": "several models go to a folder; name one: -o one/",
    "--dry-run of two models into a file": "several models go to a folder; name one: -o one/",
    "-o out.onnx": "folders, not .onnx; name the output out.pb",
    "-o over the rules": "rules.json is the rules file; it is never written over",
    "-o in a folder that is not there": "No such file or directory; there is no folder gone",
    "a typo in a command": "no command is called 'appply'; nearest: apply",
    "a model where a command is expected": "its ops: graphpatch ops model.pb",
    "a model that is not there": "cannot read modle.pb: No such file or directory; nearest: model",
    "an empty list of op types": "op: the list is empty, so it says nothing; leave op out",
    "YAML": "this looks like YAML, and rules are JSON; convert it",
    "JSON with a // comment": "line 2, column 2: not valid JSON: JSON has no comments",
    "a model compressed with gzip": "decompress it first: gunzip -k model.pb.gz",
    "a surrogate for an op of two inputs": "Relu 'dense/Relu' has no x1; its only input is x0",
    "two formulas for one input": "the list has 2 formulas, and the op has 1 input; write one",
    "an attr that the op does not have": "none of its attrs is a number or boolean",
    "gzip as the rules file": "expected a rules file, found a file compressed with gzip",
    "no version": "the key 'version' is missing; for example \"version\": 1",
    "a gradient for other op types": "nearest: shap_max_pool_batch, lrp_epsilon_pool, lrp_zplus_",
    "`at` that is not a place": '"output" is not a legal value; which side: outputs (default), inp',
    "an attr that no op has": "no op has an attr 'strides'",
    "a GraphDef as text with a typo": "line 2, column 8: NodeDef has no field nmae",
    "an op that is not there": "graphpatch: model.pb: no op is named 'dense/Rleu'; nearest",
    "* where ** is meant": "* stays within a scope: '**/*Relu' matches 2",
    "@freeze without its scope": "@freeze needs scope, which says where; for example: '@freeze(",
    "@freeze of a frozen model": "the model has no variables (in a frozen model they are const",
    "a recipe without its @": "the recipe of this name is @guided_backprop",
    "more matches than expected": "matched 2, expected 1; narrow the match, or write",
    "fewer matches than expected": "matched 2, expected 3; widen the match, or write",
    "an .onnx file": "an ONNX model; graphpatch patches TensorFlow graphs",
    "the prefix of a checkpoint": "model.ckpt is the prefix of a checkpoint",
}


@pytest.mark.parametrize("what", SAYS)
def test_what_a_message_says(provoked: list[dict[str, Any]], what: str) -> None:
    [one] = [one for one in provoked if one["what"] == what]
    assert SAYS[what] in one["says"]
    assert not one["says"].startswith("\n")
