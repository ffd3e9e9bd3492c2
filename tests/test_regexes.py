"""The package's own regular expressions take no more than linear time, whatever they read.

Those of rules are RE2's. Python's go back and try again: where a repeat stands in a repeat, a text
of thirty line ends can take a day.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphpatch.errors import GraphpatchError
from graphpatch.fleet.search import search
from graphpatch.formats.text import parse_text
from graphpatch.gradients import formula as formula_syntax
from graphpatch.match import spec
from graphpatch.match.pattern import syntax
from graphpatch.rules import rules_in

PACKAGE = Path(__file__).parent.parent / "graphpatch"
CALLS = ("compile", "match", "search", "sub", "fullmatch", "split", "findall", "finditer")
# Repeats in repeats, where each turn of the outer one begins with what the inner one never matches.
CLEAR = {
    r"\A(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{<]",
    r'Message type "(?:\w+\.)*(\w+)" has no field named "(.*)"\.?',
    syntax._TOKEN.pattern,
}


# Repeats side by side that never go back, as nothing more must match behind them; and one that
# reads a docstring of the package alone.
ENDING = {
    spec.KEY.pattern,
    syntax._TOKEN.pattern,
    formula_syntax._TOKEN.pattern,
    r"Node: '[^']*'\n(?:\d+ root error.*\n)?\s*(.+)",
}


def expressions() -> Iterator[str]:
    """The regular expressions of the package; of those made later, how they are spelled."""
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                of_re = isinstance(call.func.value, ast.Name) and call.func.value.id == "re"
                if of_re and call.func.attr in CALLS:
                    yield spelled(call.args[0], path)


def spelled(given: ast.expr, path: Path) -> str:
    """An expression as its module has it: with its constants, in f-strings and sums too."""
    if isinstance(given, ast.Constant):
        value = given.value
    else:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        names = vars(importlib.import_module(name.removesuffix(".__init__")))
        try:
            value = eval(compile(ast.Expression(given), str(path), "eval"), names)
        except NameError:  # of a function's own
            return ast.unparse(given)
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def has_nested_repeat(parsed: Any, inside: bool = False) -> bool:
    """Whether a repeat without end stands in another."""
    for op, given in parsed:
        if str(op) in ("MAX_REPEAT", "MIN_REPEAT"):
            endless = str(given[1]) == "MAXREPEAT"
            if (endless and inside) or has_nested_repeat(given[2], inside or endless):
                return True
        elif str(op) == "SUBPATTERN":
            if has_nested_repeat(given[-1], inside):
                return True
        elif str(op) == "BRANCH" and any(has_nested_repeat(one, inside) for one in given[1]):
            return True
    return False


def parsed(expression: str) -> Any:
    """An expression as Python's own parser reads it."""
    name = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
    return importlib.import_module(name).parse(expression)


def in_line(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """The items of an expression one behind the other, those of its groups among them."""
    for op, given in parsed:
        if str(op) == "SUBPATTERN":
            yield from in_line(given[-1])
        else:
            yield op, given


def has_overlap(parsed: Any) -> bool:
    """Whether two repeats without end that match the same letter stand side by side.

    Optional items may stand between them. Branches are looked at each by itself.
    """
    before = set[str]()
    for op, given in in_line(parsed):
        if str(op) == "BRANCH" and any(map(has_overlap, given[1])):
            return True
        if str(op) not in ("MAX_REPEAT", "MIN_REPEAT"):
            before = set()
            continue
        least, most, inner = given
        letters = set(filter(matching(inner), map(chr, range(256))))
        if str(most) == "MAXREPEAT" and (letters & before or has_overlap(inner)):
            return True
        before = (before if not least else set()) | (letters if str(most) == "MAXREPEAT" else set())
    return False


def matching(inner: Any) -> Callable[[str], bool]:
    """Whether what is repeated matches a letter; no letter, where it is more than one."""
    compiler = importlib.import_module(
        "re._compiler" if sys.version_info >= (3, 11) else "sre_compile"
    )
    if len(inner) != 1 or str(inner[0][0]) not in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return lambda letter: False
    compiled = compiler.compile(inner)
    return lambda letter: compiled.fullmatch(letter) is not None


@pytest.mark.slow
def test_no_repeat_stands_beside_one_of_the_same_letters() -> None:
    found = set(expressions())
    assert {one for one in found if has_overlap(parsed(one))} == ENDING
    for one in (r"\s*\s*", ".*.*", r"(\w+)\d*x", r"a+b?a*", r"x|\d+\w+", r"(?:\w+\d*)+"):
        assert has_overlap(parsed(one)), one
    for one in (r"\s*x\s*", r"\w+ \w*", r"[a-z]*\d+", "a*b+", r"\d{2}\d*", "ab*c*"):
        assert not has_overlap(parsed(one)), one


@pytest.mark.slow
def test_no_repeat_stands_in_a_repeat() -> None:
    found = set(expressions())
    assert len(found) > 45
    assert {one for one in found if has_nested_repeat(parsed(one))} == CLEAR
    assert has_nested_repeat(parsed(r"(?:\s+|#[^\n]*\n)*x"))
    assert not has_nested_repeat(parsed(r"a*(?:b|c+)d{2}"))


SPACES = ("\n", " \n", " ", "#\n", "\t", "---", "%\n", "a.", "a")


@pytest.mark.parametrize("text", SPACES)
def test_what_is_no_model_or_rule_is_soon_known(text: str) -> None:
    for end in (b"!", b":", b"{"):
        with pytest.raises(GraphpatchError):
            parse_text(text.encode() * 20_000 + end)
        with pytest.raises(GraphpatchError):
            rules_in(text.encode() * 20_000 + end, "rules.json")


def test_a_long_glob_of_brackets_is_refused() -> None:
    with pytest.raises(GraphpatchError, match="is longer than 10,000"):
        search(["[" * 100_000])
