"""The examples of a Markdown page: its console blocks and its Python."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

from tests import inside
from tests.forked import python, running

# The version that examples show, whichever runs them.
VERSION, SHOWN = re.compile(r"TensorFlow \d+\.\d+\.\d+"), "2.21.0"
# What TensorFlow logs as it starts, which depends on the machine.
LOGGED = re.compile(r"^(?:WARNING: All log messages before absl|[IWE]\d{4} \d\d:).*\n", re.M)
# What is printed where a command takes longer than ten seconds.
PROGRESS = re.compile(r"^[a-zA-Z ]+: \d+%\n", re.M)
ROOT = Path(__file__).parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"
WRITES = {"-o", "--fix", "--save"}


def pages() -> list[Path]:
    """README.md and the pages of the documentation."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language, in the order of the text."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.S)


def commands(page: str) -> list[str]:
    """The console blocks: `$ graphpatch ...` on the first line, then what it prints."""
    return [block.strip() for block in blocks(page, "console")]


def ran(block: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a console block in the checkout."""
    (ROOT / "build").mkdir(exist_ok=True)
    words = shlex.split(block.partition("\n")[0])
    assert words[:2] == ["$", "graphpatch"]
    for option, word in pairwise(words):
        if option in WRITES and word.startswith("build/"):  # what an earlier run wrote
            _take_away(ROOT / word)
    done = _done(words[2:])
    done.stdout = VERSION.sub(f"TensorFlow {SHOWN}", done.stdout)
    done.stdout = done.stdout.replace(" (replaced)", "")  # what an earlier run wrote
    done.stderr = PROGRESS.sub("", LOGGED.sub("", done.stderr))
    return done


def _done(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, in this process where it may."""
    if inside.can_run(words, ROOT):
        code, out, err = inside.run(words, b"", ROOT, {})
        return subprocess.CompletedProcess(words, code, out.decode(), err.decode())
    command = [*running(words), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def _take_away(output: Path) -> None:
    """Remove an output: a file, a folder, or rules with a folder of arrays beside them."""
    for path in (output, output.with_suffix("") if output.suffix == ".json" else output):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# Runs programs from standard input one after the other, each in a namespace of its own, and
# prints what failed. TensorFlow is imported once for all of them.
_TOGETHER = """
import contextlib, json, os, sys, traceback
failed = {}
for name, program in json.load(sys.stdin).items():
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(program, f"<{name}>", "exec"), {"__name__": "__main__"})
    except BaseException:
        failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""


def failed_together(pages: dict[str, str]) -> dict[str, str]:
    """Run the Python of these pages in one process; the traceback of each page that fails."""
    for page in pages.values():
        _write_outputs(page)
    programs = {name: "\n".join(blocks(page, "python")) for name, page in pages.items()}
    command = [*python("tensorflow"), "-c", _TOGETHER]
    run = subprocess.run(
        command, input=json.dumps(programs), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout)
    return found


def _write_outputs(page: str) -> None:
    """Run the commands of a page that write what its Python blocks load."""
    (ROOT / "build").mkdir(exist_ok=True)
    for block in commands(page):
        if " -o " in block:
            assert ran(block).returncode == 0
