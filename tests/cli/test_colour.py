"""Terminals: colour, as NO_COLOR and FORCE_COLOR say, and lines as wide as the terminal."""

from __future__ import annotations

import io
import sys

import pytest

from graphpatch.cli.say import coloured, say, say_error, say_lines

RED, YELLOW, GREEN, END = "\x1b[31m\x1b[1m", "\x1b[33m\x1b[1m", "\x1b[32m\x1b[1m", "\x1b[0m"


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


# A terminal or not, the environment, and whether there is colour.
CASES: list[tuple[bool, dict[str, str], bool]] = [
    (True, {}, True),
    (False, {}, False),
    (True, {"NO_COLOR": "1"}, False),
    (False, {"FORCE_COLOR": "1"}, True),
    (True, {"TERM": "dumb"}, False),
    (True, {"NO_COLOR": ""}, True),
]


@pytest.mark.parametrize(("is_terminal", "environment", "in_colour"), CASES)
def test_when_there_is_colour(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    environment: dict[str, str],
    in_colour: bool,
) -> None:
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    say_error("m.pb is empty")
    red = f"{RED}graphpatch:{END} m.pb is empty\n"
    assert stream.getvalue() == (red if in_colour else "graphpatch: m.pb is empty\n")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  note: x", f"{YELLOW}  note:{END} x"),
        ("out.pb: verified", f"out.pb: {GREEN}verified{END}"),
        ("out.pb: differs: 2 failures", f"out.pb: {RED}differs{END}: 2 failures"),
        ("Relu note: x", "Relu note: x"),
    ],
)
def test_which_words_are_coloured(line: str, shown: str) -> None:
    assert coloured(line) == shown


def test_a_name_of_a_model_brings_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    say("\x1b[31mRelu")
    say_lines(["\x1b[31mRelu"])
    assert stream.getvalue() == "\\x1b[31mRelu\n" * 2


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short", "short"),
        ("", ""),
        ("  path  a:0 -> bbbbbbb:0 -> c:0", "  path  a:0 ->\n        bbbbbbb:0 ->\n        c:0"),
        ("a-long/name-that/is-not-broken:0", "a-long/name-that/is-not-broken:0"),
        ("a  b   c  d   e  f   g   h   i j", "a  b   c  d   e  f\n   g   h   i j"),
    ],
)
def test_a_terminal_wraps_between_words(
    line: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    for is_terminal in (True, False):
        stream = Stream(is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        say(line)
        assert stream.getvalue() == (shown if is_terminal else line) + "\n"
