"""What a command imports before it reads a model: nothing that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import graphs
from tests.patches.one_op import net

PROGRAM = """
import sys
from graphpatch.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
sys.stderr.write("\\n".join(sys.modules))
"""

NEVER = {"numpy", "networkx", "tensorflow", "graphpatch.runtime", "graphpatch.page"}
NOT_FOR_OPS = {
    *("shutil", "graphpatch.rules", "graphpatch.patches", "graphpatch.gradients"),
    *("graphpatch.fleet", "graphpatch.recipes", "graphpatch.match.pattern"),
}
NOT_FOR_APPLY = {"graphpatch.match.ready", "graphpatch.analysis.doctor", "graphpatch.analysis.ops"}


def imported(*arguments: str) -> set[str]:
    """The modules that a process has imported when the command has run."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return set(done.stderr.split("\n"))


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A GraphDef with one Relu."""
    return str(graphs.saved(tmp_path, *net("x:Placeholder y:Relu(x)")))


def test_ops_imports_nothing_that_patches(small: str) -> None:
    found = imported("ops", small)
    assert "graphpatch.analysis.ops" in found
    assert not found & (NEVER | NOT_FOR_OPS)


def test_apply_reads_no_ready_pattern_that_no_rule_names(small: str, tmp_path: Path) -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    (tmp_path / "rules.json").write_text(json.dumps({"version": 1, "rules": [rule]}))
    found = imported("apply", str(tmp_path / "rules.json"), small)
    assert "graphpatch.patches.override" in found
    assert not found & (NEVER | NOT_FOR_APPLY)
