"""Time graphpatch beside `cp` and beside the TensorFlow script that does the same.

Every measurement is a whole process: its wall time, its processor time and its peak memory. What
users get by default is measured (`functions`), and keys alone beside it (`attrs`); what is done
with the patched model (`revert`, `diff`, `check`, `verify`, `view`), beside `apply`. One round runs
each once, in turn, so that all meet the same machine; the table shows medians, and ratios within
this one run. Where a third of the ops match (`chain`: 33,332 Relus of 100,000 nodes, with
`_output_shapes` and without, and ten times as many), where a pattern is looked for, and where the
page of a large graph is written, only processor time counts, the least of all rounds. Exits 1 where
a target is missed. The models (a 553 MB VGG16, graphs of up to 1,000,000 nodes) are built in
--folder where they are missing; together with outputs they take 2 GB of disk, TensorFlow's side 8
GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

SCRIPTS = Path(__file__).parent
GRAPHPATCH = str(Path(sys.executable).with_name("graphpatch"))
CHAINS = {
    "chain": ["build_large.py", "--chain", "--nodes", "100000"],
    "chain-shapes": ["build_large.py", "--chain", "--shapes", "--nodes", "100000"],
    "chain-1000000": ["build_large.py", "--chain", "--nodes", "1000000"],
}
OVERRIDES = {"built-in": {"registered": "Relu6"}, "library": "guided_relu"}

EXITS = {"chain: diff": 1}  # they differ


class Run(NamedTuple):
    seconds: float
    megabytes: float  # peak resident memory
    processor: float = 0.0  # seconds, of which other processes take nothing


class Target(NamedTuple):
    title: str
    measured: Callable[[Mapping[str, Run]], float]
    at_most: Callable[[Mapping[str, Run]], float]
    unit: str


def share(runs: Mapping[str, Run], title: str) -> float:
    """Of the processor time of TensorFlow's script, on the large graph."""
    return runs[title].processor / runs["large: TensorFlow"].processor


def ratio(runs: Mapping[str, Run], title: str, other: str) -> float:
    """Of the processor times of two runs."""
    return runs[title].processor / runs[other].processor


FOUR = "Mul -> Add -> Relu -> Mul"
# What is done with a patched model, and how much of the time of `apply` it may take.
AFTER = {"revert": 1.0, "diff": 1.5, "check": 1.5, "verify --no-run": 2.0, "view of both": 5.0}


def after_apply(name: str, most: float) -> Target:
    """Return what a command on the patched chain may take, of the time of `apply`."""
    return Target(
        f"chain, a third patched: {name}, of apply",
        lambda runs: ratio(runs, f"chain: {name}", "chain: apply, functions"),
        lambda runs: most,
        "x",
    )


# fmt: off
TARGETS = (
    Target("apply a built-in key to VGG16, within 1.5 cp + 0.3 s",
           lambda r: r["apply built-in key"].processor,
           lambda r: 1.5 * r["cp"].processor + 0.3, "s"),
    Target("apply guided_relu (functions) to VGG16, within 1.5 cp + 0.3 s",
           lambda r: r["apply, functions"].processor,
           lambda r: 1.5 * r["cp"].processor + 0.3, "s"),
    Target("memory of apply on VGG16",
           lambda r: r["apply, functions"].megabytes, lambda r: 80, "MB"),
    Target("ops of VGG16",
           lambda r: r["ops"].seconds, lambda r: 0.4, "s"),
    Target("large graph, functions (the default), of TensorFlow's time",
           lambda r: share(r, "large: apply, functions"), lambda r: 0.1, ""),
    Target("large graph, attrs, of TensorFlow's time",
           lambda r: share(r, "large: apply, attrs"), lambda r: 0.06, ""),
    Target("chain, a third patched: functions, of TensorFlow's time",
           lambda r: ratio(r, "chain: apply, functions", "chain: TensorFlow"), lambda r: 0.12, ""),
    Target("chain, a third patched: attrs, of TensorFlow's time",
           lambda r: ratio(r, "chain: apply, attrs", "chain: TensorFlow"), lambda r: 0.08, ""),
    *(after_apply(name, most) for name, most in AFTER.items()),
    Target("chain with shapes: functions, of TensorFlow's time",
           lambda r: ratio(r, "shapes: apply, functions", "shapes: TensorFlow"),
           lambda r: 0.15, ""),
    Target("chain of 1,000,000 nodes: functions, of 100,000",
           lambda r: ratio(r, "1M chain: apply, functions", "chain: apply, functions"),
           lambda r: 11, "x"),
    Target("chain of 1,000,000 nodes: memory",
           lambda r: r["1M chain: apply, functions"].megabytes, lambda r: 2000, "MB"),
    Target("view: page of VGG16",
           lambda r: r["view: VGG16"].seconds, lambda r: 3, "s"),
    Target("view: memory of the page of VGG16",
           lambda r: r["view: VGG16"].megabytes, lambda r: 150, "MB"),
    Target("view: page of a chain of 100,000 nodes, processor",
           lambda r: r["view: chain"].processor, lambda r: 10, "s"),
    Target("view: page of a tower of 100,000 nodes, processor",
           lambda r: r["view: tower"].processor, lambda r: 10, "s"),
    Target("match Mul -> Add -> Relu -> Mul, of networkx's time",
           lambda r: ratio(r, "chain: match", "chain: networkx"), lambda r: 0.3, ""),
)
ONCE = ("1M chain: apply, functions", "shapes: TensorFlow")  # measured in the first round alone
# fmt: on


