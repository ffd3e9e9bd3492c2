"""What graphpatch says to 150 mistakes: a table, to be read by somebody who sees nothing else.

provoke.py                     what it says now
provoke.py --before CHECKOUT   beside what the graphpatch of another checkout says
provoke.py --json              for programs: the exit code and the message of each
provoke.py --record            write tests/data/messages.md: each beside what 0.1.0 said, and what a
                               reader said of it; with --before, what 0.1.0 said is taken from there
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
if __name__ == "__main__":
    sys.path.insert(1, os.environ.get("PROVOKED", str(Path(__file__).parent.parent)))

from provoking.case import Case
from provoking.files import write
from provoking.of_commands import COMMANDS
from provoking.of_matches import MATCHES
from provoking.of_models import MODELS
from provoking.of_rules import FILES, GRADIENTS, KEYS
from provoking.verdicts import CLEAR, TWICE

ROOT = Path(__file__).resolve().parent.parent
BEFORE, RECORD = ROOT / "scripts/provoking/version_0_1.json", ROOT / "tests/data/messages.md"
INTRODUCTION = (
    "Written by `python scripts/provoke.py --record`. One person read each message and nothing\n"
    "else; `scripts/provoking/verdicts.py` has the verdicts. Where 0.1.0 is not shown, it said\n"
    "the same, or was not asked."
)

CHAPTERS: dict[str, tuple[Case, ...]] = {
    "Models": MODELS,
    "Rules files": FILES,
    "Keys of rules": KEYS,
    "Gradients": GRADIENTS,
    "Matches and patches": MATCHES,
    "Commands and outputs": COMMANDS,
}


def provoked() -> Iterator[dict[str, Any]]:
    """Do all of it, each mistake in a folder of its own, which is the current one meanwhile."""
    for chapter, cases in CHAPTERS.items():
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                code, said = _done(case, folder)
            command = " ".join(("graphpatch", *case.command))
            said = said.replace(folder, "FOLDER")
            yield {
                "chapter": chapter,
                "what": case.what,
                "command": command,
                "files": {name: _text(data) for name, data in case.files.items()},
                "code": code,
                "says": said,
            }


def _done(case: Case, folder: str) -> tuple[int, str]:
    os.chdir(folder)
    write(Path())
    for name, data in case.files.items():
        Path(name).write_bytes(data.encode() if isinstance(data, str) else data)
    if "patched.pb" in case.command:
        run(["apply", "rules.json", "model.pb", "-o", "patched.pb"])
    if "guided.pb" in case.command:
        run(["apply", "@guided_backprop", "model.pb", "-o", "guided.pb"])
    return run(list(case.command), case.stdin)


def run(command: list[str], stdin: bytes = b"") -> tuple[int, str]:
    """Return the exit code of a command, and all that it prints; it runs in this process."""
    from graphpatch import cli

    said, kept = io.StringIO(), (sys.argv, sys.stdin)
    sys.argv, sys.stdin = ["graphpatch", *command], io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli.main()
    except SystemExit as done:
        return int(done.code or 0), said.getvalue().rstrip("\n")
    finally:
        sys.argv, sys.stdin = kept
    raise AssertionError("main() always exits")


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else repr(data)


def _of(checkout: str) -> list[dict[str, Any]]:
    """Return what the graphpatch of another checkout says."""
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(
        command, env={**os.environ, "PROVOKED": checkout}, stdout=subprocess.PIPE, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def table(found: list[dict[str, Any]], before: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a chapter each, in Markdown; what changed has both messages."""
    chapter = ""
    for place, one in enumerate(found):
        if one["chapter"] != chapter:
            chapter = one["chapter"]
            yield f"\n## {chapter}"
        yield f"\n**{one['what']}** (exit {one['code']})\n\n```text\n$ {one['command']}"
        yield from (f"# {name}: {text}".rstrip() for name, text in one["files"].items())
        old = before[place]["says"] if before else one["says"]
        yield from [f"{old}", "```", "", "now:", "```text"] if old != one["says"] else []
        yield f"{one['says']}\n```"


def key(one: dict[str, Any]) -> str:
    """Return what a provoked mistake is called; two chapters may have one of the same name."""
    return f"{one['chapter']}: {one['what']}"


def record(found: list[dict[str, Any]], before: dict[str, str]) -> str:
    """Return the table: what was done, what 0.1.0 said, what is said now, and a verdict."""
    lines = [f"# What graphpatch says to {len(found)} mistakes", "", INTRODUCTION]
    for one in found:
        old = before.get(key(one), "")
        lines += [f"\n## {key(one)}\n", f"```text\n$ {one['command']}"]
        lines += [f"# {name}: {text}".rstrip() for name, text in one["files"].items()]
        lines += ["```", ""]
        lines += [f"0.1.0:\n\n```text\n{old}\n```\n"] if old not in ("", one["says"]) else []
        twice = TWICE.get(one["what"])
        verdict = f"read twice: {twice}; written anew" if twice else CLEAR
        lines += [f"Now:\n\n```text\n{one['says']}\n```\n", f"Verdict: {verdict}."]
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n")) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    found = list(provoked())
    if options.record:
        if options.before:
            old = {key(one): one["says"] for one in _of(options.before)}
            BEFORE.write_text(json.dumps(old, indent=1) + "\n")
        RECORD.write_text(record(found, json.loads(BEFORE.read_text())))
    elif options.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"# What graphpatch says to {len(found)} mistakes")
        print(*table(found, _of(options.before) if options.before else []), sep="\n")


if __name__ == "__main__":
    main()
