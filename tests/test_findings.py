"""The inputs that broke graphpatch 0.1, through the commands that broke.

They lie beside the checkout, or where GRAPHPATCH_FINDINGS says; robustness/test_hostile_inputs.py
makes the small ones anew. None may end in a traceback, print a control character or a
message without an end.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphpatch import apply
from graphpatch.errors import GraphpatchError
from graphpatch.formats import load
from graphpatch.rules import rules_from
from tests.graphs import graphdef, node
from tests.hostile import COMMANDS, LENGTH, check, on, workspace
from tests.test_shown import ran

NAMED = os.environ.get("GRAPHPATCH_FINDINGS")
FOLDER = Path(NAMED) if NAMED else Path(__file__).parents[2] / "shared" / "findings"
MODELS = sorted(path for path in FOLDER.glob("model-*"))
FORGED = sorted(FOLDER.glob("forged/*.pb"))
MANIFESTS = sorted(FOLDER.glob("forged/man_*.jsonl"))
RULES = sorted(FOLDER.glob("rules-*"))
SEMANTIC = sorted(path.parent for path in FOLDER.glob("sem-*/rules.json"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER.is_dir(),
        reason="no findings beside the checkout; GRAPHPATCH_FINDINGS names them",
    ),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    workspace(tmp_path)
    return tmp_path


@pytest.mark.parametrize("finding", MODELS, ids=lambda path: path.name)
def test_a_model(here: Path, finding: Path) -> None:
    for path in finding.iterdir():
        shutil.copy(path, here)
    found = re.search(r"^args (\[.*\])$", (finding / "info.txt").read_text(), re.M)
    assert found is not None
    check([str(one).rpartition("/")[2] or str(one) for one in ast.literal_eval(found[1])])


@pytest.mark.parametrize("model", FORGED, ids=lambda path: path.name)
def test_a_forged_model(here: Path, model: Path) -> None:
    for command in COMMANDS:
        check(on(str(model), command))


OLDER = [FOLDER / "forged" / f"forge{letter}.pb" for letter in "AD"]


@pytest.mark.parametrize("model", [*OLDER, *(one / "p.pb" for one in SEMANTIC)], ids=str)
def test_what_0_1_wrote_or_was_never_there_is_not_put_back(here: Path, model: Path) -> None:
    code, text = ran("revert", model, "-o", "back.pb")
    assert (code, (here / "back.pb").exists()) == (1, False)
    assert "patched by graphpatch 0.1 or 0.2, whose records this version does not read" in text


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_a_forged_manifest(here: Path, manifest: Path) -> None:
    (here / "in").mkdir()
    (here / "out").mkdir()
    graph = graphdef(node("x", "Placeholder"), node("y", "Relu", "x"))
    (here / "in/m.pb").write_bytes(graph.SerializeToString())
    shutil.copy(manifest, here / "out/graphpatch-manifest.jsonl")
    check(["apply", "guided.json", "in", "-o", "out", "--resume", "-j", "1"])
    assert (here / "out/m.pb").exists()


def test_the_archive_that_slipped(here: Path) -> None:
    pytest.importorskip("fsspec")
    shutil.copy(FOLDER / "forged/evil.zip", here)
    url = f"zip://m::file://{here}/evil.zip"
    (here / "a/b").mkdir(parents=True)
    for more in ((), ("--allow-chained-urls",)):
        code, _ = ran("apply", "guided.json", url, "-o", here / "a/b/out", *more)
        assert code == 1
    assert not list(here.rglob("ZIPSLIP*"))


@pytest.mark.parametrize("finding", RULES, ids=lambda path: path.name)
def test_rules(tmp_path: Path, finding: Path) -> None:
    rules = _rules((finding / "input.bin").read_text(errors="replace"))
    names = ["x", *(f"relu{n}" for n in range(100)), "a" * 5_000]
    relus = [node(name, "Relu", before) for before, name in pairwise(names)]
    (tmp_path / "m.pb").write_bytes(graphdef(node("x", "Placeholder"), *relus).SerializeToString())
    model = load(tmp_path / "m.pb")
    try:
        apply(rules_from(rules), model)
    except GraphpatchError as error:
        assert len(str(error)) < LENGTH  # noqa: PT017


def _rules(raw: str) -> Any:
    """The rules of a finding: a whole file; or what was tried, its text, and numbers beside it."""
    if raw.startswith("{"):
        return json.loads(raw)
    kind, *rest = ast.literal_eval(raw)
    [text] = [one for one in rest if isinstance(one, str)]
    match = {"op": "Relu"} if kind == "formula" else {kind: text}
    gradient = {"formula": text} if kind == "formula" else "guided_relu"
    return [{"match": match, "patch": {"override_gradient": gradient}}]


@pytest.mark.parametrize("finding", SEMANTIC, ids=lambda path: path.name)
def test_a_semantic_finding(here: Path, finding: Path) -> None:
    for args in (["o.pb", "-o", "out.pb"], ["p.pb", "--dry-run"]):
        check(["apply", str(finding / "rules.json"), str(finding / args[0]), *args[1:]])
    check(["verify", "--no-run", str(finding / "o.pb"), str(finding / "p.pb")])
