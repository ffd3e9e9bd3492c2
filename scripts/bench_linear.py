"""Time every command on graphs of which one is some times the other: what is linear grows so too.

The graphs: a chain of which every third op is patched, a line of ops that are one run of a pattern,
one tensor that all ops read, ops below ever more scopes, a tenth as many functions as nodes, and
many rules, each for one op, as `match --save` writes them. Every measurement is a whole process,
its processor time less that of starting: on a machine that has other work too, wall times say
little. Exits 1 where something grows more than twice as much as the graph, or where what `revert`
gives is not the model, byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench import GRAPHPATCH, SCRIPTS, measure

import graphpatch

RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
FIRST = {"name": "first", "match": {"op": "Relu"}, "patch": {"filter_gradient": "reverse"}}


class Shape(NamedTuple):
    """How a graph is built, and the pattern that is looked for in it."""

    script: list[str]
    pattern: str
    parts: bool = True  # whether one op reads the other, so that the gradient comes in parts
    units: bool = True  # whether the main graph has activations to measure


SHAPES = {
    "chain": Shape(["build_large.py", "--chain"], "Mul -> Add -> Relu -> Mul"),
    "line": Shape(["build_shapes.py", "line"], "Placeholder ->+ Tanh -> Relu"),
    "wide": Shape(["build_shapes.py", "wide"], "Placeholder -> Relu", parts=False),
    "deep": Shape(["build_shapes.py", "deep"], "Tanh -> Relu"),
    "functions": Shape(["build_shapes.py", "functions"], "Relu ->+ * -> Tanh", units=False),
}
LEAST = 0.25  # seconds: what takes less is taken for so much, as starting varies by some of it
FEWER = 50  # so many times fewer nodes has the graph that many rules go over
SMALLER = 10  # and those that doctor, view and split look at


def built(folder: Path, shape: str, nodes: int) -> Path:
    """The graph of this shape, where it is not there yet."""
    model, partial = folder / f"{shape}-{nodes}.pb", folder / f"{shape}-{nodes}.partial"
    if not model.exists():
        script, *options = SHAPES[shape].script
        command = [sys.executable, str(SCRIPTS / "models" / script), str(partial), *options]
        subprocess.run([*command, "--nodes", str(nodes)], check=True)
        partial.rename(model)
    return model


def saved_rules(folder: Path, rules: int) -> Path:
    """A file of so many rules, each for one op."""
    names = [f"layer_{place}/relu" for place in range(rules)]
    found = [{"name": name, **RULE, "match": {"name": name}, "expect": 1} for name in names]
    (folder / "saved.json").write_text(json.dumps({"version": 1, "rules": found}))
    return folder / "saved.json"


def seconds(folder: Path, args: list[str | Path], code: int = 0) -> float:
    """Of processor time, that one command takes; its exit code is known."""
    return measure([GRAPHPATCH, *map(str, args)], folder / "log", code).processor


def of_shape(folder: Path, shape: str, nodes: int) -> dict[str, float]:
    """Processor seconds of each command on a graph of so many nodes."""
    model, rules = built(folder, shape, nodes), folder / "rules.json"
    patched, reverted = folder / "patched.pb", folder / "reverted.pb"
    found = {
        "ops": seconds(folder, ["ops", model]),
        "apply": seconds(folder, ["apply", rules, model, "-o", patched]),
        "check": seconds(folder, ["check", rules, patched]),
        "verify --no-run": seconds(folder, ["verify", "--no-run", model, patched]),
        "revert": seconds(folder, ["revert", patched, "-o", reverted]),
        "revert --rule": one_rule_off(folder, model),
        "diff": seconds(folder, ["diff", model, patched], 1),
        "match --explain": seconds(folder, ["match", rules, model, "--explain"]),
        "match --pattern": searched(folder, model, SHAPES[shape].pattern),
    }
    if not filecmp.cmp(model, reverted, shallow=False):
        raise SystemExit(f"what revert gave is not the model: {model}")
    return found | of_smaller(folder, shape, nodes // SMALLER)


def one_rule_off(folder: Path, model: Path) -> float:
    """Processor seconds of taking the last of two rules off, each at every Relu."""
    rules, patched = folder / "two.json", folder / "two.pb"
    rules.write_text(json.dumps({"version": 1, "rules": [FIRST, {"name": "last", **RULE}]}))
    seconds(folder, ["apply", rules, model, "-o", patched])
    return seconds(folder, ["revert", "--rule", "last", patched, "-o", folder / "first.pb"])


def searched(folder: Path, model: Path, pattern: str) -> float:
    """Processor seconds of finding every match of a pattern."""
    rule = {"match": {"pattern": pattern}, "patch": {"stop_gradient": True}}
    rules = folder / "pattern.json"
    rules.write_text(json.dumps({"version": 1, "rules": [rule]}))
    return seconds(folder, ["match", "--json", rules, model])


def of_smaller(folder: Path, shape: str, nodes: int) -> dict[str, float]:
    """Processor seconds of commands that look at all that flows back, or run the graph."""
    model, patched = built(folder, shape, nodes), folder / "smaller.pb"
    seconds(folder, ["apply", folder / "rules.json", model, "-o", patched])
    (graph,) = graphpatch.load(model).graphs
    names = [node.name for node in graph.main]
    ends = ["--wrt", "x:0", "--cut", f"{names[len(names) // 2]}:0", "--loss", f"{names[-1]}:0"]
    found = {"references": measured(folder, model)} if SHAPES[shape].units else {}
    for title, one in (("", model), (", patched", patched)):
        found[f"doctor{title}"] = seconds(folder, ["doctor", one])
        found[f"view{title}"] = seconds(folder, ["view", one, "-o", folder / "page.html"])
        if SHAPES[shape].parts:
            found[f"split{title}"] = seconds(folder, ["split", one, *ends, "-o", folder / "parts"])
    return found


def measured(folder: Path, model: Path) -> float:
    """Processor seconds of measuring what each activation reads."""
    feed, out = folder / "feed.npz", folder / "references"
    given: dict[str, Any] = {"x:0": np.ones((1, 1, 1, 1), np.float32)}
    np.savez(feed, **given)
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".json").unlink(missing_ok=True)
    return seconds(folder, ["references", model, "--feed", feed, "-o", out.with_suffix(".json")])


def of_rules(folder: Path, nodes: int, rules: int) -> dict[str, float]:
    """Processor seconds of commands with so many rules."""
    saved, model = saved_rules(folder, rules), built(folder, "chain", nodes)
    return {
        "match": seconds(folder, ["match", saved, model]),
        "apply": seconds(folder, ["apply", saved, model, "-o", folder / "patched.pb"]),
    }


def printed(shape: str, small: dict[str, float], large: dict[str, float], times: float) -> float:
    """Print how each command grew; the most that one did, as a part of how the graph grew."""
    worst = 0.0
    for title, taken in large.items():
        growth = max(taken, LEAST) / max(small[title], LEAST)
        verdict = "" if growth <= 2 * times else "MISSED"
        worst = max(worst, growth / times)
        print(f"{shape:10}{title:19}{small[title]:9.2f} s{taken:9.2f} s{growth:8.1f} x  {verdict}")
    return worst


def main() -> int:
    """Measure, print, and say whether all is linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rules", type=int, default=500, help="the most")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "rules"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "rules.json").write_text(json.dumps({"version": 1, "rules": [RULE]}))
    start, worst = seconds(options.folder, ["gradients", "guided_relu"]), 0.0
    for less, more in zip(options.nodes, options.nodes[1:], strict=False):
        print(f"{less:,} nodes, then {more:,}")
        for shape in options.shapes or [*SHAPES, "rules"]:
            small, large = (
                {
                    title: taken - start
                    for title, taken in (
                        of_rules(options.folder, nodes // FEWER, options.rules * nodes // more)
                        if shape == "rules"
                        else of_shape(options.folder, shape, nodes)
                    ).items()
                }
                for nodes in (less, more)
            )
            worst = max(worst, printed(shape, small, large, more / less))
    return 0 if worst <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
