"""Inputs that broke graphpatch 0.1, each through all commands; they are made here, by code."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply
from graphpatch.errors import GraphpatchError
from graphpatch.formats import load
from graphpatch.protos import GraphDef
from graphpatch.rules import rules_from
from graphpatch.selection import select
from tests import hostile
from tests.draws import quick
from tests.examples import DIGITS
from tests.graphs import graphdef, node
from tests.test_shown import ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    hostile.workspace(tmp_path)
    return tmp_path


def written(folder: Path, *nodes: Any) -> str:
    graph = nodes[0] if isinstance(nodes[0], GraphDef) else graphdef(*nodes)
    (folder / "m.pb").write_bytes(graph.SerializeToString())
    return "m.pb"


# Long chains, and links that are followed until the bound: a few seconds each.
LONG = {"a chain", "runs", "a captured run", "calls in depth"}
MODELS = {**hostile.MODELS, "calls in depth": hostile.deep_calls()}


def params(names: Iterable[str]) -> list[Any]:
    return quick(names, lambda name: name not in LONG)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", params(MODELS))
def test_a_model(here: Path, name: str) -> None:
    model = written(here, MODELS[name])
    for command in hostile.COMMANDS:
        hostile.check(hostile.on(model, command))


def test_rules_in_depth(here: Path) -> None:
    back = {"match": {"op": "Relu"}, "patch": {"backward_as": {"input": 0}}}
    (here / "back.json").write_text(json.dumps({"version": 1, "rules": [back]}))
    (here / "nest.json").write_bytes(hostile.nested_rules())
    model = written(here, hostile.MODELS["a chain"])
    hostile.check(["apply", "back.json", model, "-o", "out.pb"])
    hostile.check(["match", "nest.json", model])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", params(hostile.RULES))
def test_rules(here: Path, name: str) -> None:
    key, text = hostile.RULES[name]
    long = [node("a" * 5_000, "Relu", "r9"), node("a/" * 2_500 + "b", "Relu", "r9")]
    line = [node(f"r{n}", "Relu", f"r{n - 1}") for n in range(1, 100)]
    model = load(written(here, node("r0", "Placeholder"), *line, *long))
    try:
        if key == "formula":
            patch = {"override_gradient": {"formula": text}}
            apply(rules_from([{"match": {"op": "Relu"}, "patch": patch}]), model)
        else:
            select(model, **{key: text})
    except GraphpatchError as error:
        assert len(str(error)) < hostile.LENGTH  # noqa: PT017


def test_a_link_to_a_device_is_no_model(tmp_path: Path) -> None:
    link = tmp_path / "m.pb"
    link.symlink_to("/dev/zero")
    code, text = ran("ops", link)
    assert code == 1
    assert "leads to a device or a socket; a model is a file, folder or pipe" in text


def test_a_pipe_may_be_a_model(tmp_path: Path) -> None:
    pipe = tmp_path / "m.pb"
    os.mkfifo(pipe)
    raw = hostile.MODELS["a huge constant"].SerializeToString()
    writer = threading.Thread(target=pipe.write_bytes, args=(raw,))
    writer.start()
    assert ran("ops", pipe)[0] == 0
    writer.join()


def test_an_input_without_a_name(here: Path) -> None:
    """The fuzzer's models:20261204:58668."""
    nodes = [node("n", "NoOp", ""), node("m", "NoOp", "^n", ""), node("y", "Relu", "", "m")]
    model = written(here, node("x", "Placeholder"), *nodes)
    match = {"match": {"downstream_of": "n", "op": "Relu"}, "patch": {"stop_gradient": True}}
    (here / "path.json").write_text(json.dumps([match]))
    hostile.check(["match", "path.json", model, "--explain"])
    for pattern in ("NoOp ^-> NoOp", "NoOp -> Relu", "Relu -> Relu"):
        hostile.check(["match", model, "--pattern", pattern, "--explain"])
    for command in hostile.COMMANDS:
        hostile.check(hostile.on(model, command))


@pytest.mark.slow
def test_a_process_that_is_started_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Not a stranger's numpy.py either, which lies beside the models."""
    command = Path(sys.executable).with_name("graphpatch")
    if not command.is_file():
        pytest.skip("the command is not installed beside this Python")
    for name in ("graphpatch/__init__", "numpy", "google", "networkx", "msgspec", "click"):
        module = tmp_path / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write(__file__)")
    for name in ("a.pb", "b.pb"):
        shutil.copy(DIGITS, tmp_path / name)

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("apply", "@guided_backprop", "a.pb", "b.pb", "-o", "out")
    run("recipes", "@guided_backprop", "--save", "rules.json")
    run("check", "rules.json", "out/a.pb", "out/b.pb")
    if importlib.util.find_spec("tensorflow"):
        run("verify", "a.pb", "out/a.pb")
    assert not (tmp_path / "ran").exists()


def test_a_reference_that_leads_to_itself_or_nowhere_and_a_name_of_many_digits(here: Path) -> None:
    loop = node("e", "RefEnter", "e"), node("a", "Assign", "e", "x")
    nowhere = node("f", "RefEnter"), node("b", "Assign", "f", "x")
    relus = node("r" + "1" * 5_000, "Relu", "x"), node("r", "Relu", "x")
    variable = node("x", "Placeholder"), node("v", "VariableV2"), node("v/read", "Identity", "v")
    model = written(here, *variable, *loop, *nowhere, *relus)
    assert ran("apply", "@freeze(scope=v)", model, "--dry-run")[0] == 0
    assert ran("match", model, "--op", "Relu")[0] == 0
