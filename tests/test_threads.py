"""The first use from several threads at once, in a process of its own."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from graphpatch import later
from tests.conftest import Run

PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import graphpatch
from graphpatch.cli import ops, doctor, match, diff, check  # as commands are imported
rule, model, calls = {rule}, {model!r}, {calls!r}
barrier, errors = threading.Barrier(8), []

def work(number):
    barrier.wait()
    try:
        eval(calls[number % len(calls)])
    except BaseException as error:
        errors.append(error)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
print(errors or "fine")
"""
RULE = {"match": {"op": "Relu", "body": "main"}, "patch": {"override_gradient": "guided_relu"}}
CALLS = (
    "graphpatch.apply([rule], model)",
    "graphpatch.select(model, op='Relu')",
    "graphpatch.diff(model, graphpatch.apply([rule], model))",
    "graphpatch.diagnose(model)",
    "graphpatch.check([rule], graphpatch.apply([rule], model))",
    "graphpatch.revert(graphpatch.apply([rule], model))",
    "graphpatch.matches(graphpatch.pattern('Relu -> *'), model)",
    "graphpatch.view(model, rules='@guided_backprop')",
)


@pytest.mark.parametrize("calls", [CALLS[:1], CALLS[1:2], CALLS], ids=["apply", "select", "all"])
def test_eight_threads_that_begin_at_once(run_cli: Run, model_file: Path, calls: Any) -> None:
    program = PROGRAM.format(rule=json.dumps(RULE), model=str(model_file), calls=calls)
    done = run_cli(command=[sys.executable, "-c", program])
    assert (done.code, done.stdout, done.stderr) == (0, "fine\n", "")


def test_modules_are_imported_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python failed one of them where one imported `msgspec`, another `msgspec.structs`."""
    monkeypatch.syspath_prepend(tmp_path)
    turns: list[str] = []
    monkeypatch.setattr(later, "TURNS", turns, raising=False)
    for name in ("first_use", "second_use"):
        turn = f"later.TURNS.append({name!r})\n"
        text = f"import time\nfrom graphpatch import later\n{turn}time.sleep(0.1)\n{turn}"
        (tmp_path / f"{name}.py").write_text(text)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(later.imported, ("first_use", "second_use")))
    assert turns == ["first_use"] * 2 + ["second_use"] * 2
