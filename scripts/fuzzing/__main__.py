"""The command line of scripts/fuzz."""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fuzzing.case import Find
from fuzzing.kinds import KINDS
from fuzzing.worker import Answer, Number, answers, saved

PARTS = ("semantic", "altered", "crash")
# Of twenty-two inputs in a row: their kinds.
TURN = (
    "models",
    "rules",
    "models",
    "formulas",
    "patterns",
    "models",
    "globs",
    "rules",
    "models",
    "patterns",
    "models",
    "words",
    "arrays",
    "models",
    "rules",
    "words",
    "models",
    "arrays",
    "formulas",
    "feeds",
    "numbers",
    "places",
)


def main() -> int:
    """Try inputs until the time is over; 1 where there is a find."""
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        part = importlib.import_module(f"fuzzing.{sys.argv[1]}")
        code: int = part.main(sys.argv[2:])
        return code
    parser = argparse.ArgumentParser(prog="scripts/fuzz")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--first", type=int, default=0, help="Number of the first input.")
    parser.add_argument("--folder", type=Path, default=Path("build/finds"))
    parser.add_argument("--only", help="One input again: KIND:SEED:NUMBER.")
    given = parser.parse_args()
    unknown = set(given.kinds) - KINDS.keys()
    if unknown:
        parser.error(f"no kind is called {', '.join(sorted(unknown))}; legal: {', '.join(KINDS)}")
    if given.only:
        kind, seed, number = given.only.split(":")
        numbers: Iterator[Number] = iter([Number(kind, int(seed), int(number))])
    else:
        minutes = given.minutes if given.minutes or given.inputs else 1
        numbers = _numbers(given.kinds, given.seed, minutes, given.inputs, given.first)
        print(f"seed {given.seed}", flush=True)
    return _report(answers(numbers), given.folder)


def _numbers(
    kinds: list[str], seed: int, minutes: float | None, inputs: int | None, first: int
) -> Iterator[Number]:
    until = time.monotonic() + minutes * 60 if minutes else float("inf")
    turn = [kind for kind in TURN if not kinds or kind in kinds]
    for number in itertools.count(first):
        if time.monotonic() > until or (inputs and number - first >= inputs):
            return
        yield Number(turn[number % len(turn)], seed, number)


def _report(found: Iterator[Answer], folder: Path) -> int:
    started, tried, commands = time.monotonic(), Counter[str](), 0
    finds: dict[tuple[str, str], list[Number]] = {}
    for answer in found:
        tried[answer.number.kind] += 1
        commands += answer.commands
        for find in answer.finds:
            _note(answer, find, finds, folder)
        if sum(tried.values()) % 2_000 == 0:
            _line(tried, commands, finds, started)
    _line(tried, commands, finds, started)
    print(", ".join(f"{kind} {count:,}" for kind, count in sorted(tried.items())))
    for key, numbers in finds.items():
        print(f"  {' '.join(key)}: {len(numbers)}, as {numbers[0]}")
    return 1 if finds else 0


def _note(
    answer: Answer, find: Find, finds: dict[tuple[str, str], list[Number]], folder: Path
) -> None:
    known = finds.setdefault(find.key, [])
    known.append(answer.number)
    if len(known) == 1:
        place = saved(answer, find, folder)
        print(f"{find.fault}: {find.where} ({answer.number}) -> {place}", flush=True)


def _line(
    tried: Counter[str], commands: int, finds: dict[tuple[str, str], list[Number]], started: float
) -> None:
    seconds = time.monotonic() - started
    count = sum(tried.values())
    print(
        f"{count:,} inputs, {commands:,} commands, {sum(map(len, finds.values()))} finds of"
        f" {len(finds)} kinds, {seconds:,.0f} s ({60 * count / max(seconds, 1):,.0f} a minute)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
