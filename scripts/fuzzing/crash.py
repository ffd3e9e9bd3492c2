"""What is left of an output when graphpatch is killed, has no room, or loses its input.

Each trial runs `graphpatch apply`, or `revert` of what it wrote, as a process of its own, in a
folder of its own. Afterwards the output is not there, or is what was there before, or is byte for
byte what an undisturbed run writes; no run ends in a traceback or by a signal of its own; and a run
that ends by itself leaves nothing else. What a kill leaves is swept by the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from graphpatch import load
from graphpatch.protos import GraphDef

COMMAND = [sys.executable, "-m", "graphpatch"]
COMMANDS = {"apply": ["apply", "r.json", "m.pb"], "revert": ["revert", "m.pb"]}
BUG = 3
MEGABYTES = 24
SECONDS = 10  # of processor time, for one run
RULES = {
    "version": 1,
    "rules": [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
}
EARLIER = b"what was there before"


@dataclass
class Trials:
    """What was tried, how often, and what went wrong."""

    model: Path
    whole: bytes
    rng: Random
    command: str = "apply"
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def judge(self, kind: str, folder: Path, code: int, err: bytes, killed: bool = False) -> None:
        """Look at what a run left."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        out = folder / "out.pb"
        found = out.read_bytes() if out.exists() else None
        if found not in (None, EARLIER, self.whole):
            self.fault(kind, f"an output of {len(found or b'')} bytes is not whole")
        if code == 0 and found != self.whole:
            self.fault(kind, "exit 0 without the output")
        if code == BUG or (code < 0 and not killed):
            self.fault(kind, f"exit {code}: {err[-600:].decode(errors='replace')}")
        left = {one.name for one in folder.iterdir()} - {"m.pb", "r.json", "out.pb"}
        if left and not killed:
            self.fault(kind, f"left over: {', '.join(sorted(left))}")

    def fault(self, kind: str, told: str) -> None:
        """Note what went wrong."""
        self.faults.append(f"{self.command}, {kind}: {told}")
        print(self.faults[-1], flush=True)

    @contextlib.contextmanager
    def folder(self, below: Path | None = None) -> Iterator[Path]:
        """Give a folder with the model and the rules; now and then with an earlier output."""
        with tempfile.TemporaryDirectory(prefix="crash-", dir=below) as name:
            folder = Path(name)
            shutil.copyfile(self.model, folder / "m.pb")
            (folder / "r.json").write_text(json.dumps(RULES))
            if self.rng.random() < 0.5:
                (folder / "out.pb").write_bytes(EARLIER)
            yield folder

    def started(
        self, folder: Path, limit: Callable[[], None] | None = None
    ) -> subprocess.Popen[bytes]:
        """Return the command, in a folder."""
        return subprocess.Popen(
            [*COMMAND, *COMMANDS[self.command], "-o", "out.pb", "--force"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=limit or _limit(resource.RLIMIT_CPU, SECONDS),
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Return the exit code and what was said."""
    _, err = process.communicate(timeout=600)  # a busy machine is not a fault; see SECONDS
    return process.returncode, err


def kills(trials: Trials, count: int, seconds: float) -> None:
    """Kills at random moments, each followed by a run that sweeps what it left."""
    with trials.folder() as folder:
        for _ in range(count):
            process = trials.started(folder)
            if trials.rng.random() < 0.5:
                time.sleep(trials.rng.uniform(0.1, 1.05) * seconds)
            else:
                while process.poll() is None and not unfinished(folder):
                    time.sleep(0.0005)
                time.sleep(trials.rng.uniform(0, 0.02))
            process.kill()
            code, err = ended(process)
            trials.judge("kill", folder, code, err, killed=True)
            if unfinished(folder):
                trials.counts["of which while it was written"] = 1 + trials.counts.get(
                    "of which while it was written", 0
                )
            (folder / "out.pb").unlink(missing_ok=True)
            if trials.rng.random() < 0.5:
                (folder / "out.pb").write_bytes(EARLIER)
        code, err = ended(trials.started(folder))
        trials.judge("the run after all kills", folder, code, err)


def unfinished(folder: Path) -> bool:
    """Whether there is an output that is not whole, under another name."""
    return any(one.name.startswith(".") for one in folder.iterdir())


def truncations(trials: Trials, count: int, seconds: float) -> None:
    """Cut off the end of the input, or all of it, while it is read."""
    for _ in range(count):
        with trials.folder() as folder:
            process = trials.started(folder)
            time.sleep(trials.rng.uniform(0.2, 1) * seconds)
            size = trials.model.stat().st_size
            with contextlib.suppress(FileNotFoundError):
                os.truncate(folder / "m.pb", trials.rng.choice((0, size // 2, size - 4096)))
            code, err = ended(process)
            judged_truncated(trials, folder, code, err)


def judged_truncated(trials: Trials, folder: Path, code: int, err: bytes) -> None:
    """Check an output of a cut input: it may be that of the cut one, if that is a model too."""
    out = folder / "out.pb"
    if code == 0 and out.read_bytes() not in (EARLIER, trials.whole):
        with contextlib.suppress(Exception):
            load(out)
            trials.fault("truncation", "exit 0, and an output of an input that changed")
        out.unlink()
        code = 1
    trials.judge("truncation", folder, code, err)


def limits(trials: Trials) -> None:
    """Memory, file size, processor time, open files."""
    amounts = {
        "memory": (resource.RLIMIT_AS, [40 << 20, 80 << 20, 120 << 20, 160 << 20, 200 << 20]),
        "file size": (resource.RLIMIT_FSIZE, [0, 1000, 1 << 20, (MEGABYTES - 1) << 20]),
        "processor time": (resource.RLIMIT_CPU, [1]),
        "open files": (resource.RLIMIT_NOFILE, [4, 5, 6, 8, 12, 20]),
    }
    for name, (which, values) in amounts.items():
        for value in values:
            with trials.folder() as folder:
                code, err = ended(trials.started(folder, _limit(which, value)))
                if python_failed(code, err):
                    code = 1  # Python did not come as far as graphpatch
                trials.judge(f"limit of {name}", folder, code, err, killed=name == "processor time")


def python_failed(code: int, err: bytes) -> bool:
    """Whether the interpreter could not start, or could not read a module that is imported."""
    words = (b"error while loading shared libraries", b"Fatal Python error")
    frames = [line for line in err.splitlines() if line.lstrip().startswith(b"File ")]
    importing = bool(frames) and b"<frozen importlib" in frames[-1]
    return code != 0 and (importing or any(one in err for one in words))


def _limit(which: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(which, (value, value))


def full_disk(trials: Trials, count: int) -> None:
    """Write to a file system that has no room for the output; only who may mount can try."""
    with tempfile.TemporaryDirectory(prefix="crash-") as place:
        for number in range(count):
            size = (MEGABYTES + 1 + trials.rng.randrange(MEGABYTES - 2)) << 20
            options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]
            if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
                print(f"full disk: not tried {count - number} times, as mounting is not allowed")
                return
            try:
                with trials.folder(Path(place)) as folder:
                    code, err = ended(trials.started(folder))
                    trials.judge("full disk", folder, code, err)
            finally:
                subprocess.run(["umount", place], check=True)


def two_writers(trials: Trials, count: int) -> None:
    """Two runs that write one output at the same time."""
    for _ in range(count):
        with trials.folder() as folder:
            first = trials.started(folder)
            time.sleep(trials.rng.uniform(0, 0.1))
            for process in (first, trials.started(folder)):
                code, err = ended(process)
            trials.judge("two writers", folder, code, err)


def model_of(place: Path) -> Path:
    """Return a model that takes a while to write."""
    graph = GraphDef()
    graph.versions.producer = 1087
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    before = "x"
    for number in range(MEGABYTES):
        const = graph.node.add(name=f"w{number}", op="Const")
        const.attr["dtype"].type = 1
        tensor = const.attr["value"].tensor
        tensor.dtype = 1
        tensor.tensor_shape.dim.add(size=1 << 18)
        tensor.tensor_content = bytes([number]) * (1 << 20)
        for op in ("Mul", "Relu"):
            node = graph.node.add(name=f"{op}{number}", op=op)
            node.attr["T"].type = 1
            node.input.extend([before, const.name] if op == "Mul" else [before])
            before = node.name
    path = place / "model.pb"
    path.write_bytes(graph.SerializeToString())
    return path


def tried(trials: Trials, count: int) -> bool:
    """Try all with one command; False where it does not even work undisturbed."""
    with trials.folder() as folder:
        begun = time.monotonic()
        code, err = ended(trials.started(folder))
        seconds = time.monotonic() - begun
        if code:
            print(err.decode(errors="replace"))
            return False
        trials.whole = (folder / "out.pb").read_bytes()
    few = max(2, count // 10)
    kills(trials, count, seconds)
    truncations(trials, few, seconds)
    limits(trials)
    full_disk(trials, few // 2)
    two_writers(trials, few)
    return True


def main(arguments: list[str]) -> int:
    """Try all; 1 where an output was not whole, or something was left over."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz crash")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(prefix="crash-") as place:
        trials = Trials(model_of(Path(place)), b"", Random(given.seed))
        for command in COMMANDS:
            trials.command = command
            if not tried(trials, given.kills // len(COMMANDS)):
                return 1
            trials.model = Path(place, f"after-{command}.pb")
            trials.model.write_bytes(trials.whole)
    print(", ".join(f"{kind}: {count}" for kind, count in trials.counts.items()))
    print(f"{len(trials.faults)} faults")
    return 1 if trials.faults else 0
