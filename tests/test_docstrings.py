"""What is public says what it takes, gives and raises, and shows how it is used."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.documented import (
    ERRORS,
    EXAMPLES,
    FUNCTIONS,
    PUBLIC,
    WITH_TENSORFLOW,
    failures,
    own_methods,
    write_files,
)

# Called by other modules of the package, not by users; they say what they do and raise.
INNER = {"file_in", "pieces", "meta_graph", "function", "exported", "writing", "encoded"}
INNER |= {"text_notes", "to_json", "hear", "finish"}
# Methods that Keras calls; it says what they take.
OF_KERAS = {"build", "call", "compute_output_shape", "compute_mask", "get_config", "from_config"}


def text_of(name: str) -> str:
    """The docstring of what is public; for methods that Keras calls, that of the layer too."""
    owner, _, method = name.rpartition(".")
    layer = f"{owner}." if method in OF_KERAS else ""
    told = inspect.getdoc({**PUBLIC, **FUNCTIONS}[name]) or ""
    return told + (inspect.getdoc(PUBLIC[layer.rstrip(".")]) or "" if layer else "")


# What is raised where an argument of this name is wrong.
RAISED = {
    **dict.fromkeys(("model", "original", "patched"), "ModelError"),
    **dict.fromkeys(("rules", "patch"), "RulesError"),
    **dict.fromkeys(("cut", "cuts"), "CutError"),
}


def test_errors_that_are_told_are_errors() -> None:
    for name in {**PUBLIC, **FUNCTIONS}:
        for word in re.findall(r"^    (\w+): ", text_of(name).partition("Raises:")[2], re.M):
            assert hasattr(graphpatch, word) or hasattr(builtins, word), (name, word)


HANDED_ON = {"Diagnosis.document", "Selection.rule"}  # rules and a patch, as they are
CALLED = [*FUNCTIONS, *(name for name in PUBLIC if "keras." in name)]


@pytest.mark.parametrize("name", [name for name in CALLED if name not in HANDED_ON])
def test_what_is_raised_is_told(name: str) -> None:
    errors = {RAISED.get(argument, "") for argument in arguments({**PUBLIC, **FUNCTIONS}[name])}
    missing = [error for error in errors if error not in text_of(name)]
    assert missing == [], f"{name} raises what its docstring does not tell"


def arguments(found: Any) -> list[str]:
    """The arguments that a caller gives."""
    names = inspect.signature(found).parameters
    return [name for name in names if name not in {"self", "cls", "kwargs"}]


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if inspect.isfunction(PUBLIC[name]) or "keras." in name]
)
def test_every_argument_is_told(name: str) -> None:
    text = text_of(name)
    for argument in arguments(PUBLIC[name]):
        listed = re.search(rf"^    \*{{0,2}}{argument}: \S", text, re.MULTILINE)
        assert listed or f"`{argument}`" in text, f"{name}: what is {argument}?"


# What takes or gives tensors, or arrays for tensors, and says of which shapes and dtypes.
OF_TENSORS = {name for name in PUBLIC if "keras." in name}
OF_TENSORS |= {
    name
    for name, one in PUBLIC.items()
    if inspect.isfunction(one) and one.__module__.startswith("graphpatch.runtime.functions")
}
WITH_ARRAYS = {"diagnose", "verify", "view"}
# What neither computes nor changes what a graph computes on the way back.
READING = {"load", "load_rules", "matches", "pattern", "select"}
DIFFERENTIATING = {name for name in PUBLIC if inspect.isfunction(PUBLIC[name])} - READING
DIFFERENTIATING |= OF_TENSORS


def test_which_functions_take_tensors() -> None:
    assert len(OF_TENSORS) == 12
    for name in PUBLIC.keys() - ERRORS:
        takes_arrays = callable(PUBLIC[name]) and "feed" in arguments(PUBLIC[name])
        assert takes_arrays == (name in WITH_ARRAYS)


@pytest.mark.parametrize("name", sorted(DIFFERENTIATING | WITH_ARRAYS))
def test_it_says_what_happens_to_tensors(name: str) -> None:
    text = text_of(name)
    wanted = [r"\b[Ff]orward\b", r"\b[Bb]ackward\b"] if name in DIFFERENTIATING else []
    if name in OF_TENSORS | WITH_ARRAYS:
        wanted += [r"\bshapes?\b", r"\b(dtypes?|floating|real)\b"]
    wanted += ["When not to use it:"] if name in OF_TENSORS else []
    assert [words for words in wanted if not re.search(words, text)] == [], name


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ERRORS])
def test_it_has_an_example_that_uses_it(name: str) -> None:
    own = name.rpartition(".")[2]
    example = EXAMPLES[name].partition("Example:")[2]
    assert re.search(r">>> .*\S", example)
    found = PUBLIC[name]
    made_by = {function for function in FUNCTIONS if f"graphpatch.{function}" in example}
    if inspect.isclass(found) and "keras." not in name and own != "Export":
        assert made_by, f"{name}: the example does not make one"
    else:
        assert own in example, f"{name}: the example does not use it"


@pytest.mark.parametrize(
    "name",
    [
        f"{name}.{key}"
        for name, found in PUBLIC.items()
        if inspect.isclass(found) and name not in ERRORS
        for key, method in own_methods(found).items()
        if len(arguments(method)) > 0 and key not in INNER | OF_KERAS | {"document"}
    ],
)
def test_a_method_with_arguments_has_an_example(name: str) -> None:
    owner, _, method = name.rpartition(".")
    passed_on = f"see `Model.{method}`" in text_of(name)  # where the example is
    shown = EXAMPLES.get(name, "") + EXAMPLES.get(owner, "")
    assert passed_on or f".{method}(" in shown.partition("Example:")[2], name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are that examples read."""
    found = tmp_path_factory.mktemp("examples")
    write_files(found)
    return found


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WITH_TENSORFLOW])
def test_an_example_gives_that(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert failures(name) == ""
