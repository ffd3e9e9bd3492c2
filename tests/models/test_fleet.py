"""All real models in one call: each output is, byte for byte, that of a call of its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch import cli
from graphpatch.fleet.work import content
from tests.conftest import Ran, Run
from tests.models import catalogue
from tests.refusals import rules_text

RULES = [
    {"match": {"op": ["Relu", "Relu6"]}, "patch": {"override_gradient": "guided_relu"}},
    {
        "match": {"op": ["MatMul", "Add", "BiasAdd"], "body": "main"},
        "patch": {"stop_gradient": True},
    },
    {"match": {"op": "Floor"}, "patch": {"straight_through": True}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def rules(folder: Path) -> Path:
    (folder / "rules.json").write_text(rules_text(*(r | {"expect": {"min": 0}} for r in RULES)))
    return folder / "rules.json"


@pytest.fixture(scope="module")
def alone(rules: Path, folder: Path, models_folder: Path) -> dict[str, str]:
    """The content of each model's output, or the error, when it is patched alone."""
    found = {}
    for name, path in catalogue.models().items():
        target = folder / "alone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            graphpatch.apply(graphpatch.load_rules(rules), path).model.save(target)
            found[name] = content(target)
        except graphpatch.GraphpatchError as error:
            found[name] = str(error)
    assert len(found) > 200
    assert len(set(found.values())) > 200
    return found


def outputs(done: Any, folder: Path, models: Path) -> dict[str, str]:
    """What a run over all models left behind: content or error, by their names."""
    found = {}
    for text in done.stdout.splitlines():
        line = json.loads(text)
        name = line["model"].replace("://", ":/").removeprefix(f"{models}/")
        found[name] = line["error"] if "error" in line else content(folder / name)
    return found


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_one_call_does_what_single_calls_do(
    run_cli: Run, rules: Path, tmp_path: Path, alone: dict[str, str], models_folder: Path, jobs: str
) -> None:
    args = ("apply", rules, models_folder, "-o", tmp_path / "out", "--json", "--jobs", jobs)
    done = run_cli(*args, timeout=600)
    assert done.code == (1 if any(map(is_error, alone.values())) else 0)
    assert outputs(done, tmp_path / "out", models_folder) == alone
    assert not [path for path in (tmp_path / "out").rglob(".*") if path.is_file()]
    resumed = run_cli(*args, "--resume", timeout=600)  # it has nothing to do
    assert outputs(resumed, tmp_path / "out", models_folder) == alone
    assert " 0 patched" in resumed.stderr


def test_what_goes_through_a_store_is_the_same(
    rules: Path, tmp_path: Path, alone: dict[str, str], models_folder: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.put(str(models_folder), "/every-model", recursive=True)
    args = ["apply", str(rules), "memory://every-model", "-o", "memory://patched", "--json"]
    monkeypatch.setattr("sys.argv", ["graphpatch", *args])
    code = cli._run()  # in this process, whose memory it is
    store.get("/patched", str(tmp_path / "out"), recursive=True)
    done = Ran(code, capsys.readouterr().out.encode(), "")
    found = outputs(done, tmp_path / "out", Path("memory://every-model"))
    for root in ("/every-model", "/patched"):
        store.rm(root, recursive=True)
    assert {name: text for name, text in found.items() if not is_error(text)} == {
        name: text for name, text in alone.items() if not is_error(text)
    }
    assert found.keys() == alone.keys()


def is_error(text: str) -> bool:
    return len(text) != hashlib.sha256().digest_size * 2
