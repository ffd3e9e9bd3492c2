"""Time `apply` over many models: with two processes beside one, and what starting them costs.

Every measurement is a whole command, and all are of this one run, in turn, so that each meets the
same machine. The models are graphs of 1,000 nodes, written to --folder. The memory of a worker is
read while it works. Exits 1 where a target is missed. On a machine that has other work too, wall
times say little; then processor time tells what sharing costs: `with a core each` is what the
command itself and the busiest of its workers take, one after the other, of what one process takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

SCRIPTS = Path(__file__).parent
RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
JOBS = (1, 2)
# An installed package has been compiled, whatever is said here of compiling this one.
COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

# With how much of one process's time two get by; what a start costs; how large a worker becomes.
SHARE, START, MEMORY = 0.6, 0.3, 120


class Run(NamedTuple):
    """A whole command: wall and processor time, and the largest and the busiest of its workers.

    `longest` is the processor time of the command itself and of its busiest worker.
    """

    seconds: float
    processor: float
    megabytes: float
    longest: float


def build(folder: Path, models: int, nodes: int) -> None:
    """Make the models, and the rules; the tree is mirrored, so a folder in between."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models" / "v1").mkdir(parents=True)
    (folder / "rules.json").write_text(json.dumps({"version": 1, "rules": [RULE]}))
    script = SCRIPTS / "models" / "build_large.py"
    large = folder / "large.pb"
    subprocess.run([sys.executable, script, large, "--nodes", str(nodes)], check=True)
    for place in range(models):
        shutil.copyfile(large, folder / "models" / "v1" / f"{place}.pb")


def measure(folder: Path, models: str, jobs: int) -> Run:
    """One call of the command."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    command = [sys.executable, "-m", "graphpatch", "apply", str(folder / "rules.json"), models]
    start, spent = time.perf_counter(), processor()
    process = subprocess.Popen(
        [*command, "-o", str(folder / "out"), "--jobs", str(jobs)],
        env=COMPILED,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    largest, busy = 0.0, dict[int, float]()
    while process.poll() is None:
        pids = workers(process.pid)
        largest = max([largest, *map(megabytes, pids)])
        busy |= {pid: ticks(pid) for pid in pids if ticks(pid)}
        time.sleep(0.002)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    spent = processor() - spent
    longest = spent - sum(busy.values()) + max(busy.values(), default=0.0)
    return Run(seconds, spent, largest, longest)


def processor() -> float:
    """Processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def workers(pid: int) -> list[int]:
    """The processes that a command has started."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def ticks(pid: int) -> float:
    """The processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """The peak of a process's resident memory, what it shares with others counted whole."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 / 1e6 if found else 0.0


def start_cost(rounds: int) -> float:
    """Seconds from the first task to its end, by a pool that had to be started for it."""
    code = (
        "import time; from graphpatch.fleet.run import Pool; import graphpatch.fleet.work\n"
        "start = time.perf_counter(); pool = Pool(2)\n"
        "pool.submit(int).result(); print(time.perf_counter() - start); pool.close()"
    )
    command = [sys.executable, "-c", code]
    return median(float(subprocess.check_output(command)) for _ in range(rounds))


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench-fleet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1_000, help="of each model")
    options = parser.parse_args()
    build(options.folder, options.models, options.nodes)
    runs: dict[int, list[Run]] = {jobs: [] for jobs in JOBS}
    models = str(options.folder / "models")
    measure(options.folder, models, 2)  # not counted: brings the models into the page cache
    for _ in range(options.rounds):
        for jobs in JOBS:
            runs[jobs].append(measure(options.folder, models, jobs))
    seconds = {jobs: median(run.seconds for run in some) for jobs, some in runs.items()}
    for jobs, some in seconds.items():
        spent = median(run.processor for run in runs[jobs])
        print(
            f"--jobs {jobs}: {some:6.2f} s, {options.models / some:6.1f} models a second, "
            f"{spent:6.2f} s of processors"
        )
    longest = median(run.longest for run in runs[2])
    shared = longest / median(run.processor for run in runs[1])
    print(f"{'--jobs 2, with a core each':36}{shared:8.2f} of the processor time of --jobs 1")
    memory = max(run.megabytes for run in runs[2])
    measured = (
        ("--jobs 2, of the time of --jobs 1", seconds[2] / seconds[1], SHARE, ""),
        ("starting the pool", start_cost(options.rounds), START, "s"),
        ("memory of a worker", memory, MEMORY, "MB"),
    )
    for title, found, most, unit in measured:
        verdict = "" if found <= most else "MISSED"
        print(f"{title:36}{found:8.2f}, at most {most:6.2f} {unit:3}{verdict}")
    shutil.rmtree(options.folder)
    return 0 if all(found <= most for _, found, most, _ in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
