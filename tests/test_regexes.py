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
from graphpatch.match import spec, syntax
from graphpatch.rules import rules_in

PACKAGE = Path(__file__).parent.parent / "graphpatch"
CALLS = {
    f"re.{name}" for name in "compile match search sub fullmatch split findall finditer".split()
}
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
TOKENS = syntax._TOKEN.pattern
# Repeats in repeats, where each turn of the outer one begins with what the inner one never matches.
CLEAR = {
    r"\A(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{<]",
    r'Message type "(?:\w+\.)*(\w+)" has no field named "(.*)"\.?',
    TOKENS,
}
# Repeats side by side that never go back, as nothing more must match behind them; and one that
# reads a docstring of the package alone.
ENDING = {spec.KEY.pattern, TOKENS, formula_syntax._TOKEN.pattern}
ENDING.add(r"Node: '[^']*'\n(?:\d+ root error.*\n)?\s*(.+)")


def expressions() -> Iterator[str]:
    """The regular expressions of the package; of those made later, how they are spelled."""
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in CALLS:
                yield spelled(call.args[0], path)


def spelled(written: ast.expr, path: Path) -> str:
    """An expression as its module has it: with its constants, in f-strings and sums too."""
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    names = vars(importlib.import_module(name.removesuffix(".__init__")))
    try:
        value = eval(compile(ast.Expression(written), str(path), "eval"), names)
    except NameError:  # of a function's own
        return ast.unparse(written)
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def python_parser(part: str) -> Any:
    """Python's own parser of expressions, or its compiler."""
    name = f"re._{part}r" if sys.version_info >= (3, 11) else f"sre_{part}"
    return importlib.import_module(name)


def parsed(expression: str) -> Any:
    return python_parser("parse").parse(expression)


def has_nested_repeat(parsed: Any, inside: bool = False) -> bool:
    """Whether a repeat without end stands in another."""
    for op, item in parsed:
        endless = str(op) in REPEATS and str(item[1]) == "MAXREPEAT"
        parts = item[1] if str(op) == "BRANCH" else []
        parts = [item[-1]] if str(op) in ("SUBPATTERN", *REPEATS) else parts
        if (endless and inside) or any(has_nested_repeat(p, inside or endless) for p in parts):
            return True
    return False


def in_line(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """The items of an expression one behind the other, those of its groups among them."""
    for op, item in parsed:
        yield from in_line(item[-1]) if str(op) == "SUBPATTERN" else [(op, item)]


def has_overlap(parsed: Any) -> bool:
    """Whether two repeats without end that match the same letter stand side by side.

    Optional items may stand between them. Branches are looked at each by itself.
    """
    before = set[str]()
    for op, item in in_line(parsed):
        if str(op) == "BRANCH" and any(map(has_overlap, item[1])):
            return True
        if str(op) not in REPEATS:
            before = set()
            continue
        least, most, inner = item
        letters = set(filter(matching(inner), map(chr, range(256))))
        if str(most) == "MAXREPEAT" and (letters & before or has_overlap(inner)):
            return True
        before = (before if not least else set()) | (letters if str(most) == "MAXREPEAT" else set())
    return False


def matching(inner: Any) -> Callable[[str], object]:
    """What tells whether what is repeated matches a letter; of more than one letter none does."""
    if len(inner) != 1 or str(inner[0][0]) not in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return lambda letter: None
    return python_parser("compile").compile(inner).fullmatch  # type: ignore[no-any-return]


@pytest.mark.slow
def test_no_repeat_stands_in_a_repeat_or_beside_one_of_the_same_letters() -> None:
    found = set(expressions())
    assert len(found) > 45
    assert {one for one in found if has_nested_repeat(parsed(one))} == CLEAR
    assert {one for one in found if has_overlap(parsed(one))} == ENDING
    assert has_nested_repeat(parsed(r"(?:\s+|#[^\n]*\n)*x"))
    assert not has_nested_repeat(parsed(r"a*(?:b|c+)d{2}"))
    for one in (r"\s*\s*", ".*.*", r"(\w+)\d*x", r"a+b?a*", r"x|\d+\w+", r"(?:\w+\d*)+"):
        assert has_overlap(parsed(one)), one
    for one in (r"\s*x\s*", r"\w+ \w*", r"[a-z]*\d+", "a*b+", r"\d{2}\d*", "ab*c*"):
        assert not has_overlap(parsed(one)), one


@pytest.mark.parametrize("text", ["\n", " \n", " ", "#\n", "\t", "---", "%\n", "a.", "a"])
def test_what_is_no_model_or_rule_is_soon_known(text: str) -> None:
    for end in (b"!", b":", b"{"):
        with pytest.raises(GraphpatchError):
            parse_text(text.encode() * 20_000 + end)
        with pytest.raises(GraphpatchError):
            rules_in(text.encode() * 20_000 + end, "rules.json")


def test_a_long_glob_of_brackets_is_refused() -> None:
    with pytest.raises(GraphpatchError, match="is longer than 10,000"):
        search(["[" * 100_000])
