"""Where nothing can be written: one clear message, exit 1, and the old files are whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from graphpatch.formats import load
from tests import forked, graphs
from tests.conftest import Run
from tests.refusals import MODEL, SAMPLE, everything, refused

# A model, and names of itself, of what is around it, or of the rules.
ITSELF = [
    ("model.pb", "model.pb ./model.pb saved/../model.pb link.pb hard.pb rules.json"),
    ("saved", "saved saved/ linked saved/saved_model.pb saved/out ."),
]


@pytest.mark.parametrize(
    ("model", "out"), [(model, out) for model, outs in ITSELF for out in outs.split()]
)
def test_what_is_read_is_not_written_over(run_cli: Run, folder: Path, model: str, out: str) -> None:
    (folder / "link.pb").symlink_to("model.pb")
    (folder / "linked").symlink_to("saved")
    os.link(folder / "model.pb", folder / "hard.pb")
    before = everything(folder)
    done = run_cli("apply", "rules.json", model, "-o", out, cwd=folder)
    refused(done, *(["never written over"] if model == "model.pb" else []))
    assert everything(folder) == before
    assert (folder / "link.pb").is_symlink()


CANNOT_WRITE = {
    "model.pb -o gone/out.pb": "cannot write gone/out.pb: No such file",
    "model.pb -o model.pb/out": "cannot write model.pb/out: Not a dir",
    "model.pb -o model.pb/out/": "cannot write model.pb/out/: ",
    "model.pb -o saved --force": "cannot write saved: Is a directory",
    "saved -o model.pb --force": "a SavedModel is a folder",
    "saved -o -": "graphpatch: a SavedModel is a folder, and does not go through a pipe\n",
    "model.pb -o model.pb/": "model.pb/ is a file",
    "model.pb saved -o large.pb": "large.pb is a file, and models",
    "model.pb -o /dev/full": "cannot write /dev/full: No space left on",
    "large.pb -o /dev/full": "cannot write /dev/full: No space",
}


@pytest.mark.parametrize("typed", CANNOT_WRITE)
def test_where_nothing_can_be_put(run_cli: Run, folder: Path, typed: str) -> None:
    before = everything(folder)
    done = run_cli("apply", "rules.json", *typed.split(), cwd=folder)
    refused(done, CANNOT_WRITE[typed])
    assert everything(folder) == before
    assert not (folder / "new").exists()
    assert Path("/dev/full").is_char_device()


# What a disk, or rights, refuse: in a child that limits itself, then runs the command.

NO_BYTECODE = "import sys; sys.dont_write_bytecode = True; "
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
# All imports come first: the interpreter may lie where nobody else can read it.
NOBODY = (
    "import difflib, importlib, os, pkgutil, traceback, graphpatch;"
    "every = pkgutil.walk_packages(graphpatch.__path__, 'graphpatch.');"
    "[importlib.import_module(one.name) for one in every if 'keras' not in one.name[-8:]];"
    "from graphpatch.opdefs import table; table();"
    "os.setgroups([]); os.setgid(65534); os.setuid(65534); "
)
MAIN = "from graphpatch.cli import main; main()"


def with_limit(first: str) -> dict[str, list[str]]:
    return {"command": [*forked.python(forked.COMMAND), "-c", NO_BYTECODE + first + MAIN]}


@pytest.mark.parametrize(
    "typed", ["large.pb -o old.pb --force", "large.pb -o x.pbtxt", "saved", "saved -o old --force"]
)
def test_a_full_disk(run_cli: Run, folder: Path, typed: str) -> None:
    (folder / "old.pb").write_bytes(b"the old file")
    graphs.saved_model_folder(folder / "old", graphs.metagraph(SAMPLE, "old"))
    before = everything(folder)
    done = run_cli("apply", "rules.json", *typed.split(), cwd=folder, **with_limit(LIMITED))
    refused(done, "cannot write ", ": File too large")
    assert everything(folder) == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def as_somebody(folder: Path) -> dict[str, list[str]]:
    """How to run a command as one whom rights bind; the superuser becomes nobody."""
    if os.geteuid() != 0:
        return with_limit("")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return with_limit(NOBODY)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to(run_cli: Run, folder: Path) -> None:
    somebody = as_somebody(folder)
    closed = folder / "closed"
    closed.mkdir()
    (folder / "blind").mkdir()
    (closed / "old.pb").write_bytes(b"the old file")
    before = everything(folder)
    closed.chmod(0o555)
    (folder / "blind").chmod(0o000)
    folder.chmod(0o555)
    for typed, path in (
        ("model.pb", "model.patched.pb"),
        ("saved", "saved.patched"),
        ("model.pb -o closed/new.pb", "closed/new.pb"),
        ("model.pb -o closed/old.pb --force", "closed/old.pb"),
        ("model.pb -o closed", "closed/graphpatch-manifest.jsonl"),
        ("model.pb -o new/", "new/"),
        ("model.pb -o blind/x.pb", "blind/x.pb"),
        ("saved -o closed/new", "closed/new"),
    ):
        done = run_cli("apply", "rules.json", *typed.split(), cwd=folder, **somebody)
        refused(done, f"cannot write {path}: Permission denied")
    for path in (folder, closed, folder / "blind"):
        path.chmod(0o755)
    assert everything(folder) == before


def test_a_read_only_saved_model_is_patched(run_cli: Run, folder: Path) -> None:
    somebody = as_somebody(folder)
    (folder / "new").mkdir(mode=0o777)
    (folder / "new").chmod(0o777)
    for path in [folder / "saved", *(folder / "saved").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = run_cli("apply", "rules.json", "saved", "-o", "new/out", cwd=folder, **somebody)
    for path in [folder / "saved", *(folder / "saved").rglob("*")]:
        path.chmod(0o755)
    assert (done.code, done.stderr) == (0, "")
    assert load(folder / "new" / "out").node_count == 11


def test_a_model_that_cannot_be_read(run_cli: Run, folder: Path) -> None:
    somebody = as_somebody(folder)
    for name in ("model.pb", "rules.json"):
        (folder / name).chmod(0o000)
        done = run_cli("apply", "rules.json", "model.pb", cwd=folder, **somebody)
        refused(done, f"cannot read {name}: Permission denied")
        assert not (folder / "model.patched.pb").exists()
        (folder / name).chmod(0o644)


# A process that is killed

# Signals itself after that many writes to files; or when the new file is to take its name.
KILLED = """
import os, signal
from pathlib import Path
from graphpatch.formats import output
left, write, replace, rename = [{writes}], os.write, Path.replace, Path.rename
def kill():
    os.kill(os.getpid(), signal.{signal})
