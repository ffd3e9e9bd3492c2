"""All real models in one call: each output is, byte for byte, that of a call of its own."""

from __future__ import annotations

import json
from pathlib import Path

import graphpatch
from graphpatch.fleet.work import content
from tests.conftest import Run
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


def test_one_call_does_what_single_calls_do(
    run_cli: Run, tmp_path: Path, models_folder: Path
) -> None:
    rules, alone, out = tmp_path / "rules.json", {}, tmp_path / "out"
    rules.write_text(rules_text(*(rule | {"expect": {"min": 0}} for rule in RULES)))
    for name, path in catalogue.models().items():
        target = tmp_path / "alone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            graphpatch.apply(graphpatch.load_rules(rules), path).model.save(target)
            alone[name] = content(target)
        except graphpatch.GraphpatchError as error:
            alone[name] = str(error)
    assert len(set(alone.values())) > 200
    args = ("apply", rules, models_folder, "-o", out, "--json", "--jobs")
    for more, words in (
        (["1"], " patched"),
        (["2", "--force"], " patched"),
        (["2", "--resume"], " 0 "),
    ):
        done = run_cli(*args, *more, timeout=600)
        assert words in done.stderr
        for line in map(json.loads, done.stdout.splitlines()):
            name = line["model"].removeprefix(f"{models_folder}/")
            assert alone[name] == (line["error"] if "error" in line else content(out / name))
        assert len(done.stdout.splitlines()) == len(alone)
        assert not [path for path in out.rglob(".*") if path.is_file()]
