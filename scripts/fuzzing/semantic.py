"""Random graphs, patched by random rules: forward bits, gradients and revert, beside TensorFlow."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import graphpatch
from fuzzing.semantic_graphs import answer, differing, rules_of
from graphpatch.analysis.revert import revert
from graphpatch.graph.provenance import PROVENANCE_ATTR

EACH = 25  # graphs of one process
IMPORTED = "imported, TensorFlow has no or other gradients, patched or not"


def main(arguments: list[str]) -> int:
    """Try graphs until the time is over; 1 where one differs."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz semantic")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--folder", type=Path, default=Path("build/finds"))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    wanted = given.inputs or (10**9 if given.minutes else EACH)
    until = time.monotonic() + 60 * (given.minutes or 10**6)
    told: Counter[str] = Counter()
    first = 0
    while first < wanted and time.monotonic() < until:
        _batch(given.seed, first, min(EACH, wanted - first), given.folder, told)
        first += EACH
        print(", ".join(f"{key}: {count}" for key, count in told.items()), flush=True)
    return 1 if told["finds"] else 0


def _batch(seed: int, first: int, count: int, finds: Path, told: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="semantic-") as name:
        folder = Path(name)
        _python("build", folder, str(seed), str(first), str(count))
        for number in range(first, first + count):
            fault = _patched(folder, number, seed, told)
            if fault:
                _find(folder, number, seed, fault, finds, told)
        _python("run", folder)
        for path in sorted(folder.glob("*.patched.pb")):
            number = int(path.name.partition(".")[0])
            by_import = (folder / f"{number}.refused").exists()
            told[IMPORTED if by_import else "graphs compared"] += 1
            fault = _forward(folder, number) if by_import else _compared(folder, number)
            if fault:
                _find(folder, number, seed, fault, finds, told)


def _python(what: str, folder: Path, *rest: str) -> None:
    command = [sys.executable, "-m", "fuzzing.semantic_graphs", what, str(folder), *rest]
    subprocess.run(command, check=True)


def _patched(folder: Path, number: int, seed: int, told: Counter[str]) -> str:
    """Patch a graph and revert it; what is wrong with that."""
    _, rules = rules_of(Random(f"rules:{seed}:{number}"))
    original = folder / f"{number}.pb"
    if not original.exists():
        told["that TensorFlow itself cannot run"] += 1
        return ""
    try:
        result = graphpatch.apply(rules, graphpatch.load(original))
    except graphpatch.GraphpatchError as error:
        told[f"refused: {str(error)[:60]}"] += 1
        return ""
    patched = folder / f"{number}.patched.pb"
    result.model.save(patched)
    told["ops patched"] += sum(len(rule["matches"]) for rule in result.report["rules"])
    if not any(rule["matches"] for rule in result.report["rules"]):
        patched.unlink()
        told["without a match"] += 1
        return ""
    back = folder / f"{number}.back.pb"
    revert(graphpatch.load(patched)).model.save(back)
    if back.read_bytes() != original.read_bytes():
        return "revert gives other bytes"
    return _without_each(original, patched, rules, told)


def _without_each(
    original: Path, patched: Path, rules: list[dict[str, Any]], told: Counter[str]
) -> str:
    """Take each rule off alone: what differs from the graph that has only the others."""
    model = graphpatch.load(patched)
    for off in rules if len(rules) > 1 else ():
        try:
            left = revert(model, off["name"]).graph_def()
        except graphpatch.PatchError:  # another builds on it, or it matched nothing
            continue
        others = [rule for rule in rules if rule is not off]
        expected = graphpatch.apply(others, graphpatch.load(original)).graph_def()
        told["rules taken off alone"] += 1
        if _nodes(left) != _nodes(expected):
            return f"without {off['name']} alone it is not what the other rules make of it"
    return ""


def _nodes(graph: Any) -> list[tuple[str, str, Any]]:
    """Return nodes of the graph and each function, in no order, without what rules wrote down."""
    functions = ((one.signature.name, one.node_def) for one in graph.library.function)
    found = []
    for label, nodes in (("", graph.node), *functions):
        for node in nodes:
            node.attr.pop(PROVENANCE_ATTR, None)
            found.append((label, node.name, node))
    return sorted(found, key=itemgetter(0, 1))


def _forward(folder: Path, number: int) -> str:
    """Whether the output has other bits; where TensorFlow has no gradient, none was computed."""
    plain, patched = answer(folder, number, "plain"), answer(folder, number, "patched")
    if patched and plain[0].tobytes() != patched[0].tobytes():
        return f"forward: {plain[0]} and {patched[0]}"
    return ""


def _compared(folder: Path, number: int) -> str:
    """Return what differs between the patched graph and TensorFlow's own overrides."""
    error = folder / f"{number}.error"
    if error.exists():
        return error.read_text()
    if fault := _forward(folder, number):
        return fault
    oracle, patched = answer(folder, number, "oracle"), answer(folder, number, "patched")
    for place in differing(oracle, patched):
        one, two = oracle[place + 1], patched[place + 1]
        return f"gradient of x{place}: {one.tolist()} and {two.tolist()}"
    return ""


def _find(
    folder: Path, number: int, seed: int, fault: str, finds: Path, told: Counter[str]
) -> None:
    told["finds"] += 1
    place = finds / f"semantic-{seed}-{number}"
    place.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{number}.*"):
        shutil.copy(path, place)
    chosen, rules = rules_of(Random(f"rules:{seed}:{number}"))
    (place / "find.txt").write_text(f"{chosen}\n{rules}\n{fault}\n")
    print(f"{number}: {chosen}: {fault[:300]} -> {place}", flush=True)