def counted(descriptor, data):
    done = write(descriptor, data)
    left[0] -= 1
    if left[0] == 0:
        kill()
    return done
def named(path, target, do):
    if left[0] > 0:
        kill()
    return do(path, target)
os.write = counted
Path.replace = lambda path, target: named(path, target, replace)
Path.rename = lambda path, target: named(path, target, rename)
"""


@pytest.mark.parametrize("writes", [1, 2, 100])
@pytest.mark.parametrize("args", [("large.pb", "-o", "old.pb"), ("saved", "-o", "old")])
def test_kills_keep_the_old_file(
    run_cli: Run, folder: Path, args: tuple[str, ...], writes: int
) -> None:
    typed = ("apply", "rules.json", *args, "--force")
    (folder / "old.pb").write_bytes(MODEL)
    graphs.saved_model_folder(folder / "old", graphs.metagraph(SAMPLE, "old"))
    before = everything(folder)
    interrupted = KILLED.format(writes=writes, signal="SIGINT")
    done = run_cli(*typed, cwd=folder, **with_limit(interrupted))
    assert (done.code, done.stderr.strip()) == (130, "")
    assert everything(folder) == before
    killed = KILLED.format(writes=writes, signal="SIGKILL")
    assert run_cli(*typed, cwd=folder, **with_limit(killed)).code == -signal.SIGKILL
    after = everything(folder)
    assert {name: after[name] for name in before} == before
    unfinished = {name.split("/")[0] for name in after.keys() - before.keys()}
    assert len(unfinished) <= 1
    assert all(name.startswith(".old") and name.endswith(".tmp") for name in unfinished)
    assert run_cli(*typed, cwd=folder).code == 0  # it disturbs no next run
    assert load(folder / args[2]).node_count > 10


# Rules files and pages are written to names of their kind, so never over something else.


TYPED = {
    "doctor model.pb --fix": "rules file; name a .json",
    "match rules.json model.pb --save": "rules file; name a .json",
    "recipes guided_backprop --save": "rules file; name a .json",
    "references model.pb --feed feed.npz -o": "rules file; name a .json",
    "view model.pb -o": "page; name a .html",
}


@pytest.mark.parametrize("typed", TYPED)
def test_other_files_stay(run_cli: Run, folder: Path, typed: str) -> None:
    (folder / "other.pb").write_bytes(b"mine")
    before = everything(folder)
    for name in ("other.pb", "new", "-")[: 2 if "view" in typed else 3]:
        done = run_cli(*typed.split(), name, cwd=folder)
        assert done.code == 2
        assert f"{name} gets a {TYPED[typed]} file" in done.stderr
        assert everything(folder) == before


def test_a_page_goes_to_a_device(run_cli: Run, folder: Path) -> None:
    done = run_cli("view", "model.pb", "-o", "/dev/null", cwd=folder)
    assert (done.code, done.stderr) == (0, "")
