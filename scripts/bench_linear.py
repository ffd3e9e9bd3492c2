"""Time `revert`, `diff`, `doctor` and `match` on graphs of which one is ten times the other.

What is linear takes ten times as long. Every measurement is a whole process, its processor time
less that of starting: on a machine that has other work too, wall times say little. `match` has many
rules, each for one op, as `match --save` writes them; a tenth of them on the smaller graph. Exits 1
where something takes more than twice what is linear, or where what `revert` gives is not the model,
byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import subprocess
import sys
from pathlib import Path

from bench import GRAPHPATCH, SCRIPTS, measure

RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
SHARE, MOST = 10, 20
SMALLER = 50  # so many times smaller is the graph that `match` goes over


def build(folder: Path, nodes: int) -> Path:
    """The graph of so many nodes, where it is not there yet."""
    model = folder / f"large-{nodes}.pb"
    if not model.exists():
        script, partial = SCRIPTS / "models" / "build_large.py", folder / "partial"
        subprocess.run([sys.executable, script, partial, "--nodes", str(nodes)], check=True)
        partial.rename(model)
    return model


def saved_rules(folder: Path, rules: int) -> Path:
    """A file of so many rules, each for one op."""
    names = [f"tower/block{place:07}/relu" for place in range(1, 2 * rules) if place % 8][:rules]
    found = [{"name": name, **RULE, "match": {"name": name}, "expect": 1} for name in names]
    (folder / "saved.json").write_text(json.dumps({"version": 1, "rules": found}))
    return folder / "saved.json"


def times(folder: Path, nodes: int, rules: int) -> dict[str, float]:
    """Processor seconds of each command on a graph of so many nodes, without those of a start."""
    model, patched, reverted = build(folder, nodes), folder / "patched.pb", folder / "reverted.pb"
    saved, small = saved_rules(folder, rules), build(folder, nodes // SMALLER)
    commands: dict[str, list[str | Path]] = {
        "start": ["gradients", "guided_relu"],
        "apply": ["apply", folder / "rules.json", model, "-o", patched],
        "revert": ["revert", patched, "-o", reverted],
        "diff": ["diff", model, patched],
        "diff of equals": ["diff", model, reverted],
        "doctor": ["doctor", model],
        "match": ["match", saved, small],
    }
    found: dict[str, float] = {}
    for title, args in commands.items():
        command = [GRAPHPATCH, *[str(one) for one in args]]
        run = measure(command, folder / "log", 1 if title == "diff" else 0)
        found[title] = run.processor - found.get("start", 0)
        size = f"{rules} rules, {nodes // SMALLER}" if title == "match" else str(nodes)
        print(f"{title:16}{size:>20} nodes{found[title]:8.2f} s {run.megabytes:7.0f} MB")
    if not filecmp.cmp(model, reverted, shallow=False):
        raise SystemExit("what revert gave is not the model")
    return found


def main() -> int:
    """Measure, print, and say whether all is linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the larger graph")
    parser.add_argument("--rules", type=int, default=500, help="that match has, on fewer nodes")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "rules.json").write_text(json.dumps({"version": 1, "rules": [RULE]}))
    small = times(options.folder, options.nodes // SHARE, options.rules // SHARE)
    large = times(options.folder, options.nodes, options.rules)
    ratios = {title: large[title] / small[title] for title in large if title != "start"}
    for title, ratio in ratios.items():
        verdict = "" if ratio <= MOST else "MISSED"
        print(f"{title:16}{ratio:8.1f} times as long, at most {MOST}  {verdict}")
    return 0 if max(ratios.values()) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
