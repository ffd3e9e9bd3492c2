"""What a user can do wrong: one class each, one clear message each, and the exit code."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from graphpatch.shown import LONGEST_LINE, one_line, shown

CHANGED = "the file of the model was changed while it was read; nothing was written"
COMPARED = 1_000  # characters of a word; to compare longer ones takes too long


class GraphpatchError(Exception):
    """The user's input is at fault. The message says what, where, and what would be legal.

    Names of the model in it are safe to print: control characters are escaped, and it has at most
    some thousand characters.
    """

    exit_code = 1

    def __str__(self) -> str:
        return shown(super().__str__(), LONGEST_LINE)


class ModelError(GraphpatchError):
    """A model file cannot be read, is not a model, or is a broken one."""


class ForeignError(ModelError):
    """A text file is sound, as far as it goes, and holds something else than a model."""


class RulesError(GraphpatchError):
    """A rules file is not valid; the message walks to the key."""


class FormulaError(RulesError):
    """A gradient formula is not valid; the message points at the column."""


class PatternError(RulesError):
    """A pattern is not valid; the message points at the column, or walks to the key."""


class MatchError(GraphpatchError):
    """A rule matched nothing, or not as often as it expects."""


class PatchError(GraphpatchError):
    """A patch cannot be done on an op that a rule matched."""


class CutError(GraphpatchError):
    """A gradient cannot be taken in parts there: no such tensor, no cut, no gradient."""


class UnsafeError(GraphpatchError):
    """A model would touch files, the network or Python if it ran, and nobody allowed it."""


class OutputError(GraphpatchError):
    """The result cannot be written where it was asked for."""


class FleetError(GraphpatchError):
    """There are no models to go over, or no workers that can do it."""


def nearest(word: str, legal: Iterable[str], most: int = 3) -> list[str]:
    """Return the legal words closest to `word`, best first; those of other case before all."""
    legal = [candidate for candidate in dict.fromkeys(legal) if len(candidate) <= COMPARED]
    if len(word) > COMPARED:
        return []
    same = [candidate for candidate in legal if candidate.lower() == word.lower()]
    import difflib  # here: a command that finds no fault does without

    close = difflib.get_close_matches(word, legal, n=most, cutoff=0.6)
    return list(dict.fromkeys(same + close))[:most]


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """Return a clause like `; nearest: Relu, Relu6`, or nothing where nothing is near."""
    near = nearest(word, legal, 3)
    return f"; nearest: {', '.join(map(one_line, near))}" if near else ""


# Arguments of the Python API: a TypeError names one, what it takes, and what was found.

PATH_TO_WRITE = "the path of a file or folder to write"


def wrong_argument(argument: str, taken: str, value: object) -> TypeError:
    """Return the error for an argument of another type than it takes."""
    return TypeError(f"{argument}: expected {taken}; found {type(value).__name__}")


def check_path(argument: str, value: object, taken: str = PATH_TO_WRITE) -> None:
    """Raise TypeError where an argument is not a path."""
    if not isinstance(value, str | os.PathLike):
        raise wrong_argument(argument, taken, value)


def check_progress(value: object) -> None:
    """Raise TypeError where what is to be told of progress cannot be called."""
    if value is not None and not callable(value):
        taken = "a function of three (what is done, how much, of how much); a result has save()"
        raise wrong_argument("progress", taken, value)


def tensor_names(argument: str, value: Any) -> list[str]:
    """Return the names of a tensor or variable, or of a list. Raises TypeError for others."""
    if not isinstance(value, list | tuple):
        return [tensor_name(argument, value, ", or a list of these")]
    return [tensor_name(f"{argument}[{place}]", item) for place, item in enumerate(value)]


def tensor_name(argument: str, value: Any, more: str = "") -> str:
    """Return the name of a tensor or variable, or of its name. Raises TypeError for others."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        raise wrong_argument(argument, f"a tensor or its name{more}", value)
    return name
