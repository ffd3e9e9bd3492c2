"""What users hold on to: the exported names and their signatures."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import graphpatch
from graphpatch import cli, errors
from tests.examples import ROOT, pages
from tests.refusals import MODEL, RULE

DATA = "tests/data/signatures.json"
SIGNATURES = json.loads((ROOT / DATA).read_text())

PAGE = (ROOT / "docs" / "python.md").read_text()
INIT = (ROOT / "graphpatch" / "__init__.py").read_text()
# The table of the page: each function, its command and the value that it returns.
COMMANDS = re.findall(r"^\| `(\w+)\(.*?\| `(\w+)` \| `(\w+)`", PAGE, re.M)


@pytest.mark.parametrize(("path", "signature"), SIGNATURES.items())
def test_signatures(path: str, signature: str) -> None:
    found: Any = graphpatch
    for name in path.split("."):
        found = getattr(found, name)
    assert str(inspect.signature(found)) == signature


def test_every_function_has_its_signature() -> None:
    functions = {
        name for name in graphpatch.__all__ if inspect.isfunction(getattr(graphpatch, name))
    }
    missing = functions - SIGNATURES.keys()
    assert not missing, f"add what users may hold on to, to {DATA}: {sorted(missing)}"


def test_the_page_has_every_exported_name() -> None:
    """What is exported is what the page says: a name that goes, or comes, changes the page."""
    documentation = "\n".join(path.read_text() for path in pages())
    assert sorted(re.findall(r"^::: graphpatch\.(\w+)$", PAGE, re.M)) == graphpatch.__all__
    for name in graphpatch.__all__:
        assert inspect.getdoc(getattr(graphpatch, name)), name
        assert re.search(rf"\b{name}\b", documentation), name
        assert not name.endswith("Error") or re.search(rf"`(graphpatch\.)?{name}`", PAGE), name


def test_type_checkers_see_every_exported_name() -> None:
    imported = re.findall(r"^    from graphpatch\.\S+ import (\w+) as \1$", INIT, re.M)
    assert sorted(imported) == graphpatch.__all__, "a name stands under TYPE_CHECKING too"


def test_what_holds_a_model_gives_it_out() -> None:
    for of in (graphpatch.Model, graphpatch.Result, graphpatch.Reverted):
        for way in ("graph_def", "meta_graph_def", "import_into", "save"):
            assert inspect.getdoc(getattr(of, way))
    names = {field.name for of in (graphpatch.Result, graphpatch.Model) for field in fields(of)}
    assert {"model", "report", "path", "graphs", "format"} <= {*names, *dir(graphpatch.Model)}


def test_every_command_on_a_model_is_a_function_or_said_not_to_be() -> None:
    """The table of docs/python.md has each, and its first sentence those that are none."""
    assert {function for function, *_ in COMMANDS} <= set(graphpatch.__all__)
    commands = {
        name
        for name in cli.COMMANDS
        if any(one.name.startswith("model") or one.name in MODELS for one in arguments(name))
    }
    [others] = re.findall(r"^Every command on models but (.*?) is a function\.", PAGE, re.M)
    expected = commands - set(re.findall(r"`(\w+)`", others))
    differing = expected ^ {command for _, command, _ in COMMANDS}
    assert not differing, (
        f"{sorted(differing)}: a command that takes a model has its function in the table of "
        f"docs/python.md, or its name in the first sentence there"
    )


MODELS = {"paths", "original", "first"}


def arguments(command: str) -> list[Any]:
    found = importlib.import_module(f"graphpatch.cli.{command}").command
    return [one for one in found.params if isinstance(one, click.Argument)]


def test_every_error_of_a_user_is_one_class() -> None:
    for name in graphpatch.__all__:
        if name.endswith("Error"):
            error = getattr(errors, name)
            assert issubclass(error, graphpatch.GraphpatchError)
            assert (error.exit_code, bool(error.__doc__)) == (1, True)


@pytest.mark.parametrize("name", sorted({value for *_, value in COMMANDS} - {"Selection"}))
def test_every_value_of_a_command_tells_the_same(name: str) -> None:
    one = getattr(graphpatch, name)
    assert isinstance(one.ok, property)
    assert callable(one.document)
    assert one.__repr__ is not object.__repr__
    assert one.__dataclass_params__.frozen


# What Python is told where an argument is of the wrong type: which one, and what it takes.


g: Any = graphpatch
NAME = "expected a tensor or its name"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "load_rules": (lambda m: g.load_rules(5), "path: expected the path of a rules file, a list"),
    "save": (lambda m: m.save(5), "path: expected the path of a file or folder to write; found"),
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
    with pytest.raises(graphpatch.ModelError, match="gradients of a tensor; outputs: out:0"):
        graphpatch.view(MODEL, "out")


def test_a_name_of_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(graphpatch.OutputError, match=r"not \.onnx; name the output"):
        graphpatch.load(MODEL).save(path)
    assert not path.exists()
    # A model that has such a name keeps it.
    (tmp_path / "graph.txt").write_bytes(MODEL)
    graphpatch.load(tmp_path / "graph.txt").save(tmp_path / "other.txt")
    assert (tmp_path / "other.txt").read_bytes() == MODEL
