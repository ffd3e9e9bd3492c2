"""What Python is told where an argument is of the wrong type: which one, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.refusals import MODEL, RULE

g: Any = graphpatch
NAME = "expected a tensor or its name"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "load_rules": (lambda m: g.load_rules(5), "path: expected the path of a rules file, a list"),
    "load_rules of None": (lambda m: g.load_rules(None), "path: expected the path of a rules file"),
    "save": (
        lambda m: m.save(5),
        "path: expected the path of a file or folder to write; found int",
    ),
    "progress of save": (lambda m: m.save("x.pb", 5), "progress: expected a function of"),
    "a target": (lambda m: g.diagnose(m, 5, "out"), f"sources: {NAME}, or a list of these; found"),
    "one of several": (lambda m: g.diagnose(m, "x", ["out", 5]), f"targets[1]: {NAME}; found"),
    "a loss": (lambda m: g.split(m, 5, "relu", "x"), f"loss: {NAME}; found"),
    "a cut": (lambda m: g.split(m, "out", ["relu", 5], "x"), f"cut[1]: {NAME}; found"),
    "cuts": (lambda m: g.split(m, "out", [["relu"], [5]], "x"), f"cut[1][0]: {NAME}; found"),
    "wrt": (lambda m: g.split(m, "out", "relu", 5), f"wrt: {NAME}, or a list of these; found"),
    "ends of verify": (lambda m: g.verify(m, m, sources=5, run=False), f"sources: {NAME}"),
    "ends of a page": (lambda m: g.view(m, sources=5), f"sources: {NAME}"),
    "a page": (lambda m: g.view(m).save(5), "path: expected the path of a page to write; found"),
    "an export": (lambda m: g.apply([RULE], m, export=5), "export: expected a graphpatch.Export"),
    "progress": (
        lambda m: g.apply([RULE], m, progress=5),
        "progress: expected a function of three",
    ),
    "a pattern": (lambda m: g.pattern(5), "text: expected the text of a pattern, such as"),
}


@pytest.mark.parametrize(("call", "said"), WRONG.values(), ids=WRONG)
def test_the_argument_is_named(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(TypeError) as found:
        call(graphpatch.load(MODEL))
    assert str(found.value).startswith(said)


def test_a_tensor_that_is_given_as_the_patched_model() -> None:
    with pytest.raises(graphpatch.ModelError) as raised:
        graphpatch.view(MODEL, "out")
    assert str(raised.value) == (
        "patched: cannot read out: No such file or directory; view(model, targets='out') shows "
        "gradients of a tensor; outputs: out:0"
    )


def test_a_name_of_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(graphpatch.OutputError, match=r"not \.onnx; name the output"):
        graphpatch.load(MODEL).save(path)
    assert not path.exists()
    # A model that has such a name keeps it.
    (tmp_path / "graph.txt").write_bytes(MODEL)
    graphpatch.load(tmp_path / "graph.txt").save(tmp_path / "other.txt")
    assert (tmp_path / "other.txt").read_bytes() == MODEL
