"""Change lines of a module, one at a time, and tell which changes no test notices.

Usage: scripts/mutants [MODULE...] [--drawn N] [--each N] [--seed S] [--within SECONDS] [--allow N].
cosmic-ray makes the changes, in a copy of the checkout; each runs the tests that TESTS names for
the module, or those of its name or room. `--drawn` draws modules of ROOMS by the seed. The exit
status is 1 where a change survives that KNOWN does not explain, or where more than N do. After
SECONDS no more is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "mutants"
TIMEOUT = 300  # seconds for the tests while nothing is changed
# Seconds for the tests of one change, and how many times as long as they take without it: a loop
# without an end counts as noticed.
LEAST, TIMES = 5, 5

TESTS = {
    "graphpatch/names.py": "tests/test_names.py",
    "graphpatch/shown.py": "tests/test_shown.py",
    "graphpatch/graph/wire.py": "tests/graph/test_wire.py",
    "graphpatch/control_flow/contexts.py": "tests/control_flow",
    "graphpatch/differentiation/flow.py": "tests/differentiation",
}
"""For each module the tests that are about it; they need no TensorFlow and take seconds."""

ROOMS = ("differentiation", "gradients", "graph", "match", "patches")
"""The rooms of which `--drawn` takes modules."""

KNOWN = {
    "if len(varint(length)) == value ^ at:": "the longer way of reframed gives the same bytes",
    "SMALL = 2 << 24  # bytes up to which a file is read: it may be cut short later, and nothing "
    "is lost": "how large a file is read is a matter of speed",
    'return known.gradient == "registered" and gives(gradient_type(node)) is not "none"': (
        "there is one object for this text"
    ),
}
"""Changes that may survive: the line that was changed, and why it makes no difference."""

DRAWN = "-p _hypothesis_pytestplugin --hypothesis-seed=0"  # the same draws each time
NEVER = float("inf")
SMALL = 100  # bytes of a module that is a docstring alone

# `str | None` in an annotation, which Python does not evaluate.
ANNOTATIONS = "ReplaceBinaryOperator_BitOr_"


@dataclass(frozen=True)
class Mutant:
    """A change of a module, and what the tests made of it."""

    module: str
    outcome: str
    diff: str

    @property
    def lines(self) -> list[str]:
        """The line before and after."""
        body = self.diff.splitlines()[2:]
        return [line for line in body if line[:1] in "+-" and line[:3] not in ("---", "+++")]

    @property
    def reason(self) -> str:
        """Why it may survive, where that is known."""
        after = [line[1:].strip() for line in self.lines if line[0] == "+"]
        return next((why for line, why in KNOWN.items() if line in after), "")


def copied() -> Path:
    """Return the files of the checkout, where they may be changed."""
    tree = BUILD / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree


def drawn(count: int, seed: str) -> list[str]:
    """Return some modules of the rooms, by the seed."""
    found = (path for room in ROOMS for path in sorted((ROOT / "graphpatch" / room).rglob("*.py")))
    modules = [str(path.relative_to(ROOT)) for path in found if path.stat().st_size > SMALL]
    return random.Random(seed).sample(modules, count)


def tests_of(module: str) -> str:
    """The tests that are about a module: of its name, or all those of its room."""
    room = Path(module.replace("graphpatch/", "tests/", 1)).parent
    own = room / f"test_{Path(module).stem}.py"
    room = room if (ROOT / room).is_dir() else room.parent
    return TESTS.get(module) or str(own if (ROOT / own).exists() else room)


def mutants(
    module: str, tree: Path, python: str, each: int, seed: str, until: float
) -> Iterator[Mutant]:
    """Yield a sample of the changes of a module, tested, as far as there is time."""
    name = module.replace("/", "_")
    config, session = BUILD / f"{name}.toml", BUILD / f"{name}.sqlite"
    session.unlink(missing_ok=True)
    command = f"{python} -m pytest -x -q -p no:cacheprovider {DRAWN} {tests_of(module)}"
    settings = (
        f'[cosmic-ray]\nmodule-path = "{module}"\ntimeout = {{}}\nexcluded-modules = []\n'
        f'test-command = "{command}"\n\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    config.write_text(settings.format(float(TIMEOUT)))
    started = time.monotonic()
    try:
        _cosmic_ray(tree, until, "baseline", config)  # the tests pass while nothing is changed
        config.write_text(settings.format(LEAST + TIMES * (time.monotonic() - started)))
        _cosmic_ray(tree, until, "init", config, session)
        _leave(session, each, random.Random(f"{seed}{module}"))
        _cosmic_ray(tree, until, "exec", config, session)
    except subprocess.TimeoutExpired:
        if not session.exists():
            return
    for result in _results(session):
        if result.test_outcome is not None:
            yield Mutant(module, str(result.test_outcome.value), str(result.diff))


def _cosmic_ray(tree: Path, until: float, *words: object) -> None:
    """Run it, and end it with the tests that it runs where time is up."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take as long to load as the tests
    }
    command = [str(Path(sys.executable).with_name("cosmic-ray")), *map(str, words)]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    left = None if until == NEVER else max(0.0, until - time.monotonic())
    try:
        if process.wait(left):
            raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _leave(session: Path, each: int, chance: random.Random) -> None:
    """Skip all changes but a few."""
    from cosmic_ray import work_db, work_item  # type: ignore[import-not-found]

    skipped = work_item.WorkResult(worker_outcome=work_item.WorkerOutcome.SKIPPED)
    with work_db.use_db(str(session), work_db.WorkDB.Mode.open) as database:
        items = sorted(database.work_items, key=_order)  # a job's id is another on each run
        wanted = [one.job_id for one in items if ANNOTATIONS not in one.mutations[0].operator_name]
        kept = set(chance.sample(wanted, min(each, len(wanted))))
        database.set_multiple_results([o.job_id for o in items if o.job_id not in kept], skipped)


def _order(item: Any) -> tuple[Any, ...]:
    change = item.mutations[0]
    return change.start_pos, change.operator_name, change.occurrence, str(change.operator_args)


def _results(session: Path) -> list[Any]:
    from cosmic_ray import work_db

    with work_db.use_db(str(session), work_db.WorkDB.Mode.open) as database:
        return [result for _, result in database.completed_work_items]


def main() -> int:
    """Print the survivors, and how many changes were noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--each", type=int, default=6)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--within", type=float, default=NEVER)
    parser.add_argument("--allow", type=int, default=0)
    parser.add_argument("--python", required=True)
    asked = parser.parse_args()
    tree, count, survivors = copied(), 0, []
    until, python = time.monotonic() + asked.within, str(ROOT / asked.python)
    for module in drawn(asked.drawn, asked.seed) or asked.modules:
        for one in mutants(module, tree, python, asked.each, asked.seed, until):
            count += 1
            if one.outcome == "survived":
                survivors.append(one)
                print("\n".join([f"{module}: {one.reason or 'no test notices'}", *one.lines]))
    print(f"{count} changes, {count - len(survivors)} noticed, {len(survivors)} survive")
    if time.monotonic() >= until:
        print(f"no more were tried after {asked.within:g} seconds")
    return 1 if sum(not one.reason for one in survivors) > asked.allow else 0


if __name__ == "__main__":
    sys.exit(main())
