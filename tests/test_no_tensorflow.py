"""No file-to-file command imports TensorFlow: each is run where the import is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from graphpatch import cli
from graphpatch.formats import load
from tests import forked, graphs
from tests.conftest import CHECKOUT, Run
from tests.refusals import rules_text

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "tf_keras", "jax", "torch"}:
            raise AssertionError(f"imports {name}")

sys.meta_path.insert(0, Refuse())
"""
MAIN = "from graphpatch.cli import main; main()"
# What is imported there, tests.forked.command, has asserted that TensorFlow is not.
WITHOUT = {"command": [*forked.python(forked.COMMAND), "-c", REFUSE + MAIN]}

RULES = [
    {"match": {"op": "Relu", "body": "main"}, "patch": {"override_gradient": "guided_relu"}},
    {"match": {"op": "Relu6"}, "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}}},
    {"match": {"op": "Round"}, "patch": {"straight_through": True}},
    {"match": {"name": "out"}, "patch": {"stop_gradient": True, "at": "inputs"}},
    {"match": {"name": "Multiply"}, "patch": {"override_gradient": {"registered": "Mine"}}},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    meta = graphs.metagraph(graphs.sample(), "serve")
    (tmp_path / "model.pb").write_bytes(graphs.sample().SerializeToString())
    (tmp_path / "text.pbtxt").write_text(str(graphs.sample()))
    (tmp_path / "model.meta").write_bytes(meta.SerializeToString())
    graphs.saved_model_folder(tmp_path / "saved", meta)
    (tmp_path / "rules.json").write_text(rules_text(*RULES))
    return tmp_path


def test_the_import_is_refused(run_cli: Run) -> None:
    done = run_cli(command=[sys.executable, "-c", f"{REFUSE}import tensorflow.core.framework"])
    assert (done.code, "AssertionError: imports" in done.stderr) == (1, True)


MODELS = ["model.pb", "text.pbtxt", "model.meta", "saved"]


@pytest.mark.parametrize("model", MODELS)
def test_commands_on_a_model(run_cli: Run, folder: Path, model: str) -> None:
    def said(*args: str, code: int = 0) -> Any:
        done = run_cli(*args, cwd=folder, **WITHOUT)
        assert (done.code, done.stderr if not code else "") == (code, "")
        return done

    for more in ([], ["--all", "--json"], ["relu", "tower/*"]):
        assert "Relu6" in said("ops", model, *more).stdout
    said("ops", model, "rleu", code=1)
    assert "x:0 -> out:0" in said("doctor", model, "--fix", "fix.json").stdout
    assert (folder / "fix.json").exists()
    for emit in ("auto", "attr"):
        args = ("apply", "rules.json", model, "--emit", emit, "--force")
        [output] = said(*args, "--json").json["outputs"]
        assert len(output["rules"]) == len(RULES)
        assert load(folder / output["output"]).node_count == output["nodes"]["after"]
    said("apply", "rules.json", model, "--dry-run")
    assert "same structure; nothing was run" in said("verify", model, model, "--no-run").stdout


def test_rules_load_no_numpy(run_cli: Run, folder: Path) -> None:
    """Its threads keep workers from being forked, and it takes a fifth of the start."""
    refuse = REFUSE.replace('"tensorflow",', '"numpy", "tensorflow",')
    done = run_cli(
        "apply", "rules.json", "model.pb", cwd=folder, command=[sys.executable, "-c", refuse + MAIN]
    )
    assert (done.code, done.stderr) == (0, "")


# Commands that take no files, or none of ours.
OTHERS = [["--help"], ["--version"], ["schema"], ["gradients"], ["gradients", "--json"]]


def test_what_takes_no_file(run_cli: Run) -> None:
    program = f"""{REFUSE}
import graphpatch.runtime
from graphpatch.cli import main
for words in {[*OTHERS, *([name, "--help"] for name in cli.COMMANDS)]}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
"""
    done = run_cli(command=[sys.executable, "-c", program])
    assert (done.code, done.stderr) == (0, "")
    assert all(f"graphpatch {name} " in done.stdout for name in cli.COMMANDS)


COMMANDS = ("doctor model.pb --run", "verify model.pb model.pb", "view model.pb --run -o page.html")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_needs_tensorflow_says_so(run_cli: Run, folder: Path, command: str) -> None:
    """In the processes that a command starts, too."""
    (folder / "hidden").mkdir(exist_ok=True)
    missing = "raise ModuleNotFoundError('No module named tensorflow', name='tensorflow')"
    (folder / "hidden" / "tensorflow.py").write_text(missing)
    paths = os.pathsep.join([str(folder / "hidden"), str(CHECKOUT)])
    done = run_cli(*command.split(), cwd=folder, env={"PYTHONPATH": paths})
    assert (done.code, done.stdout) == (1, "")
    assert "TensorFlow, which is not installed here: pip install tensorflow" in done.stderr
    assert "Traceback" not in done.stderr


def test_functions_without_tensorflow_say_so(run_cli: Run, folder: Path) -> None:
    code = """
import sys
sys.modules["tensorflow"] = None
import graphpatch
from graphpatch.runtime.references import references
RULE = {"match": {"op": "Relu", "body": "main"}, "patch": {"override_gradient": "guided_relu"}}
for call in (
    lambda: graphpatch.patch_graph([]),
    lambda: graphpatch.import_model("model.pb"),
    lambda: graphpatch.rebuild_gradients("model.pb"),
    lambda: graphpatch.diagnose("model.pb", run=True),
    lambda: references("model.pb", {}),
    lambda: graphpatch.register_gradients(graphpatch.apply({**RULE, "emit": "attr"}, "model.pb")),
):
    try:
        call()
    except graphpatch.GraphpatchError as error:
        print(error)
"""
    done = run_cli(cwd=folder, command=[sys.executable, "-c", code])
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count(", which is not installed here: pip install tensorflow") == 6
    assert done.stdout.startswith("patch_graph works on graphs of TensorFlow")
