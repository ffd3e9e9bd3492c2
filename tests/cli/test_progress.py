from __future__ import annotations

import io
import sys

import pytest

from graphpatch.cli import progress
from graphpatch.cli.progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal: in the test itself, as pytest sets it before each."""
    terminal = Terminal()
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
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with bar(of_many) as shown:
        shown("reading", 1, 5)
        assert log.getvalue() == ""
        now[0] = progress.SECONDS_BETWEEN_LINES
        shown("reading", 2, 5)
        shown("reading", 3, 5)
    assert log.getvalue() == said


def test_within_the_first_second_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with bar() as shown:
        for done in range(101):
            shown("reading", done, 100)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("of_many", "said"), [(False, "100%"), (True, "25/25")])
def test_after_it_each_stage_has_its_bar_until_the_end(
    monkeypatch: pytest.MonkeyPatch, of_many: bool, said: str, fails: bool
) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0)
    started, shown_bars = progress._started, []
    monkeypatch.setattr(
        progress, "_started", lambda of_many: shown_bars.append(started(of_many)) or shown_bars[-1]
    )

    def work() -> None:
        with bar(of_many) as shown:
            shown("reading", 10, 10)
            shown("writing", 25, 25)
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            work()
    else:
        work()
    [shown_bar] = shown_bars
    assert [(task.description, task.completed) for task in shown_bar.tasks] == [
        ("reading", 10),
        ("writing", 25),
    ]
    assert said in terminal.getvalue()
    assert not shown_bar.live.is_started
