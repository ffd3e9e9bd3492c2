"""What is public says what it raises, and shows how it is used."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import graphpatch

PUBLIC = {name: getattr(graphpatch, name) for name in graphpatch.__all__}
ERRORS = {
    name
    for name, found in PUBLIC.items()
    if inspect.isclass(found) and issubclass(found, BaseException)
}
TOLD = ERRORS | {"TypeError", "ValueError", "KeyError", "IndexError"}


def callables() -> Iterator[tuple[str, Any]]:
    """Each public function, and each public method that a class of ours has itself."""
    for name, found in PUBLIC.items():
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and name not in ERRORS:
            for key, method in vars(found).items():
                method = inspect.unwrap(getattr(method, "__func__", method))
                is_ours = inspect.isfunction(method) and method.__module__.startswith("graphpatch")
                if is_ours and not key.startswith("_"):
                    yield f"{name}.{key}", method


CALLABLES = dict(callables())


def raised_in(function: Any) -> set[str]:
    """What a function raises itself, or by functions of its module that it calls."""
    module = inspect.getmodule(function)
    assert module is not None
    found, seen, todo = set[str](), set[str](), [function]
    while todo:
        tree = ast.parse(textwrap.dedent(inspect.getsource(todo.pop())))
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found.add(ast.unparse(node.exc.func).rpartition(".")[2])
            called = node.func.id if _is_plain_call(node) else ""  # type: ignore[attr-defined]
            other = getattr(module, called, None) if called else None
            is_ours = inspect.isfunction(other) and other.__module__ == module.__name__
            if is_ours and called not in seen:
                seen.add(called)
                todo.append(other)
    return found & TOLD


def _is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_what_is_raised_is_found() -> None:
    assert raised_in(graphpatch.import_model) >= {"GraphpatchError"}
    assert raised_in(graphpatch.gradient_in_parts) >= {"CutError"}


@pytest.mark.parametrize("name", CALLABLES)
def test_what_is_raised_is_told(name: str) -> None:
    found = CALLABLES[name]
    words = set(re.findall(r"\w+Error", inspect.getdoc(found) or ""))
    untold = raised_in(found) - words
    assert untold == set(), f"{name} raises what its docstring does not tell"


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(PUBLIC[name])])
def test_a_function_has_an_example(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    example = re.search(r"^(Example:|.*\bExample: |.*::?)\n\n? +.*", text, re.MULTILINE)
    assert ">>>" in text or example, name
    assert name in text.partition("\n")[2], f"{name}: the example does not use it"
