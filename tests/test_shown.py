"""Names of models on a terminal: escaped, short, and never a line of their own."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from graphpatch import cli
from graphpatch.cli.say import say_error
from graphpatch.errors import ModelError
from graphpatch.page.view import page
from graphpatch.protos import GraphDef
from graphpatch.shown import (
    IN_LIST,
    LONGEST_LINE,
    and_more,
    beside,
    cut_short,
    html_table,
    json_text,
    one_line,
    path_in_words,
    plural,
    short,
    shown,
)
from tests import graphs
from tests.conftest import RulesFile
from tests.graphs import node

EVIL = "a\x1b]0;t\x07\x9b31m\u202eb\nEVIL\r\x7f"
EVIL_OP = "a\x9b31m\u202eb"  # other control characters in an op type are refused
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def ran(*args: object) -> tuple[int, str]:
    """Run a command in this process: its exit code, and all that it printed."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        before, sys.argv = sys.argv, ["graphpatch", *map(str, args)]
        try:
            return cli._run(), told.getvalue()
        finally:
            sys.argv = before


def evil(op: str = EVIL_OP) -> GraphDef:
    """A graph with such a text in all places that hold one."""
    relu = node(EVIL, "Relu", "x", device=EVIL, **{EVIL: EVIL})
    other = node("z", op, EVIL)
    body = graphs.function(EVIL, ["x"], [node(EVIL, "Relu", "x")], {"y": f"{EVIL}:activations:0"})
    graph = graphs.graphdef(node("x", "Placeholder"), relu, other, node("call", op, "x"))
    graph.library.function.append(body)
    return graph


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert shown("a\x1b[31m\x9b\u202e\ud800\n\té") == "a\\x1b[31m\\x9b\\u202e\\ud800\n\té"
    assert one_line("a\nb") == "a\\nb"
    assert shown(shown(EVIL)) == shown(EVIL)


def test_messages_have_a_length(capsys: pytest.CaptureFixture[str]) -> None:
    say_error("start " + "x" * 1_000_000)  # what is no exception
    assert len(capsys.readouterr().err) < LONGEST_LINE + 200
    text = str(ModelError("start " + "x" * 1_000_000 + " end"))
    assert len(text) < LONGEST_LINE + 100
    assert text.startswith("start x")
    assert text.endswith("x end")
    assert "characters left out" in text
    assert len(str(ModelError("\u202e" * 1_000_000))) < LONGEST_LINE + 200  # each is escaped


@pytest.mark.parametrize(
    "command",
    [
        ("ops", "{m}"), ("ops", "{m}", "--all"), ("ops", "{m}", "nothing*"), ("diff", "{m}", "{n}"),
        ("diff", "{n}", "{m}", "--all"), ("match", "{r}", "{m}", "--explain"),
        ("match", "--op", "Relu", "{m}"), ("match", "--pattern", "Relu -> Foo", "{m}"),
        ("apply", "{r}", "{m}", "-o", "{o}"), ("check", "{r}", "{m}"), ("doctor", "{m}"),
        ("revert", "{m}"), ("verify", "--no-run", "{m}", "{n}"), ("gradients", EVIL),
        ("patterns", EVIL), ("ops", EVIL), (EVIL,), ("ops", f"--{EVIL}"), ("apply", EVIL, EVIL),
        ("split", "{m}", "--cut", EVIL, "--loss", EVIL, "--wrt", EVIL),
        ("doctor", "{m}", "--all"), ("view", "{m}", "-o", "{h}"), ("view", "{m}", "--json"),
        ("view", "{m}", "{n}", "-o", "{h}"), ("view", "{m}", "--from", EVIL),
        ("view", "{m}", "--rules", "{r}", "-o", "{h}"), ("view", "{m}", "--tensorboard", "{e}"),
        ("recipes", EVIL), ("recipes", f"@reverse(at={EVIL})"), ("recipes", f"@{EVIL}", "--json"),
        ("match", f"@reverse(at={EVIL})", "{m}"),
        ("references", "{m}", "--feed", EVIL), ("completion", EVIL), ("schema", EVIL),
    ],
)  # fmt: skip
def test_no_name_is_raw(tmp_path: Path, rules_file: RulesFile, command: tuple[str, ...]) -> None:
    files = {name: str(tmp_path / f"{name}.pb") for name in "mnoe"}
    files["h"] = str(tmp_path / "page.html")
    Path(files["m"]).write_bytes(evil().SerializeToString())
    graphs.saved(tmp_path, node("x", "Placeholder"), name="n.pb")
    rules = str(rules_file({**GUIDED, "name": EVIL}))
    _, text = ran(*(part.replace("{r}", rules).format(**files) for part in command))
    assert not RAW.search(text)
    if not any(EVIL in part for part in command):  # what was typed is not the model's
        assert not [line for line in text.splitlines() if line.startswith("EVIL")]


