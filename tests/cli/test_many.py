"""`apply` and `check` over folders, globs and lists of models."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.fleet.run import MANIFEST_NAME
from tests import graphs
from tests.conftest import CHECKOUT, Run
from tests.forked import COMMAND, python
from tests.refusals import LARGE, MODEL, RULE, everything, rules_text, sound_files

OTHER = RULE | {"patch": {"stop_gradient": True}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rules, and below reg/ a registry of five models."""
    sound_files(tmp_path)
    for name in ("a.pb", "v1/a.pb", "v2/large.pb", "v2/deep/a.pb"):
        (tmp_path / "reg" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reg" / name).write_bytes(LARGE if "large" in name else MODEL)
    graphs.saved_model_folder(tmp_path / "reg" / "saved", graphs.metagraph(graphs.sample(), "a"))
    return tmp_path


NAMES = ["a.pb", "saved", "v1/a.pb", "v2/deep/a.pb", "v2/large.pb"]


def lines(done: Any) -> dict[str, Any]:
    """The JSON Lines of a run by their models."""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({one["model"] for one in found}) == len(found)
    return {one["model"]: one for one in found}


def manifest(folder: Path) -> dict[str, Any]:
    text = (folder / MANIFEST_NAME).read_text().splitlines()
    found = {one["output"]: one for one in map(json.loads, text)}
    assert len(found) == len(text)
    return found


def outputs(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in everything(folder).items() if name != MANIFEST_NAME}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_folder_is_mirrored(run_cli: Run, folder: Path, jobs: str) -> None:
    done = run_cli("apply", "rules.json", "reg", "-o", "out", "-j", jobs, "--json", cwd=folder)
    assert (done.code, done.stderr) == (0, "5 models: 5 patched\n")
    assert sorted(lines(done)) == sorted(f"reg/{name}" for name in NAMES)
    for name in NAMES:
        line = lines(done)[f"reg/{name}"]
        single = f"single-{name.replace('/', '-')}"
        typed = ("apply", "rules.json", f"reg/{name}", "-o", single, "--json")
        [alone] = run_cli(*typed, cwd=folder).json["outputs"]
        assert line.pop("seconds") > 0
        assert line == alone | {"output": f"out/{name}"}
        if (folder / single).is_file():
            assert (folder / single).read_bytes() == (folder / "out" / name).read_bytes()
        else:
            assert everything(folder / single) == everything(folder / "out" / name)
    assert sorted(manifest(folder / "out")) == NAMES
    assert not [name for name in everything(folder / "out") if ".tmp" in name]


def test_one_that_fails_fails_alone(run_cli: Run, folder: Path) -> None:
    (folder / "reg/bad.pb").write_bytes(MODEL[:-1])
    (folder / "reg/labels.pbtxt").write_text('item { name: "cat" }')
    done = run_cli("apply", "rules.json", "reg", "-o", "out", "--json", cwd=folder)
    assert done.code == 1
    summary, failure = done.stderr.splitlines()
    assert summary == "7 models: 5 patched, 1 skipped, 1 failed"
    assert failure.startswith("graphpatch: reg/bad.pb: truncated")
    found = lines(done)
    assert found["reg/bad.pb"]["error"] == failure.removeprefix("graphpatch: ")
    assert found["reg/labels.pbtxt"]["passed_over"].startswith("text, but not that of a GraphDef")
    assert sorted(manifest(folder / "out")) == sorted([*NAMES, "bad.pb"])
    named = run_cli("apply", "rules.json", "reg/labels.pbtxt", "-o", "x.pbtxt", cwd=folder)
    assert named.code == 1


NAMED = "reg/a.pb reg/bad.pb reg/v2/large.pb model.pb"
RAISED = [
    ("reg -j 1", "KeyError('x')", 3, "KeyError: 'x'", "please report the above\n"),
    (NAMED, "KeyError('x')", 3, "KeyError: 'x'", "please report the above\n"),
    (NAMED, "MemoryError", 1, "MemoryError", "there is not enough memory for this input\n"),
    (NAMED, "OSError(24, 'M')", 1, "[Errno 24]", "the system lets no more files be opened: M\n"),
]


@pytest.mark.parametrize(("models", "error", "code", "among_many", "alone"), RAISED)
def test_what_is_raised_over_a_model_stays_with_it(
    run_cli: Run, folder: Path, models: str, error: str, code: int, among_many: str, alone: str
) -> None:
    broken = (
        "import graphpatch.fleet.work as work; load = work.load\n"
        f"def broken(path, progress):\n    if path.name == 'large.pb': raise {error}\n"
        "    return load(path, progress)\nwork.load = broken\n"
        "from graphpatch.cli import main; main()"
    )
    (folder / "reg/bad.pb").write_bytes(MODEL[:-1])
    args, command = ("apply", "rules.json", "-o", "out/", "--json"), [sys.executable, "-c", broken]
    done = run_cli(*args, *models.split(), cwd=folder, command=command)
    assert done.code == code
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    errors = {e["model"]: e["error"] for e in ended[0].get("errors", ended) if "error" in e}
    assert f"graphpatch: {errors['reg/bad.pb']}\n" in done.stderr
    assert errors.pop("reg/bad.pb").startswith("reg/bad.pb: truncated")
    assert among_many in errors.pop("reg/v2/large.pb")
    patched = {"a.pb", "model.pb"} if models == NAMED else {*NAMES} - {"v2/large.pb"}
    reports = [report for report in ended[0].get("outputs", ended) if "output" in report]
    assert {report["output"].removeprefix("out/") for report in reports} == patched
    entries = manifest(folder / "out")
    assert {name for name, entry in entries.items() if "error" not in entry} == patched
    assert (len(entries), errors) == (len(patched) + 2, {})
    assert all(entry["seconds"] > 0 for entry in entries.values())
    done = run_cli(*args, "reg/v2/large.pb", cwd=folder, command=command)
    assert (done.code, done.stdout, alone in done.stderr) == (code, "", True)


USAGE = (
    "reg - -o out",
    "reg -o -",
    "reg --resume --allow-python -o out",
    "model.pb --resume -o one.pb",
    "model.pb --resume -o out/ --inputs x --outputs out",
    "model.pb --resume -o out/ --rebuild-gradients",
    "reg -o out --rebuild-gradients",
)


@pytest.mark.parametrize("typed", USAGE)
def test_wrong_usage(run_cli: Run, folder: Path, typed: str) -> None:
    before = everything(folder)
    without_tensorflow = [*python(COMMAND), "-m", "graphpatch"]  # which takes seconds to import
    words = ("apply", "rules.json", *typed.split())
    done = run_cli(*words, cwd=folder, command=without_tensorflow)
    assert (done.code, done.raw) == (2, b"")
    assert everything(folder) == before


# No file of more bytes, whatever process writes it: what a disk that is full does to large ones.
FULL = (
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
    "from graphpatch.cli import main; main()"
)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_no_space_left_halfway(run_cli: Run, folder: Path, jobs: str) -> None:
    args = ("apply", "rules.json", "reg", "-j", jobs, "-o")
    assert run_cli(*args, "whole", cwd=folder).code == 0
    done = run_cli(*args, "out", cwd=folder, command=[*python(COMMAND), "-c", FULL])
    assert done.code == 1
    assert "cannot write out/v2/large.pb: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    whole = outputs(folder / "whole")
    assert outputs(folder / "out") == {k: v for k, v in whole.items() if k != "v2/large.pb"}
    assert run_cli(*args, "out", "--resume", cwd=folder).code == 0
    assert outputs(folder / "out") == whole
    assert len(manifest(folder / "out")) == 5


RESUME = ("apply", "rules.json", "reg", "-o", "out", "--resume")


def passed(done: Any) -> list[str]:
    return sorted(name for name, line in lines(done).items() if "passed_over" in line)


def test_resume_passes_over_what_was_done(run_cli: Run, folder: Path) -> None:
    args = (*RESUME, "--json", "-j", "1")
    all_of_them = [f"reg/{name}" for name in NAMES]
    assert passed(run_cli(*args, cwd=folder)) == []
    first, said = outputs(folder / "out"), manifest(folder / "out")
    done = run_cli(*args, cwd=folder)
    assert (done.stderr, passed(done)) == ("5 models: 0 patched, 5 skipped\n", all_of_them)
    assert manifest(folder / "out") == said
    # Another layout of the same rules is the same; other content is not.
    document = json.loads((folder / "rules.json").read_text())
    (folder / "rules.json").write_text(json.dumps(document, indent=7))
    assert passed(run_cli(*args, cwd=folder)) == all_of_them
    # A source, an output of a folder, and an output that is missing: these are done again.
    (folder / "reg/a.pb").write_bytes(LARGE)
    (folder / "out/saved/variables/variables.index").write_bytes(b"other")
    (folder / "out/v1/a.pb").unlink()
    done = run_cli(*args, cwd=folder)
    assert passed(done) == ["reg/v2/deep/a.pb", "reg/v2/large.pb"]
    assert outputs(folder / "out") == first | {"a.pb": outputs(folder / "out")["a.pb"]}
    (folder / "rules.json").write_text(rules_text(OTHER))
    assert passed(run_cli(*args, cwd=folder)) == []


def test_resume_of_one_model_into_a_folder(run_cli: Run, folder: Path) -> None:
    args = ("apply", "rules.json", "reg/a.pb", "-o", "out/")
    assert run_cli(*args, cwd=folder).stdout.startswith("reg/a.pb -> out/a.pb\n")
    assert sorted(manifest(folder / "out")) == ["a.pb"]
    done = run_cli(*args, "--resume", cwd=folder)
    assert done.stdout == "reg/a.pb: done before, and unchanged since\n"
    assert done.stderr == "1 model: 0 patched, 1 skipped\n"
    # A folder that is there needs no / at its end.
    assert "done before" in run_cli(*args[:-1], "out", "--resume", cwd=folder).stdout


def test_a_manifest_that_was_cut_short(run_cli: Run, folder: Path) -> None:
    args = (*RESUME, "--json", "-j", "1")
    run_cli(*args, cwd=folder)
    path = folder / "out" / MANIFEST_NAME
    path.write_bytes(path.read_bytes()[:-30])
    assert len(passed(run_cli(*args, cwd=folder))) == 4
    assert len(manifest(folder / "out")) == 5


def test_what_the_manifest_says(run_cli: Run, folder: Path) -> None:
    run_cli("apply", "rules.json", "reg/*.pb", "-o", "out", cwd=folder)
    [line] = manifest(folder / "out").values()
    assert len(line.pop("sha256")) == len(line.pop("output_sha256")) == 64
    assert len(line["rules"].pop("sha256")) == 64
    assert line.pop("seconds") > 0
    assert line == {
        "source": "reg/a.pb",
        "rules": {"file": "rules.json"},
        "matches": {"rule 1": {"Relu": 1}},
        "output": "a.pb",
        "consumer": {"session": ["Mine"], "tape": ["Mine"]},
        "version": graphpatch.__version__,
    }


def test_what_dead_processes_left_is_swept(run_cli: Run, folder: Path) -> None:
    for name in ("a.pb", "saved", MANIFEST_NAME):
        (folder / f"out/.{name}.0123456789ab.tmp").parent.mkdir(exist_ok=True)
        (folder / f"out/.{name}.0123456789ab.tmp").write_bytes(b"half of it")
    assert run_cli(*RESUME, "-j", "1", cwd=folder).code == 0
    assert not list((folder / "out").glob(".*"))


@pytest.mark.slow
def test_the_command_killed_ten_times(run_cli: Run, folder: Path) -> None:
    for place in range(60):
        (folder / "reg" / f"{place}.pb").write_bytes(LARGE)
    run_cli("apply", "rules.json", "reg", "-o", "whole", cwd=folder)
    whole = outputs(folder / "whole")
    chosen, codes = random.Random(3), list[int]()
    while codes.count(-signal.SIGKILL) < 10:
        assert len(codes) < 40
        codes.append(killed(folder, chosen))
        for name, data in outputs(folder / "out").items():  # what is not whole is hidden
            assert any(part[0] == "." for part in Path(name).parts) or data == whole[name]
        if codes[-1] == 0:
            shutil.rmtree(folder / "out")
    assert run_cli(*RESUME, "-j", "2", cwd=folder).code == 0
    assert outputs(folder / "out") == whole
    assert manifest(folder / "out").keys() == manifest(folder / "whole").keys()


def killed(folder: Path, chosen: random.Random) -> int:
    """The exit code of the command, which is killed a moment after it begins to write."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphpatch", *RESUME, "-j", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    start = entries(folder)
    while process.poll() is None and entries(folder) == start:
        time.sleep(0.001)
    time.sleep(chosen.uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    code, until = process.wait(), time.monotonic() + 20
    while still_runs(process.pid):  # its workers end when they see that it is gone
        assert time.monotonic() < until
        time.sleep(0.001)
    return code


def entries(folder: Path) -> set[Path]:
    return set((folder / "out").rglob("*"))


def still_runs(group: int) -> bool:
    """Whether a process of this group is alive; one that ended and is not reaped is not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                return True
    return False


# check


def test_check(run_cli: Run, folder: Path) -> None:
    run_cli("apply", "rules.json", "reg", "-o", "out", cwd=folder)
    before = everything(folder)
    done = run_cli("check", "rules.json", "out", cwd=folder)
    assert (done.code, done.stderr) == (0, "5 models: 5 with the rules applied\n")
    assert sorted(done.stdout.splitlines()) == [f"out/{name}: applied" for name in NAMES]
    (folder / "rules.json").write_text(rules_text(RULE, OTHER | {"name": "other"}))
    done = run_cli("check", "rules.json", "out/a.pb", "reg/a.pb", "gone.pb", "--json", cwd=folder)
    assert done.code == 1
    assert [line["applied"] for line in lines(done).values() if "applied" in line] == [False] * 2
    rules = lines(done)["out/a.pb"]["rules"]
    assert {rule["name"]: rule["applied"] for rule in rules} == {"rule 1": True, "other": False}
    assert done.stderr.splitlines() == [
        "3 models: 0 with the rules applied, 3 failed",
        "graphpatch: cannot read gone.pb: No such file or directory",
        "graphpatch: out/a.pb: rule 'other' has not been applied",
        "graphpatch: reg/a.pb: rule 'rule 1' has not been applied;"
        " rule 'other' has not been applied",
    ]
    (folder / "rules.json").write_text(rules_text(RULE))
    assert everything(folder) == before


def test_check_of_rules_that_may_match_nothing(run_cli: Run, folder: Path) -> None:
    maybe = RULE | {"expect": {"min": 0}, "name": "maybe"}
    never = {**maybe, "match": {"op": "Conv2D"}, "name": "never"}
    (folder / "rules.json").write_text(rules_text(maybe, never))
    done = run_cli("check", "rules.json", "model.pb", cwd=folder)
    assert done.code == 1
    said = "rule 'maybe' has not been applied, and Relu 'relu' is an op for it"
    assert done.stderr.splitlines()[1] == f"graphpatch: model.pb: {said}"
    run_cli("apply", "rules.json", "model.pb", "-o", "x.pb", cwd=folder)
    assert run_cli("check", "rules.json", "x.pb", cwd=folder).code == 0


def test_what_reports_note_is_said_once_for_all(run_cli: Run, folder: Path) -> None:
    """A folder of training graphs looked patched, and trained as before."""
    nodes = [graphs.node("x", "Placeholder"), graphs.node("y", "Relu", "x")]
    nodes += [graphs.node(f"gradients/y_grad/{name}", "ReluGrad", "x", "y") for name in "ab"]
    (folder / "train").mkdir()
    for name in ("a.pb", "b.pb"):
        (folder / "train" / name).write_bytes(graphs.graphdef(*nodes).SerializeToString())
    done = run_cli("apply", "rules.json", "train", "-o", "trained", cwd=folder)
    assert done.code == 0
    assert done.stderr.startswith("2 models: 2 patched\nnote: 2 models: gradients/** (2 ops) are")
    (note,) = [line for line in done.stderr.splitlines() if "gradients/**" in line]
    (folder / "train/b.pb").unlink()
    alone = run_cli("apply", "rules.json", "train", "-o", "one", cwd=folder).stderr
    assert note.replace("2 models:", "train/a.pb:") in alone


def test_patched_models_beside_their_originals_are_passed_over(run_cli: Run, folder: Path) -> None:
    run_cli("apply", "rules.json", "reg/v1/a.pb", cwd=folder)
    done = run_cli("apply", "rules.json", "reg/v1", "-o", "out", cwd=folder)
    assert (done.code, done.stderr) == (0, "2 models: 1 patched, 1 skipped\n")
    assert "reg/v1/a.patched.pb: rule" in done.stdout
    typed = ("apply", "rules.json", "reg/v1/a.patched.pb", "-o", "x.pb")
    assert run_cli(*typed, cwd=folder).code == 1
