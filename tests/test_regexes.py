"""The package's own regular expressions take no more than linear time, whatever they read.

Those of rules are RE2's. Python's go back and try again: where a repeat stands in a repeat, a text
of thirty line ends can take a day.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphpatch.errors import GraphpatchError
from graphpatch.fleet.search import meant
from graphpatch.formats.text import parse_text
from graphpatch.match.pattern import tokens
from graphpatch.rules import rules_in

PACKAGE = Path(__file__).parent.parent / "graphpatch"
CALLS = ("compile", "match", "search", "sub", "fullmatch", "split", "findall", "finditer")
# Repeats in repeats, where each turn of the outer one begins with what the inner one never matches.
CLEAR = {
    r"\A(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{<]",
    r"(?:---|[#%][^\n]*\n|\s)*(?:- )?[\w$]+:(?:\s|\Z)",
    r'Message type "(?:\w+\.)*(\w+)" has no field named "(.*)"\.?',
    tokens._TOKEN.pattern,
}


def expressions() -> Iterator[str]:
    """The regular expressions that modules spell, but for those made of others."""
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                of_re = isinstance(call.func.value, ast.Name) and call.func.value.id == "re"
                if of_re and call.func.attr in CALLS and isinstance(call.args[0], ast.Constant):
                    value = call.args[0].value
                    yield value.decode("latin1") if isinstance(value, bytes) else value


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


def is_nested(expression: str) -> bool:
    """The same of an expression, by Python's own parser."""
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return has_nested_repeat(parser.parse(expression))


def test_no_repeat_stands_in_a_repeat() -> None:
    found = set(expressions())
    assert len(found) > 40
    assert {one for one in found if is_nested(one)} == CLEAR
    assert is_nested(r"(?:\s+|#[^\n]*\n)*x")
    assert not is_nested(r"a*(?:b|c+)d{2}")


SPACES = ("\n", " \n", " ", "#\n", "\t", "---", "%\n", "a.", "a")


@pytest.mark.parametrize("text", SPACES)
def test_what_is_no_model_or_rule_is_soon_known(text: str) -> None:
    for end in (b"!", b":", b"{"):
        with pytest.raises(GraphpatchError):
            parse_text(text.encode() * 20_000 + end)
        with pytest.raises(GraphpatchError):
            rules_in(text.encode() * 20_000 + end, "rules.json")


def test_a_long_glob_of_brackets_is_refused() -> None:
    with pytest.raises(GraphpatchError, match="100,000 characters"):
        meant(["[" * 100_000], ["m.pb"])