@pytest.mark.parametrize("broken", ["input", "twice", "type"])
def test_no_message_prints_a_name_raw(tmp_path: Path, broken: str, rules_file: Any) -> None:
    graph = evil(EVIL if broken == "type" else EVIL_OP)
    if broken == "input":
        graph.library.function[0].node_def[0].input[0] = f"{EVIL} not there"
    elif broken == "twice":
        graph.node.append(node(EVIL, "NoOp"))
    (tmp_path / "m.pb").write_bytes(graph.SerializeToString())
    for args in (["apply", rules_file(GUIDED), tmp_path / "m.pb"], ["doctor", tmp_path / "m.pb"]):
        code, text = ran(*args)
        assert code == 1
        assert not RAW.search(text)
        assert "\nEVIL" not in text


def test_a_page_has_no_markup_of_the_model(tmp_path: Path) -> None:
    """The same elements as the page of nothing, whatever the ops are called."""
    name = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>"
    relu = node(name, "Relu", "x", device=name, **{name: name, "alpha": float("nan")})
    graph = graphs.graphdef(node("x", "Placeholder"), relu, producer=27)
    (tmp_path / "m.pb").write_bytes(graph.SerializeToString())
    code, said = ran("view", tmp_path / "m.pb", "-o", tmp_path / "page.html")
    assert code == 0, said
    text = (tmp_path / "page.html").read_text()
    # Behind the page stands the comment by which graphpatch knows what it wrote.
    assert re.findall("<[a-z!/]+", text) == [*re.findall("<[a-z!/]+", page({}, "")), "<!"]
    [data] = re.findall('<script type="application/json" id="document">(.*)</script>', text)
    assert name in json.loads(data, parse_constant=pytest.fail)["bodies"][0]["names"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    """Browsers and jq read no NaN; a page with one would stay empty."""
    told = {"a": [float("nan"), (float("inf"), -float("inf"))], "b": 1.5}
    assert json.loads(json_text(told)) == {"a": ["NaN", ["Infinity", "-Infinity"]], "b": 1.5}
    graphs.saved(tmp_path, node("x", "Relu", "x", alpha=float("nan")), name="m.pb")
    code, text = ran("ops", tmp_path / "m.pb", "x", "--json")
    assert code == 0
    assert json.loads(text, parse_constant=pytest.fail)["ops"][0]["attrs"]["alpha"] == "NaN"


def test_names_that_the_encoding_lacks_are_escaped(run_cli: Any, tmp_path: Path) -> None:
    graphs.saved(tmp_path, node("Größe", "NoOp"), name="m.pb")
    done = run_cli("ops", "m.pb", "--all", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert (done.code, "Gr\\xf6\\xdfe" in done.stdout) == (0, True)


def test_commands_print_through_one_place() -> None:
    """What prints by itself prints names raw."""
    files = Path(cli.__file__).parent.glob("*.py")
    printing = [path.name for path in files if "click.echo(" in path.read_text()]
    assert printing == ["say.py"]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ("", ""),
        ("abc", "a, b, c"),
        ("abcd", "a, b, c and 1 more"),
        ("a" * 1003, "a, a, a and 1,000 more"),
    ],
)
def test_the_first_of_some_texts_are_told(texts: str, told: str) -> None:
    assert short([*texts], 3) == told
    assert short([*texts], 3, by="; ") == told.replace(", a", "; a").replace(", b, c", "; b; c")
    assert [and_more("abc", count) for count in (2, 3, 4)] == ["and 1 more", "", ""]


def test_a_word_is_counted_and_a_text_cut_short() -> None:
    counted = [plural(0, "op"), plural(1, "op"), plural(2, "match"), plural(1000, "op")]
    assert counted == ["0 ops", "1 op", "2 matches", "1,000 ops"]
    assert [cut_short("abcdefgh"[:n], 7) for n in (3, 7, 8)] == ["abc", "abcdefg", "abcd..."]


def test_a_table_shows_the_first_rows_and_escapes_them() -> None:
    assert IN_LIST == 20
    table = html_table("<t>", ("a", "b"), [(f"<{row}>", row) for row in range(IN_LIST + 2)])
    assert table.startswith("<div><p>&lt;t&gt;</p><table><tr><th>a</th><th>b</th></tr>")
    assert table.count("<tr>") == 1 + IN_LIST + 1
    assert f"<td>&lt;{IN_LIST - 1}&gt;</td>" in table
    assert '<td colspan="2">and 2 more</td>' in table
    assert "more" not in html_table("t", ("a",), [(1,)] * IN_LIST)
    assert "<table>" not in html_table("t", ("a",), [])
    assert [beside("<a>", more) for more in ("", "<b>")] == ["<a>", "<div><a><b></div>"]


def test_a_long_path_shows_its_ends() -> None:
    assert path_in_words("abc", 4) == "a -> b -> c"
    assert path_in_words("abcd", 4) == "a -> b -> c -> d"
    assert path_in_words("abcdefg", 4) == "a -> b -> ... 3 more ... -> f -> g"
    many = [str(n) for n in range(2_004)]
    assert path_in_words(many, 2) == "0 -> ... 2,002 more ... -> 2003"
