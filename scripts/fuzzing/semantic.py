"""Random graphs, patched by random rules: forward bits, gradients and revert, beside TensorFlow."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

import graphpatch
from fuzzing.semantic_graphs import rules_of
from graphpatch.analysis.revert import revert

EACH = 25  # graphs of one process


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
            if (folder / f"{number}.refused").exists():
                told["not differentiable by TensorFlow once imported, patched or not"] += 1
                continue
            told["graphs compared"] += 1
            fault = _compared(folder, number)
            if fault:
                _find(folder, number, seed, fault, finds, told)


def _python(what: str, folder: Path, *rest: str) -> None:
    command = [sys.executable, "-m", "fuzzing.semantic_graphs", what, str(folder), *rest]
    subprocess.run(command, check=True)


def _patched(folder: Path, number: int, seed: int, told: Counter[str]) -> str:
    """Patch a graph and revert it; what is wrong with that."""
    _, rules = rules_of(Random(f"rules:{seed}:{number}"))
    original = folder / f"{number}.pb"
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
    return "" if back.read_bytes() == original.read_bytes() else "revert gives other bytes"


def _compared(folder: Path, number: int) -> str:
    """What differs between the patched graph and TensorFlow's own overrides."""
    error = folder / f"{number}.error"
    if error.exists():
        return error.read_text()
    answers = [np.load(folder / f"{number}.{name}.npz") for name in ("plain", "oracle", "patched")]
    plain, oracle, patched = ([one[key] for key in one.files] for one in answers)
    if plain[0].tobytes() != patched[0].tobytes():
        return f"forward: {plain[0]} and {patched[0]}"
    for place, (one, two) in enumerate(zip(oracle[1:], patched[1:], strict=True)):
        if not np.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True):
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
