"""Time `graphpatch match --pattern` on generated graphs beside networkx alone on the same files.

Patterns of four ops: plain, with wildcards in the middle, with an optional op, with a run of ops.
Every measurement is a whole process: start, reading the file, matching, printing every match.
networkx alone is what one would write without graphpatch's index: the whole body as a DiGraph, and
VF2 over it for what must be there of the pattern (it knows no optional ops and no runs). One round
runs each once, in turn; the table shows medians within this one run. Ratios and growth are of
processor time, as other work on the machine is not in it; what is promised in seconds is wall time,
and asks for a machine that does nothing else. Exits 1 where a target is missed, or the two find
another number of matches. The graphs (of 100,000 and of 1,000,000 nodes) are built in --folder
where they are missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench import GRAPHPATCH, SCRIPTS, Run, measure, progress

SECONDS, MEGABYTES = 20.0, 3000.0  # at most, on 1,000,000 nodes
GROWTH = 10.0  # at most, in processor time, from 100,000 nodes to ten times as many

PATTERNS = {
    "plain": "Conv2D -> BiasAdd -> Mul -> AddV2",
    "wildcards": "Conv2D -> * -> * -> AddV2",
    "optional": "Conv2D -> BiasAdd -> Mul? -> AddV2",
    "run": "Conv2D -> BiasAdd ->+ Mul|AddV2 -> Relu",
}
ALONE = ("plain", "wildcards")  # what networkx can be asked


def large(folder: Path, nodes: int) -> Path:
    """The graph of that many nodes, built where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    model, partial = folder / f"large-{nodes}.pb", folder / f"large-{nodes}.partial"
    if not model.exists():
        script = SCRIPTS / "models" / "build_large.py"
        subprocess.run([sys.executable, script, partial, "--nodes", str(nodes)], check=True)
        partial.rename(model)
    return model


def commands(folder: Path, sizes: list[int], alone: int) -> dict[str, list[str]]:
    """What is timed, by title; networkx on graphs of at most `alone` nodes."""
    found = {}
    for nodes in sizes:
        model = str(large(folder, nodes))
        for title, text in PATTERNS.items():
            found[f"{title} {nodes:,}"] = [GRAPHPATCH, "match", "--pattern", text, model]
            if title in ALONE and nodes <= alone:
                script = [sys.executable, __file__, "--networkx", model]
                found[f"{title} {nodes:,} networkx"] = [*script, text]
    return found


def measure_all(tasks: Mapping[str, list[str]], folder: Path, rounds: int) -> dict[str, Run]:
    runs: dict[str, list[Run]] = {title: [] for title in tasks}
    for number in range(rounds):
        for title, command in tasks.items():
            progress(f"round {number + 1} of {rounds}: {title}")
            runs[title].append(measure(command, folder / f"{title.replace(' ', '-')}.log"))
    progress("")
    return {title: Run(*map(median, zip(*each, strict=True))) for title, each in runs.items()}


def counts(tasks: Mapping[str, list[str]], folder: Path) -> dict[str, int]:
    """How many matches each printed."""
    logs = {title: folder / f"{title.replace(' ', '-')}.log" for title in tasks}
    first = {title: log.read_text().split("\n", 1)[0] for title, log in logs.items()}
    return {title: int(line.split()[-2]) for title, line in first.items()}


def print_runs(runs: Mapping[str, Run], found: Mapping[str, int]) -> bool:
    """Each pattern, with ratios to networkx; True where both find the same number."""
    same = True
    print(
        f"{'':22}{'matches':>9}{'seconds':>9}{'of CPU':>8}{'MB':>7}{'networkx':>10}"
        f"{'of CPU':>8}{'MB':>7}{'ratio':>8}"
    )
    for title, run in runs.items():
        if title.endswith(" networkx"):
            continue
        line = f"{title:22}{found[title]:9,}{run.seconds:9.2f}{run.processor:8.2f}"
        line += f"{run.megabytes:7.0f}"
        alone = runs.get(f"{title} networkx")
        if alone is not None:
            ratio = run.processor / alone.processor
            line += f"{alone.seconds:10.2f}{alone.processor:8.2f}{alone.megabytes:7.0f}{ratio:8.3f}"
            same = same and found[title] == found[f"{title} networkx"]
        print(line)
    return same


def targets(runs: Mapping[str, Run], sizes: list[int]) -> Iterator[tuple[str, float, float, str]]:
    """What is promised: its title, what was measured, what is allowed, the unit."""
    small, big = sizes[0], sizes[-1]
    allowed = SECONDS * big / 1_000_000
    for title in PATTERNS:
        run, less = runs[f"{title} {big:,}"], runs[f"{title} {small:,}"]
        yield f"{title}: {big:,} nodes", run.seconds, allowed, "s"
        yield f"{title}: {small:,} nodes", less.seconds, allowed * small / big, "s"
        yield f"{title}: growth", run.processor / less.processor, GROWTH * big / small / 10, "x"
        yield f"{title}: memory", run.megabytes, MEGABYTES, "MB"


def print_targets(runs: Mapping[str, Run], sizes: list[int]) -> bool:
    """Each target beside its measurement; True where all are met."""
    met = True
    print(f"\n{'target':34}{'measured':>10}{'at most':>10}")
    for title, measured, most, unit in targets(runs, sizes):
        verdict = "" if measured <= most else "MISSED"
        met = met and not verdict
        print(f"{title:34}{measured:10.2f}{most:10.2f} {unit:3}{verdict}")
    return met


def networkx_alone(path: str, text: str) -> None:
    """The whole main graph as a DiGraph, and VF2 over it."""
    import networkx as nx
    from networkx.algorithms.isomorphism import DiGraphMatcher

    import graphpatch

    body = graphpatch.load(path).graphs[0].main
    whole: Any = nx.DiGraph()
    whole.add_nodes_from((node.name, {"op": node.op}) for node in body)
    for node in body:
        producers = map(body.producer, node.data_inputs)
        whole.add_edges_from((one.name, node.name) for one in producers if one)
    types = text.split(" -> ")
    wanted: Any = nx.DiGraph()
    wanted.add_nodes_from((place, {"op": op}) for place, op in enumerate(types))
    nx.add_path(wanted, range(len(types)))
    matcher: Any = DiGraphMatcher(whole, wanted, lambda one, two: two["op"] in ("*", one["op"]))
    count = sum(1 for _ in matcher.subgraph_monomorphisms_iter())
    print(f"matched: {count} ops")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs=2, default=[100_000, 1_000_000])
    parser.add_argument("--alone", type=int, default=100_000, help="nodes at most for networkx")
    parser.add_argument("--networkx", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.networkx:
        networkx_alone(*options.networkx)
        return 0
    tasks = commands(options.folder, options.sizes, options.alone)
    runs = measure_all(tasks, options.folder, options.rounds)
    same = print_runs(runs, counts(tasks, options.folder))
    met = print_targets(runs, options.sizes)
    if not same:
        print("networkx alone finds another number of matches")
    return 0 if met and same else 1


if __name__ == "__main__":
    sys.exit(main())
