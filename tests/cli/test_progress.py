from __future__ import annotations

import io
import sys

import pytest

from graphpatch.cli import progress
from graphpatch.cli.progress import Bar, LogProgress, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("of_many", "said"), [(False, "reading: 40%\n"), (True, "reading: 2 of 5\n")]
)
def test_off_a_terminal_long_work_says_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, of_many: bool, said: str
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with bar(of_many) as shown:
        assert isinstance(shown, LogProgress)
        shown("reading", 1, 5)
        assert log.getvalue() == ""
        shown.said -= progress.SECONDS_BETWEEN_LINES
        shown("reading", 2, 5)
        shown("reading", 3, 5)
    assert log.getvalue() == said


def test_within_the_first_second_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar() as shown:
        for done in range(100):
            shown("reading", done, 100)
        shown("reading", 100, 100)
    assert terminal.getvalue() == ""


def test_after_it_each_stage_has_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0)
    monkeypatch.setenv("TERM", "xterm")
    with bar() as shown:
        shown("reading", 100, 100)
        shown("writing", 25, 25)
        assert isinstance(shown, Bar)
        assert shown.progress is not None
        found = [(task.description, task.completed, task.total) for task in shown.progress.tasks]
    assert found == [("reading", 100, 100), ("writing", 25, 25)]
    assert "reading" in terminal.getvalue()
    assert shown.progress.finished


def test_of_many_it_says_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0)
    monkeypatch.setenv("TERM", "xterm")
    with bar(of_many=True) as shown:
        assert isinstance(shown, Bar)
        shown.started, shown.drawn = shown.started - 10, 0
        shown("models", 25, 200)
        assert shown.progress is not None
        [task] = shown.progress.tasks
        assert task.fields["rate"] == "2.5/s"
        shown.progress.refresh()
    assert "25/200" in terminal.getvalue()
    assert "2.5/s" in terminal.getvalue()


def test_it_is_redrawn_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0)
    monkeypatch.setattr(progress, "INTERVAL", 1000)
    with bar() as shown:
        assert isinstance(shown, Bar)
        shown("reading", 1, 100)
        assert shown.progress is None
        shown("reading", 100, 100)
        assert shown.progress is not None


def test_it_is_taken_away_when_something_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", 0)
    seen: list[Bar] = []

    def fail() -> None:
        with bar() as shown:
            assert isinstance(shown, Bar)
            seen.append(shown)
            shown("reading", 1, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen[0].progress is not None
    assert not seen[0].progress.live.is_started
