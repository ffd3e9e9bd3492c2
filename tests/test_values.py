"""What functions return: the document that the command prints, a short repr, a small table."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.conftest import Run
from tests.examples import DIGITS, GUIDED, ROOT

HOSTILE = '<script>alert("&")</script>'
RULE = {"name": HOSTILE, "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("values") / "patched.pb"
    graphpatch.apply(GUIDED, DIGITS).save(path)
    return path


DOCUMENTS: dict[str, Callable[[Path], Any]] = {
    "apply GUIDED MODEL": lambda _: graphpatch.apply(GUIDED, DIGITS),
    "match GUIDED MODEL": lambda _: graphpatch.matches(GUIDED, DIGITS),
    "match MODEL --pattern Relu->Relu --explain": lambda _: graphpatch.matches(
        {"pattern": "Relu->Relu"}, DIGITS, explain=True
    ),
    "check GUIDED PATCHED": lambda out: graphpatch.check(GUIDED, out),
    "check GUIDED MODEL": lambda _: graphpatch.check(GUIDED, DIGITS),
    "diff MODEL PATCHED": lambda out: graphpatch.diff(DIGITS, out),
    "revert PATCHED --dry-run --rule RULE": lambda out: graphpatch.revert(out, "guided backprop"),
    "doctor MODEL --from image --to logits": lambda _: graphpatch.diagnose(
        DIGITS, "image", "logits"
    ),
    "verify MODEL PATCHED --no-run": lambda out: graphpatch.verify(DIGITS, out, run=False),
}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_the_document_is_what_the_command_prints(command: str, patched: Path, run_cli: Run) -> None:
    named = {"GUIDED": GUIDED, "MODEL": DIGITS, "PATCHED": patched, "RULE": "guided backprop"}
    more = ["--dry-run"] if command.startswith("apply") else []
    done = run_cli(*(str(named.get(word, word)) for word in command.split()), *more, "--json")
    printed = json.loads(done.stdout)
    printed.pop("seconds", None)
    value = DOCUMENTS[command](patched)
    assert json.loads(json.dumps(value.document())) == printed
    assert (done.code == 0) == value.ok or command.startswith("doctor")


def values(patched: Path) -> list[Any]:
    hostile = graphpatch.apply(RULE, DIGITS)
    return [
        hostile,
        hostile.model,
        graphpatch.select(DIGITS),
        graphpatch.matches(RULE, DIGITS),
        next(iter(graphpatch.matches(RULE, DIGITS))),
        graphpatch.check(RULE, DIGITS),
        graphpatch.diff(DIGITS, hostile.model),
        graphpatch.revert(hostile.model),
        graphpatch.diagnose(DIGITS),
        graphpatch.diagnose(DIGITS, "image", "logits", fix=True),
        graphpatch.verify(DIGITS, patched, run=False),
        graphpatch.load_rules(GUIDED)[0],
        graphpatch.load(DIGITS).source,
    ]


class Balanced(HTMLParser):
    """Which tags there are, and that each is closed."""

    tags: set[str]
    open: list[str]

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_value_is_shown_short_and_with_everything_escaped(patched: Path) -> None:
    parser, tables = Balanced(), list[str]()
    parser.tags, parser.open = set(), []
    for value in values(patched):
        assert (len(repr(value)) < 400, repr(value).count("\n") < 3) == (True, True), repr(value)
        assert " at 0x" not in repr(value)
        tables += [value._repr_html_()] if hasattr(value, "_repr_html_") else []
    for table in tables:
        parser.feed(table)
        assert (parser.open, len(table) < 20_000) == ([], True)
    assert parser.tags <= {"div", "p", "table", "tr", "th", "td", "svg", "path", "circle"}
    assert any("&lt;script&gt;" in table for table in tables)
    assert len(tables) >= 9


def test_matches_have_captures_inputs_and_outputs() -> None:
    [one, *_] = graphpatch.matches({"pattern": "bn:FusedBatchNormV3 -> act:Relu"}, DIGITS)
    bn, act = "block1/batch_norm/normalize", "block1/relu"
    assert (one.captures, one.op, one.type, one.body) == (
        {"bn": bn, "act": act},
        act,
        "Relu",
        "main",
    )
    [norm] = graphpatch.select(DIGITS, name=bn)
    assert list(one.inputs) == [f"x{k}" for k in range(5)]
    assert [name.removesuffix(":0") for name in one.inputs.values()] == list(norm.data_inputs)
    assert "block1/relu:0" in one.outputs.values()
    [alone] = graphpatch.matches({"op": "Round"}, DIGITS)
    assert (alone.captures, list(alone.outputs.values())) == ({}, ["quantize/Round:0"])


def test_matches_are_a_rules_file_too() -> None:
    found = graphpatch.matches(GUIDED, DIGITS)
    assert len(found) == len(found.rules_file()["rules"]) == 5
    assert graphpatch.apply(found.rules_file(), DIGITS).ok
    with pytest.raises(graphpatch.MatchError, match="makes no rules file"):
        graphpatch.matches({"op": "Relu"}, DIGITS).rules_file()


def test_a_notebook_shows_the_inputs_and_outputs_of_the_model() -> None:
    table = graphpatch.apply(ROOT / "docs/examples/guided.json", DIGITS)._repr_html_()
    ends = "inputs: image:0 float32 [?, 8, 8, 1]", "outputs: logits:0 float32 [?, 10]"
    first, second = map(table.index, ends)
    assert first < second < table.index("<td>block1/relu</td>")
