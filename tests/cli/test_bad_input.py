"""Bad input: one clear message, exit 1, no output file, and nothing temporary left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpatch.graph import wire
from tests.graphs import function, graphdef, node
from tests.refusals import (
    LARGE,
    META,
    MODEL,
    RULE,
    SAMPLE,
    everything,
    refused,
    rules_text,
    sound_files,
)

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sound_files(tmp_path)


# Models

BROKEN: dict[str, tuple[bytes, list[str]]] = {
    "no protobuf": (bytes(range(256)), ["not a GraphDef, a MetaGraphDef or a SavedModel"]),
    "empty": (b"", ["broken.pb is empty"]),
    "a pointer file": (b"version https://git-lfs.github.com/spec/v1\n", ["a Git LFS pointer"]),
    "an HTML page": (b"<!DOCTYPE html><html>", ["an HTML or XML page"]),
    "cut in a node": (MODEL[: len(MODEL) // 2], ["truncated"]),
    "cut in its last byte": (MODEL[:-1], ["truncated"]),
    "a MetaGraphDef cut": (META[: len(META) // 2], ["truncated"]),
    "weights cut": (LARGE[:200_000], ["truncated"]),
    "text cut": (str(SAMPLE)[:-3].encode(), ["not a GraphDef in text form"]),
    "text with an unknown field": (
        b'node { name: "a" op: "NoOp" }\nnode { nmae: "b" }',
        ["not a GraphDef in text form: line 2, column 8: ", "nmae"],
    ),
    "duplicate names": (
        graphdef(node("a", "Placeholder"), node("a", "Relu", "a")).SerializeToString(),
        ["the main graph: 1 names are not unique: 'a'"],
    ),
    "dangling inputs": (
        graphdef(node("features", "NoOp"), node("r", "Relu", "featrues")).SerializeToString(),
        ["1 inputs name no op; the first is input 'featrues' of 'r'", "nearest: features"],
    ),
    "dangling in a function": (
        graphdef(
            node("r", "Relu", "r"), functions=[function("f", ["a"], [node("n", "Relu", "r")], {})]
        ).SerializeToString(),
        ["function f: 1 inputs name no op; the first is input 'r' of 'n'"],
    ),
    "two functions of one name": (
        graphdef(functions=[function("f", ["a"], [], {"b": "a"})] * 2).SerializeToString(),
        ["two functions are named 'f'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_model(run_cli: Run, folder: Path, data: bytes, said: list[str]) -> None:
    (folder / "broken.pb").write_bytes(data)
    before = everything(folder)
    done = run_cli("apply", "rules.json", "broken.pb", cwd=folder)
    refused(done, "broken.pb", *said)
    assert everything(folder) == before


@pytest.mark.parametrize("data", [b"", b"no model", MODEL[:-1]])
def test_a_broken_model_in_a_pipe(run_cli: Run, folder: Path, data: bytes) -> None:
    before = everything(folder)
    refused(
        run_cli("apply", "rules.json", "-", cwd=folder, stdin=data),
        "standard input is empty" if not data else "-: ",
    )
    refused(run_cli("ops", "-", cwd=folder, stdin=data))
    assert everything(folder) == before


@pytest.mark.every(2)
@pytest.mark.parametrize("data", [MODEL, META], ids=["GraphDef", "MetaGraphDef"])
def test_a_model_cut_short_anywhere(
    folder: Path,
    data: bytes,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In this process: it is done for every byte that does not end a field.
    from graphpatch import cli

    before = everything(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["graphpatch", "apply", "rules.json", "cut.pb"])
    for end in set(range(len(data))) - {field.end for field in wire.fields(data, 0, len(data))}:
        (folder / "cut.pb").write_bytes(data[:end])
        assert cli._run() == 1
        said = capfdbinary.readouterr()
        assert said.out == b""
        assert said.err.startswith(b"graphpatch: cut.pb")
        assert said.err.count(b"\n") == 1
    (folder / "cut.pb").unlink()
    assert everything(folder) == before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("gone.pb", "cannot read gone.pb: No such file or directory"),
        ("model.pb/x", "cannot read model.pb/x: Not a directory"),
        ("saved/variables", "is a folder without saved_model.pb or saved_model.pbtxt"),
    ],
)
def test_a_model_that_is_not_there(run_cli: Run, folder: Path, path: str, said: str) -> None:
    before = everything(folder)
    refused(run_cli("apply", "rules.json", path, cwd=folder), said)
    refused(run_cli("ops", path, cwd=folder), said)
    assert everything(folder) == before


# Rules

BAD_RULES: dict[str, tuple[str, list[str]]] = {
    "no JSON": ('{"version": 1,\n "rules": [}', ["rules.json: line 2, column 12: not valid JSON"]),
    "nothing": ("", ["rules.json: the file is empty; a rules file looks like this"]),
    "an unknown key": (
        rules_text(RULE, RULE | {"match": {"any": [{"nmae": "x"}]}}),
        ["rules.json: rules[1].match.any[0]: unknown key 'nmae'; nearest: name"],
    ),
    "two kinds": (
        rules_text(RULE | {"patch": {"stop_gradient": True, "straight_through": True}}),
        ["patch: expected exactly one of", "found 2: stop_gradient, straight_through"],
    ),
    "an unknown gradient": (
        rules_text(RULE | {"patch": {"override_gradient": "guided_rlu"}}),
        ["rules[0] ('rule 1'): patch.override_gradient: 'guided_rlu'", "nearest: guided_relu"],
    ),
    "matches nothing": (
        rules_text(RULE, RULE | {"match": {"op": "Rleu6"}, "name": "mine"}),
        ["model.pb: rule 'mine': matched nothing", "op 'Rleu6': 0 of them; nearest: Relu6"],
    ),
    "a name that is not there": (
        rules_text({"match": {"name": "tower/relu"}, "patch": {"stop_gradient": True}}),
        ["name 'tower/relu': 0 of them; nearest: tower/relu6"],
    ),
    "not as often": (
        rules_text(RULE | {"expect": 2}),
        ["model.pb: rule 'rule 1': matched 1, expected 2"],
    ),
    "a patch that cannot be done": (
        rules_text({"match": {"op": "Mul"}, "patch": {"straight_through": {"input": 5}}}),
        ["model.pb: rule 'rule 1': Mul 'Multiply' has no x5"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD_RULES.values(), ids=BAD_RULES)
def test_bad_rules(run_cli: Run, folder: Path, text: str, said: list[str]) -> None:
    (folder / "rules.json").write_text(text)
    before = everything(folder)
    refused(run_cli("apply", "rules.json", "model.pb", cwd=folder), *said)
    refused(
        run_cli("apply", "rules.json", "model.pb", "-o", "new/", "--dry-run", cwd=folder), *said
    )
    assert everything(folder) == before


def test_rules_that_are_not_there(run_cli: Run, folder: Path) -> None:
    before = everything(folder)
    refused(
        run_cli("apply", "gone.json", "model.pb", cwd=folder),
        "cannot read gone.json: No such file or directory",
    )
    refused(
        run_cli("apply", "saved", "model.pb", cwd=folder), "saved is a folder; expected a rules"
    )
    refused(run_cli("apply", "model.pb", "rules.json", cwd=folder), "the arguments look swapped")
    assert everything(folder) == before


def test_rules_twice(run_cli: Run, folder: Path) -> None:
    assert run_cli("apply", "rules.json", "model.pb", "-o", "once.pb", cwd=folder).code == 0
    before = everything(folder)
    done = run_cli("apply", "rules.json", "once.pb", cwd=folder)
    refused(done, "once.pb: rule 'rule 1' has been applied to this model already")
    assert everything(folder) == before
