"""Where nothing can be written: one clear message, exit 1, and the old files are whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphpatch.formats import load
from tests import forked, graphs
from tests.conftest import CHECKOUT, Run
from tests.refusals import MODEL, SAMPLE, everything, refused, sound_files

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


CANNOT_WRITE: dict[str, tuple[list[str], str]] = {
    "no such folder": (["model.pb", "-o", "gone/out.pb"], "cannot write gone/out.pb: No such file"),
    "below a file": (["model.pb", "-o", "model.pb/out"], "cannot write model.pb/out: Not a dir"),
    "a folder below a file": (["model.pb", "-o", "model.pb/out/"], "cannot write model.pb/out/: "),
    "over a SavedModel": (
        ["model.pb", "-o", "saved", "--force"],
        "cannot write saved: Is a directory",
    ),
    "a SavedModel over a file": (
        ["saved", "-o", "model.pb", "--force"],
        "a SavedModel is a folder",
    ),
    "a folder that is a file": (["model.pb", "-o", "model.pb/"], "model.pb/ is a file"),
    "several to a file": (
        ["model.pb", "saved", "-o", "large.pb"],
        "large.pb is a file, and models",
    ),
    "two to one": (["model.pb", "./model.pb", "-o", "new"], "two models would be written to new/m"),
    "a full device": (["model.pb", "-o", "/dev/full"], "cannot write /dev/full: No space left on"),
    "a full device, large": (["large.pb", "-o", "/dev/full"], "cannot write /dev/full: No space"),
}


@pytest.mark.parametrize(("args", "said"), CANNOT_WRITE.values(), ids=CANNOT_WRITE)
def test_where_nothing_can_be_put(run_cli: Run, folder: Path, args: list[str], said: str) -> None:
    before = everything(folder)
    refused(run_cli("apply", "rules.json", *args, cwd=folder), said)
    assert everything(folder) == before
    assert not (folder / "new").exists()
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("model", ["model.pb", "large.pb"])
def test_a_full_pipe(folder: Path, model: str) -> None:
    command = [sys.executable, "-m", "graphpatch", "apply", str(folder / "rules.json")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*command, str(folder / model), "-o", "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=CHECKOUT,
        )
    assert done.returncode == 1
    assert done.stderr == ("graphpatch: cannot write standard output: No space left on device\n")


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
    "args",
    [
        ["large.pb"],
        ["large.pb", "-o", "old.pb", "--force"],
        ["large.pb", "-o", "x.pbtxt"],
        ["saved"],
        ["saved", "-o", "old", "--force"],
    ],
)
def test_a_full_disk(run_cli: Run, folder: Path, args: list[str]) -> None:
    (folder / "old.pb").write_bytes(b"the old file")
    graphs.saved_model_folder(folder / "old", graphs.metagraph(SAMPLE, "old"))
    before = everything(folder)
    done = run_cli("apply", "rules.json", *args, cwd=folder, **with_limit(LIMITED))
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
    for args, said in (
        (["model.pb"], "cannot write model.patched.pb: Permission denied"),
        (["saved"], "cannot write saved.patched: Permission denied"),
        (["model.pb", "-o", "closed/new.pb"], "cannot write closed/new.pb: Permission denied"),
        (
            ["model.pb", "-o", "closed/old.pb", "--force"],
            "cannot write closed/old.pb: Permission denied",
        ),
        (["model.pb", "-o", "closed"], "cannot write closed/graphpatch-manifest.jsonl: Permission"),
        (["model.pb", "-o", "new/"], "cannot write new/: Permission denied"),
        (["model.pb", "-o", "blind/x.pb"], "cannot write blind/x.pb: Permission denied"),
        (["saved", "-o", "closed/new"], "cannot write closed/new: Permission denied"),
    ):
        refused(run_cli("apply", "rules.json", *args, cwd=folder, **somebody), said)
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
@pytest.mark.parametrize(
    "args", [["large.pb", "-o", "old.pb", "--force"], ["saved", "-o", "old", "--force"]]
)
def test_kills_keep_the_old_file(run_cli: Run, folder: Path, args: list[str], writes: int) -> None:
    (folder / "old.pb").write_bytes(MODEL)
    graphs.saved_model_folder(folder / "old", graphs.metagraph(SAMPLE, "old"))
    before = everything(folder)
    first = KILLED.format(writes=writes, signal="SIGKILL")
    done = run_cli("apply", "rules.json", *args, cwd=folder, **with_limit(first))
    assert done.code == -signal.SIGKILL
    after = everything(folder)
    assert {name: after[name] for name in before} == before
    left = {name.split("/")[0] for name in after.keys() - before.keys()}
    assert len(left) <= 1
    assert all(name.startswith(".old") and name.endswith(".tmp") for name in left)
    assert run_cli("apply", "rules.json", *args, cwd=folder).code == 0  # it disturbs no next run
    assert load(folder / args[2]).node_count > 10


def test_an_interrupted_process_leaves_nothing(run_cli: Run, folder: Path) -> None:
    (folder / "old.pb").write_bytes(b"the old file")
    before = everything(folder)
    for writes in (1, 100):
        first = KILLED.format(writes=writes, signal="SIGINT")
        args = ("apply", "rules.json", "large.pb", "-o", "old.pb", "--force")
        done = run_cli(*args, cwd=folder, **with_limit(first))
        assert (done.code, done.stderr.strip()) == (130, "")
        assert everything(folder) == before


# Rules files and pages are written to names of their kind, so never over something else.


# What each command writes, up to the name of the file.
RULES = {
    "doctor": ("doctor", "model.pb", "--fix"),
    "match": ("match", "rules.json", "model.pb", "--save"),
    "recipes": ("recipes", "guided_backprop", "--save"),
    "references": ("references", "model.pb", "--feed", "feed.npz", "-o"),
}
PAGE = ("view", "model.pb", "-o")
TYPED = [*((*one, "a rules file; name a .json file") for one in RULES.values())]
TYPED += [(*PAGE, "a page; name a .html file")]


@pytest.mark.parametrize("typed", TYPED, ids=[one[0] for one in TYPED])
@pytest.mark.parametrize("name", ["other.pb", "new", "-.pb"])
def test_other_files_stay(run_cli: Run, tmp_path: Path, typed: tuple[str, ...], name: str) -> None:
    folder = sound_files(tmp_path)
    (folder / "other.pb").write_bytes(b"mine")
    before = everything(folder)
    done = run_cli(*typed[:-1], name, cwd=folder)
    assert done.code == 2
    assert f"{name} gets {typed[-1]}" in done.stderr
    assert everything(folder) == before


@pytest.mark.parametrize("typed", RULES.values(), ids=RULES)
def test_a_rules_file_goes_to_no_pipe(run_cli: Run, tmp_path: Path, typed: tuple[str, ...]) -> None:
    done = run_cli(*typed, "-", cwd=sound_files(tmp_path))
    assert done.code == 2
    assert "name a .json file" in done.stderr


def test_a_page_goes_to_a_device(run_cli: Run, tmp_path: Path) -> None:
    done = run_cli(*PAGE, "/dev/null", cwd=sound_files(tmp_path))
    assert (done.code, done.stderr) == (0, "")
