"""Terminals: colour, as NO_COLOR and FORCE_COLOR say, and lines as wide as the terminal."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress

import pytest

from graphpatch.cli import say as printing
from graphpatch.cli.say import bar, coloured, say_error, say_lines

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
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environment: dict[str, str], in_colour: bool
) -> None:
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    say_error("m.pb is empty")
    red = f"{RED}graphpatch:{END} m.pb is empty\n"
    assert stream.getvalue() == (red if in_colour else "graphpatch: m.pb is empty\n")


def test_which_words_are_coloured() -> None:
    assert coloured("  note: x") == f"{YELLOW}  note:{END} x"
    assert coloured("out.pb: verified") == f"out.pb: {GREEN}verified{END}"
    assert coloured("out.pb: differs: 2 failures") == f"out.pb: {RED}differs{END}: 2 failures"
    assert coloured("Relu note: x") == "Relu note: x"


def test_a_name_of_a_model_brings_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    say_lines(["\x1b[31mRelu"])
    assert stream.getvalue() == "\\x1b[31mRelu\n"


WRAPPED = {
    "short": "short",
    "": "",
    "  path  a:0 -> bbbbbbb:0 -> c:0": "  path  a:0 ->\n        bbbbbbb:0 ->\n        c:0",
    "a-long/name-that/is-not-broken:0": "a-long/name-that/is-not-broken:0",
    "a  b   c  d   e  f   g   h   i j": "a  b   c  d   e  f\n   g   h   i j",
}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_wraps_words(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    say_lines(WRAPPED)
    lines = WRAPPED.values() if is_terminal else WRAPPED
    assert stream.getvalue() == "".join(f"{line}\n" for line in lines)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Make standard error a terminal: in the test itself, as pytest sets it before each."""
    terminal = Stream(True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@pytest.mark.parametrize(
    ("of_many", "said"), [(False, "reading: 40%\n"), (True, "reading: 2 of 5\n")]
)
def test_off_a_terminal_long_work_says_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, of_many: bool, said: str
) -> None:
    log, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(printing.time, "monotonic", lambda: now[0])
    with bar(of_many) as shown:
        shown("reading", 1, 5)
        assert log.getvalue() == ""
        now[0] = printing.SECONDS_BETWEEN_LINES
        shown("reading", 2, 5)
        shown("reading", 3, 5)
    assert log.getvalue() == said


def test_within_the_first_second_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with bar() as shown:
        shown("reading", 50, 100)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("of_many", "said"), [(False, "100%"), (True, "25/25")])
def test_after_it_each_stage_has_its_bar_until_the_end(
    monkeypatch: pytest.MonkeyPatch, of_many: bool, said: str
) -> None:
    terminal, before = on_terminal(monkeypatch), set(threading.enumerate())
    monkeypatch.setattr(printing, "SECONDS_BEFORE_BAR", 0)
    with suppress(KeyError), bar(of_many) as shown:
        shown("reading", 10, 10)
        shown("writing", 25, 25)
        [refreshing] = set(threading.enumerate()) - before
        waits = 0
        while not all(words in terminal.getvalue() for words in ("reading", "writing", said)):
            time.sleep(0.1)  # it is drawn ten times in a second
            waits += 1
            assert waits < 100, terminal.getvalue()
        raise KeyError
    refreshing.join(timeout=5)
    assert not refreshing.is_alive()
