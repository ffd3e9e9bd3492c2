"""Rules for many models that name .npy files: read once, from where the rules are, and no other."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.fleet.work import FleetOrder
from tests.conftest import Run
from tests.graphs import graphdef, node
from tests.refusals import refused

NUMBERS = [3.0, 4.0, 5.0, 6.0]


def rules(name: str = "w.npy") -> bytes:
    gradient = {"formula": "dy * w", "constants": {"w": name}}
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": gradient}}
    return json.dumps({"version": 1, "rules": [rule]}).encode()


def array(numbers: list[float] = NUMBERS) -> bytes:
    held = io.BytesIO()
    np.save(held, np.float32(numbers))
    return held.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, rules and their array elsewhere, and another array where the command runs."""
    graph = graphdef(node("x", "Placeholder"), node("y", "Relu", "x"))
    for name in ("rules", "in", "here"):
        (tmp_path / name).mkdir()
    for name in ("a.pb", "b.pb"):
        (tmp_path / "in" / name).write_bytes(graph.SerializeToString())
    (tmp_path / "rules/r.json").write_bytes(rules())
    (tmp_path / "rules/w.npy").write_bytes(array())
    (tmp_path / "here/w.npy").write_bytes(array([0.0]))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_arrays_beside_the_rules(folder: Path, run_cli: Run) -> None:
    rules = folder / "rules/r.json"
    assert run_cli("apply", rules, folder / "in/a.pb", "-o", folder / "one.pb").code == 0
    assert run_cli("apply", rules, folder / "in", "-o", folder / "out", "-j", "1").code == 0
    assert (folder / "out/a.pb").read_bytes() == (folder / "one.pb").read_bytes()
    assert run_cli("check", rules, folder / "out", "-j", "1").code == 0


def test_other_numbers_are_other_rules(folder: Path) -> None:
    order = FleetOrder(str(folder / "rules/r.json"), (str(folder / "in"),), str(folder / "out"))
    before = order.with_rules().digest()
    (folder / "rules/w.npy").write_bytes(array([1.0]))
    assert order.with_rules().digest() != before


def test_arrays_in_a_store(folder: Path) -> None:
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(folder / "r.zip", "w") as file:
        file.writestr("deep/r.json", rules())
        file.writestr("deep/w.npy", array())
    models = (str(folder / "in"),)
    for url in (f"file://{folder}/rules/r.json", f"zip://deep/r.json::file://{folder}/r.zip"):
        order = FleetOrder(url, models, "out", jobs=1, allow_chained=True)
        [rule] = order.with_rules().read  # what the workers are told
        constants: Any = rule.written_patch["override_gradient"]["constants"]
        assert base64.b64decode(constants["w"]["float32"]) == np.float32(NUMBERS).tobytes()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../rules/w.npy", "leads out of the folder"),
        ("/etc/w.npy", "leads out of the folder"),
        ("zip://w.npy::file:///etc/w.npy", "does not stay in its folder"),
        ("gone.npy", "cannot read file://"),
        ("text.npy", "not an .npy file of numbers"),
    ],
)
def test_a_store_gives_nothing_else(name: str, said: str, folder: Path, run_cli: Run) -> None:
    pytest.importorskip("fsspec")
    (folder / "rules/r.json").write_bytes(rules(name))
    (folder / "rules/text.npy").write_text("no numbers")
    url = f"file://{folder}/rules/r.json"
    refused(run_cli("apply", url, folder / "in/a.pb", "-o", folder / "out/"), said)
    assert not (folder / "out").exists()
