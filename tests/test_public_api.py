"""What users hold on to: the exported names and their signatures."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import graphpatch
from graphpatch import errors

SIGNATURES = {
    "apply": "(rules: 'Sequence[Rule | Mapping[str, Any]]', model: 'Model | str | Path',"
    " progress: 'Progress | None' = None, export: 'Export | None' = None) -> 'Result'",
    "gradient_in_parts": "(graph: 'tf.Graph', loss: 'Named',"
    " cut: 'Named | Sequence[Named | Sequence[Named]]', wrt: 'Named | Sequence[Named]', *,"
    " jacobian: 'bool' = False, check: 'bool' = False) -> 'Parts'",
    "import_model": "(model: 'str | Path | Model', name: 'str' = '', tags: 'str' = '') -> 'Any'",
    "load": "(model: 'ModelLike', progress: 'Progress | None' = None) -> 'Model'",
    "load_rules": "(path: 'str | Path', emit: 'str | None' = None, allow_python: 'bool' = False)"
    " -> 'list[Rule]'",
    "pattern": "(text: 'str', closed: 'bool | Sequence[str]' = False,"
    " **ops: 'Match | Mapping[str, Any]') -> 'Pattern'",
    "select": "(model: 'Model | str | Path', **match: 'Any') -> 'Selection'",
    "register_gradients": "(model: 'str | Path | Model | tf.Graph') -> 'list[str]'",
    "Model.save": "(self, path: 'str | Path', progress: 'Progress | None' = None) -> 'None'",
}

EXPORTED = {
    "GraphpatchError",
    "Model",
    "Parts",
    "Result",
    "Rule",
    "Selection",
    "Verification",
    "apply",
    "gradient_in_parts",
    "import_model",
    "load",
    "load_rules",
    "pattern",
    "register_gradients",
    "select",
    "verify",
}


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


def test_what_a_result_and_a_model_have() -> None:
    assert [field.name for field in dataclasses.fields(graphpatch.Result)] == ["model", "report"]
    for name in ("path", "graphs", "format", "node_count", "save", "copy"):
        assert hasattr(graphpatch.Model, name) or name in {
            field.name for field in dataclasses.fields(graphpatch.Model)
        }


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_every_exported_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(graphpatch, name))


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