def commands(folder: Path, nodes: int) -> dict[str, list[str]]:
    """What is timed, by title; each that has an output writes folder/out.pb."""
    vgg16, large = str(folder / "vgg16.pb"), str(folder / f"large-{nodes}.pb")
    built_in, library = (str(folder / f"{name}.json") for name in OVERRIDES)
    out = str(folder / "out.pb")
    apply = [GRAPHPATCH, "apply", "-o", out]
    as_attrs = [GRAPHPATCH, "apply", "--emit", "attr", "-o", out]
    tensorflow = [sys.executable, str(SCRIPTS / "bench_tensorflow.py")]
    chain, shapes, long = (str(folder / f"{name}.pb") for name in CHAINS)
    patched = str(folder / "chain.patched.pb")
    tower, view = str(folder / "tower.pb"), [GRAPHPATCH, "view", "-o", str(folder / "page.html")]
    alone = [sys.executable, str(SCRIPTS / "bench_patterns.py"), "--networkx"]
    return {
        "cp": ["cp", vgg16, out],
        "ops": [GRAPHPATCH, "ops", vgg16],
        "apply built-in key": [*apply, built_in, vgg16],
        "apply, functions": [*apply, library, vgg16],
        "apply, attrs": [*as_attrs, library, vgg16],
        "TensorFlow": [*tensorflow, vgg16, out],
        "large: cp": ["cp", large, out],
        "large: ops": [GRAPHPATCH, "ops", large],
        "large: apply, functions": [*apply, library, large],
        "large: apply, attrs": [*as_attrs, library, large],
        "large: TensorFlow": [*tensorflow, large, out],
        "chain: cp": ["cp", chain, out],
        "chain: apply, functions": [GRAPHPATCH, "apply", "-o", patched, library, chain],
        "chain: revert": [GRAPHPATCH, "revert", patched, "-o", out],
        "chain: diff": [GRAPHPATCH, "diff", chain, patched],
        "chain: check": [GRAPHPATCH, "check", library, patched],
        "chain: verify --no-run": [GRAPHPATCH, "verify", "--no-run", chain, patched],
        "chain: view of both": [*view, chain, patched],
        "chain: apply, attrs": [*as_attrs, library, chain],
        "chain: match": [GRAPHPATCH, "match", "--json", "--pattern", FOUR, chain],
        "chain: networkx": [*alone, chain, FOUR],
        "chain: TensorFlow": [*tensorflow, chain, out],
        "shapes: cp": ["cp", shapes, out],
        "shapes: apply, functions": [*apply, library, shapes],
        "shapes: TensorFlow": [*tensorflow, shapes, out],
        "1M chain: apply, functions": [*apply, library, long],
        "view: VGG16": [*view, vgg16],
        "view: chain": [*view, chain],
        "view: tower": [*view, tower],
    }


