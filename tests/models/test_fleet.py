"""All real models in one call: each output is, byte for byte, that of a call of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.fleet.content import content
from tests.models import catalogue

Run = Callable[..., Any]
RULES = [
    {"match": {"op": ["Relu", "Relu6"]}, "patch": {"override_gradient": "guided_relu"}},
    {
        "match": {"op": ["MatMul", "Add", "BiasAdd"], "body": "main"},
        "patch": {"stop_gradient": True},
    },
    {"match": {"op": "Floor"}, "patch": {"straight_through": True}},
]


@pytest.fixture
def rules(rules_file: Callable[..., Path]) -> Path:
    return rules_file(*({**rule, "expect": {"min": 0}} for rule in RULES))


@pytest.fixture
def alone(rules: Path, tmp_path: Path, models_folder: Path) -> dict[str, str]:
    """The content of each model's output, or the error, when it is patched alone."""
    found = {}
    for name, path in catalogue.models().items():
        target = tmp_path / "alone" / name
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
        name = str(Path(line["model"]).relative_to(models))
        found[name] = line["error"] if "error" in line else content(folder / name)
    return found


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_one_call_does_what_single_calls_do(
    run_cli: Run, rules: Path, tmp_path: Path, alone: dict[str, str], models_folder: Path, jobs: str
) -> None:
    args = ("apply", rules, models_folder, "-o", tmp_path / "out", "--json", "--jobs", jobs)
    done = run_cli(*args)
    assert done.code == (1 if any(map(is_error, alone.values())) else 0)
    assert outputs(done, tmp_path / "out", models_folder) == alone
    resumed = run_cli(*args, "--resume")
    assert outputs(resumed, tmp_path / "out", models_folder) == alone
    assert " 0 patched" in resumed.stderr


def is_error(text: str) -> bool:
    return len(text) != hashlib.sha256().digest_size * 2
