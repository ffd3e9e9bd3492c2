"""What a function can raise: what it raises itself, and what the functions raise that it calls.

It follows names of functions, classes, modules and `self`; not methods of other values. What an
`except` catches does not count, unless it is raised again.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, TypeGuard

Raised = frozenset[type[BaseException]]


class Reader:
    """Reads each function once, whoever calls it."""

    def __init__(self) -> None:
        self.known: dict[Any, Raised] = {}

    def raised_in(self, function: Any) -> Raised:
        """The classes of the errors that a function can raise."""
        if function not in self.known:
            self.known[function] = frozenset()  # a call of itself raises nothing else
            [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            assert isinstance(definition, ast.FunctionDef)
            self.known[function] = frozenset(self._of(definition.body, Scope(function)))
        return self.known[function]

    def _of(self, nodes: Iterable[ast.AST], scope: Scope) -> Iterator[type[BaseException]]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                continue  # called elsewhere, if at all
            if isinstance(node, ast.ImportFrom):
                scope.add(node)
            if isinstance(node, ast.Try):
                yield from self._tried(node, scope)
                continue
            if isinstance(node, ast.With):
                inside = set(self._of([*node.items, *node.body], scope))
                caught = tuple(suppressed(node, scope))
                yield from (one for one in inside if not issubclass(one, caught))
                continue
            if isinstance(node, ast.Raise) and node.exc is not None:
                made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                yield from errors_of(scope.value(made))
            if isinstance(node, ast.Call):
                for function in run_by(scope.value(node.func)):
                    yield from self.raised_in(function)
            yield from self._of(ast.iter_child_nodes(node), scope)

    def _tried(self, node: ast.Try, scope: Scope) -> Iterator[type[BaseException]]:
        inside = set(self._of(node.body, scope))
        caught: list[type[BaseException]] = []
        for handler in node.handlers:
            types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            caught += [one for type_ in types if type_ for one in errors_of(scope.value(type_))]
            if any(isinstance(one, ast.Raise) and one.exc is None for one in ast.walk(handler)):
                yield from inside
            yield from self._of(handler.body, scope)
        yield from (one for one in inside if not issubclass(one, tuple(caught)))
        yield from self._of([*node.orelse, *node.finalbody], scope)


def suppressed(node: ast.With, scope: Scope) -> Iterator[type[BaseException]]:
    """Yield the errors that a `with contextlib.suppress(...)` catches."""
    for item in node.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and scope.value(call.func) is contextlib.suppress:
            for argument in call.args:
                yield from errors_of(scope.value(argument))


class Scope:
    """What names in a function mean."""

    def __init__(self, function: Any) -> None:
        self.module = sys.modules[function.__module__]
        self.local: dict[str, Any] = {}
        owner = function.__qualname__.rpartition(".")[0]
        if owner and "<locals>" not in owner:
            found = functools.reduce(getattr, owner.split("."), self.module)
            self.local |= {"self": found, "cls": found}

    def add(self, node: ast.ImportFrom) -> None:
        """Add what a function imports of the package."""
        if node.module is not None and node.module.startswith("graphpatch"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                self.local[alias.asname or alias.name] = getattr(module, alias.name)

    def value(self, node: ast.expr) -> Any:
        """What an expression is; None where that is only known when it runs."""
        if isinstance(node, ast.Name):
            there = getattr(self.module, node.id, getattr(builtins, node.id, None))
            return self.local.get(node.id, there)
        if isinstance(node, ast.Attribute):
            of = self.value(node.value)
            if isinstance(of, ModuleType) or inspect.isclass(of):
                return getattr(of, node.attr, None)
        return None


def is_error(found: Any) -> TypeGuard[type[BaseException]]:
    """Whether it is a class of errors."""
    return inspect.isclass(found) and issubclass(found, BaseException)


def errors_of(found: Any) -> Iterator[type[BaseException]]:
    """The class of errors that it is, or that it makes, as a function."""
    if inspect.isfunction(found):
        name = str(found.__annotations__.get("return"))
        found = getattr(sys.modules[found.__module__], name, getattr(builtins, name, None))
    if is_error(found):
        yield found


def run_by(found: Any) -> Iterator[Any]:
    """The functions of the package that run when it is called."""
    parts = [found]
    if inspect.isclass(found):
        parts = [vars(found).get(name) for name in ("__init__", "__post_init__")]
    for one in parts:
        function = inspect.unwrap(getattr(one, "__func__", one)) if callable(one) else None
        is_ours = inspect.isfunction(function) and function.__module__.startswith("graphpatch")
        if is_ours and function.__code__.co_filename.endswith(".py"):  # not made by dataclasses
            yield function