def build(folder: Path, nodes: int, tasks: Mapping[str, Sequence[str]]) -> None:
    """Make the rules files, and the models that are needed and not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, gradient in OVERRIDES.items():
        rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": gradient}}
        (folder / f"{name}.json").write_text(json.dumps({"version": 1, "rules": [rule]}))
    for name, builder in (
        ("vgg16", ["build_keras.py", "VGG16"]),
        (f"large-{nodes}", ["build_large.py", "--nodes", str(nodes)]),
        ("tower", ["build_large.py", "--nodes", "100000"]),
        *CHAINS.items(),
    ):
        model, partial = folder / f"{name}.pb", folder / f"{name}.partial"
        if not model.exists() and any(str(model) in task for task in tasks.values()):
            print(f"building {model}", file=sys.stderr)
            script = SCRIPTS / "models" / builder[0]
            subprocess.run([sys.executable, script, *builder[1:], partial], check=True)
            partial.rename(model)


def measure(command: Sequence[str], log: Path, code: int = 0) -> Run:
    """Run one process to its end, with this exit code.

    Its memory counts from this small process's own, some 20 MB. Modules come as byte code, as pip
    installs them: where the environment forbids to write that, each process would compile them.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as file:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise SystemExit(f"{' '.join(command)}\nfailed: {log.read_text(errors='replace')[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_maxrss * unit / 1e6, usage.ru_utime + usage.ru_stime)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:50}\r", end="", file=sys.stderr, flush=True)


def measure_all(tasks: Mapping[str, Sequence[str]], folder: Path, rounds: int) -> dict[str, Run]:
    runs: dict[str, list[Run]] = {title: [] for title in tasks}
    for title in [
        title for title in tasks if title.endswith("cp")
    ]:  # not counted: brings the models into the page cache
        measure(tasks[title], folder / "log")
    for number in range(rounds):
        for title, command in tasks.items():
            if number and title in ONCE:
                continue
            progress(f"round {number + 1} of {rounds}: {title}")
            (folder / "out.pb").unlink(missing_ok=True)
            runs[title].append(measure(command, folder / "log", EXITS.get(title, 0)))
    (folder / "out.pb").unlink(missing_ok=True)
    progress("")
    return {
        title: Run(
            median(r.seconds for r in each),
            median(r.megabytes for r in each),
            min(r.processor for r in each),
        )
        for title, each in runs.items()
    }


def print_runs(runs: Mapping[str, Run]) -> None:
    """Medians, and ratios to `cp` and to TensorFlow on the same model; to that in both times."""
    print(
        f"{'':26}{'seconds':>9}{'MB':>8}{'of cp':>9}{'of TensorFlow':>15}{'processor':>11}"
        f"{'of its MB':>11}"
    )
    for title, run in runs.items():
        prefix = title.rpartition(": ")[0]
        prefix = f"{prefix}: " if prefix and f"{prefix}: cp" in runs else ""
        if prefix not in title or f"{prefix}TensorFlow" not in runs:
            continue
        copy, tensorflow = runs[f"{prefix}cp"], runs[f"{prefix}TensorFlow"]
        print(
            f"{title:26}{run.seconds:9.2f}{run.megabytes:8.0f}{run.seconds / copy.seconds:9.2f}"
            f"{run.seconds / tensorflow.seconds:15.3f}{run.processor / tensorflow.processor:11.3f}"
            f"{run.megabytes / tensorflow.megabytes:11.3f}"
        )


def print_targets(runs: Mapping[str, Run]) -> bool:
    """Each target beside its measurement; True where all are met."""
    met = True
    print(f"\n{'target':54}{'measured':>10}{'at most':>10}")
    for target in TARGETS:
        try:
            measured, most = target.measured(runs), target.at_most(runs)
        except KeyError:  # of what `--only` left out
            continue
        verdict = "" if measured <= most else "MISSED"
        met = met and not verdict
        print(f"{target.title:54}{measured:10.2f}{most:10.2f} {target.unit:3}{verdict}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the large graph")
    parser.add_argument(
        "--only", default="", help="a part of the titles that are run: chain:, or several: cp|ops"
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds, 100,000 nodes")
    options = parser.parse_args()
    if not Path(GRAPHPATCH).exists():
        parser.error(f"{GRAPHPATCH} is missing: run scripts/test, then this with .venv/bin/python")
    if options.quick:
        options.rounds, options.nodes = 3, 100_000
    tasks = commands(options.folder, options.nodes)
    tasks = {
        title: task
        for title, task in tasks.items()
        if any(one in title for one in options.only.split("|"))
    }
    build(options.folder, options.nodes, tasks)
    runs = measure_all(tasks, options.folder, options.rounds)
    print_runs(runs)
    return 0 if print_targets(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
