"""A folder that takes the place of another: who is killed over it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests import graphs
from tests.conftest import Run
from tests.refusals import RULE, everything, rules_text

# A process that is killed over the first rename of a folder.
KILLED = """
import os, signal
from pathlib import Path
def killed(call):
    def counted(*args, **kwargs):
        result = call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counted
Path.rename = killed(Path.rename)
from graphpatch.cli import main; main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [True, False], ids=["resumed", "again"])
def test_a_kill_in_the_middle_is_repaired(run_cli: Run, tmp_path: Path, fleet: bool) -> None:
    graphs.saved_model_folder(tmp_path / "reg/m", graphs.metagraph(graphs.sample(), "serve"))
    (tmp_path / "rules.json").write_text(rules_text(RULE))
    args = ["apply", "rules.json", "reg" if fleet else "reg/m", "-o", "out/m"]
    args = [*args[:4], "out", "-j", "1", "--resume"] if fleet else args
    (tmp_path / "out").mkdir()
    assert run_cli(*args, cwd=tmp_path).code == 0
    (tmp_path / "rules.json").write_text(rules_text(RULE | {"patch": {"stop_gradient": True}}))
    done = run_cli(*args, cwd=tmp_path, command=[sys.executable, "-c", KILLED])
    assert done.code == -signal.SIGKILL
    assert len(list((tmp_path / "out").glob(".m.*"))) == 2
    assert not (tmp_path / "out/m").exists()
    done = run_cli(*args, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert not list((tmp_path / "out").glob(".m.*.old"))
    if fleet:
        assert not list((tmp_path / "out").glob(".m.*"))
        [line] = (tmp_path / "out/graphpatch-manifest.jsonl").read_text().splitlines()
        assert json.loads(line)["output"] == "m"
    alone = run_cli("apply", "rules.json", "reg/m", "-o", "alone", cwd=tmp_path)
    assert alone.code == 0
    assert everything(tmp_path / "out/m") == everything(tmp_path / "alone")
