"""What users hold on to: the exported names and their signatures."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

import click
import pytest

import graphpatch
from graphpatch import cli, errors
from tests.examples import ROOT, pages

SIGNATURES = {
    "apply": "(rules: 'RulesLike', model: 'ModelLike', progress: 'Progress | None' = None,"
    " export: 'Export | None' = None, allow_python: 'bool' = False) -> 'Result'",
    "building": "(rules: 'RulesLike', allow_python: 'bool' = False) -> 'Iterator[Building]'",
    "check": "(rules: 'RulesLike', model: 'ModelLike') -> 'Check'",
    "diagnose": "(model: 'ModelLike', sources: 'str | Sequence[str]' = (),"
    " targets: 'str | Sequence[str]' = (), *, run: 'bool' = False,"
    " feed: 'str | Path | Mapping[str, Any] | None' = None, fix: 'bool' = False,"
    " every: 'bool' = True, allow_unsafe_ops: 'bool' = False, control_flow_v2: 'bool' = True)"
    " -> 'Diagnosis'",
    "diff": "(a: 'ModelLike', b: 'ModelLike', progress: 'Progress | None' = None) -> 'Diff'",
    "gradient_in_parts": "(graph: 'tf.Graph', loss: 'Named',"
    " cut: 'Named | Sequence[Named | Sequence[Named]]', wrt: 'Named | Sequence[Named]', *,"
    " jacobian: 'bool' = False, check: 'bool' = False) -> 'Parts'",
    "import_model": "(model: 'ModelLike', name: 'str' = '', tags: 'str' = '', "
    "input_map: 'Mapping[str, Any] | None' = None) -> 'Any'",
    "load": "(model: 'ModelLike', progress: 'Progress | None' = None) -> 'Model'",
    "load_rules": "(path: 'str | os.PathLike[str] | Mapping[str, Any]"
    " | Sequence[Mapping[str, Any]]', emit: 'str | None' = None,"
    " allow_python: 'bool' = False) -> 'list[Rule]'",
    "matches": "(rules: 'RulesLike | Pattern | Mapping[str, Any]', model: 'ModelLike', *,"
    " explain: 'bool' = False, progress: 'Progress | None' = None) -> 'Matches'",
    "patch_graph": "(rules: 'RulesLike', graph: 'tf.Graph | None' = None, *,"
    " in_place: 'bool | None' = None, allow_python: 'bool' = False) -> 'PatchedGraph'",
    "pattern": "(text: 'str', closed: 'bool | Sequence[str]' = False,"
    " **ops: 'Match | Mapping[str, Any]') -> 'Pattern'",
    "clip_gradient": "(x: 'Any', min: 'Any', max: 'Any') -> 'Any'",
    "scale_gradient": "(x: 'Any', factor: 'Any') -> 'Any'",
    "reverse_gradient": "(x: 'Any', strength: 'Any' = 1.0) -> 'Any'",
    "filter_gradient": "(x: 'Any', spec: 'Spec') -> 'Any'",
    "override_gradient": "(f: 'Callable[..., Any]', spec: 'Spec') -> 'Callable[..., Any]'",
    "straight_through": "(f: 'Callable[[Any], Any]', x: 'Any') -> 'Any'",
    "surrogate": "(f: 'Callable[..., Any]', g: 'Callable[..., Any]', *x: 'Any') -> 'Any'",
    "backward_as": "(noisy: 'Any', clean: 'Any') -> 'Any'",
    "rebuild_gradients": "(model: 'ModelLike', loss: 'Sequence[str]' = ()) -> 'Model'",
    "register_gradients": "(model: 'ModelLike') -> 'list[str]'",
    "revert": "(model: 'ModelLike', rule: 'str | None' = None,"
    " progress: 'Progress | None' = None, allow_changed: 'bool' = False) -> 'Reverted'",
    "select": "(model: 'ModelLike', **match: 'Any') -> 'Selection'",
    "split": "(model: 'ModelLike', loss: 'str', cut: 'str | Sequence[str | Sequence[str]]',"
    " wrt: 'str | Sequence[str]', progress: 'Progress | None' = None,"
    " allow_unsafe_ops: 'bool' = False) -> 'Split'",
    "view": "(model: 'ModelLike', patched: 'ModelLike | None' = None, *,"
    " sources: 'str | Sequence[str]' = (), targets: 'str | Sequence[str]' = (),"
    " rules: 'RulesLike | Pattern | Mapping[str, Any] | None' = None, run: 'bool' = False,"
    " feed: 'Feed | None' = None, allow_unsafe_ops: 'bool' = False, control_flow_v2: 'bool' = True,"
    " progress: 'Progress | None' = None) -> 'View'",
    "Model.save": "(self, path: 'str | os.PathLike[str]', progress: 'Progress | None' = None)"
    " -> 'None'",
    "Model.graph_def": "(self, tags: 'str' = '') -> 'Any'",
    "Model.meta_graph_def": "(self, tags: 'str' = '') -> 'Any'",
    "Model.import_into": "(self, graph: 'LiveGraph', name: 'str' = '', tags: 'str' = '') -> 'Any'",
}

EXPORTED = set(
    (
        "Building Check CutError Diagnosis Diff Export FleetError ForeignError FormulaError "
        "GraphpatchError MatchError Matches Model ModelError OutputError Parts PatchError "
        "PatchedGraph PatternError Place Result Reverted Rule RulesError Selection Split "
        "UnsafeError Verification View apply backward_as building check clip_gradient diagnose "
        "diff filter_gradient gradient_in_parts import_model load load_rules matches "
        "override_gradient patch_graph pattern rebuild_gradients register_gradients "
        "reverse_gradient revert scale_gradient select split straight_through surrogate verify "
        "view"
    ).split()
)

# What every value of a command has, and what of these holds a model.
VALUES = tuple("Check Diagnosis Diff Matches Result Reverted Split Verification View".split())
WITH_A_MODEL = ("Model", "Result", "Reverted")


def test_the_exported_names() -> None:
    assert set(graphpatch.__all__) == EXPORTED
    assert graphpatch.__all__ == sorted(graphpatch.__all__)
    assert all(hasattr(graphpatch, name) for name in EXPORTED)
    assert isinstance(graphpatch.__version__, str)


@pytest.mark.parametrize(("path", "signature"), SIGNATURES.items())
def test_signatures(path: str, signature: str) -> None:
    found: Any = graphpatch
    for name in path.split("."):
        found = getattr(found, name)
    assert str(inspect.signature(found)) == signature


PAGE = (ROOT / "docs" / "python.md").read_text()


def test_every_exported_name_is_told() -> None:
    documentation = "\n".join(path.read_text() for path in pages())
    for name in EXPORTED:
        assert inspect.getdoc(getattr(graphpatch, name)), name
        assert re.search(rf"\b{name}\b", documentation), name
        assert not name.endswith("Error") or re.search(rf"`(graphpatch\.)?{name}`", PAGE), name
    assert sorted(re.findall(r"^::: graphpatch\.(\w+)$", PAGE, re.M)) == graphpatch.__all__


def test_what_a_result_and_a_model_have() -> None:
    for way in ("graph_def", "meta_graph_def", "import_into", "save"):
        for name in WITH_A_MODEL:
            assert inspect.getdoc(getattr(getattr(graphpatch, name), way))
    assert [field.name for field in dataclasses.fields(graphpatch.Result)] == ["model", "report"]
    for name in ("path", "graphs", "format", "node_count", "save", "copy"):
        assert hasattr(graphpatch.Model, name) or name in {
            field.name for field in dataclasses.fields(graphpatch.Model)
        }


def test_every_command_on_a_model_is_a_function_or_said_not_to_be() -> None:
    """The table of docs/python.md has each, and its text the one that is none."""
    listed = set(re.findall(r"^\| `(\w+)\(.*?\| `(\w+)` \|", PAGE, re.M))
    assert {function for function, _ in listed} <= set(graphpatch.__all__)
    commands = {
        name
        for name in cli.COMMANDS
        if any(one.name.startswith("model") or one.name in MODELS for one in arguments(name))
    }
    assert {command for _, command in listed} == commands - {"references"}


MODELS = {"paths", "original", "one"}


def arguments(command: str) -> list[Any]:
    found = importlib.import_module(f"graphpatch.cli.{command}").command
    return [one for one in found.params if isinstance(one, click.Argument)]


def test_every_error_of_a_user_is_one_class() -> None:
    found = {
        name: one
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, Exception)
    }
    assert set(found) >= {"ModelError", "RulesError", "MatchError", "PatchError", "OutputError"}
    for one in found.values():
        assert issubclass(one, graphpatch.GraphpatchError)
        assert one.exit_code == 1
        assert one.__doc__


@pytest.mark.parametrize("name", VALUES)
def test_every_value_of_a_command_tells_the_same(name: str) -> None:
    one = getattr(graphpatch, name)
    assert isinstance(one.ok, property)
    assert callable(one.document)
    assert one.__repr__ is not object.__repr__
    assert one.__dataclass_params__.frozen


NEAREST = [
    ("relu", ["Relu6", "Relu", "Elu"], ["Relu"]),
    ("Rleu", ["Relu6", "Relu", "Conv2D"], ["Relu", "Relu6"]),
    ("xyz", ["Relu"], []),
    ("a", [], []),
]


@pytest.mark.parametrize(("word", "legal", "found"), NEAREST)
def test_the_nearest_words(word: str, legal: list[str], found: list[str]) -> None:
    assert errors.nearest(word, legal)[: len(found) or None] == found
    clause = errors.did_you_mean(word, legal)
    assert clause.startswith("; nearest: " + ", ".join(found)) if found else clause == ""
