"""Time graphpatch beside other tools that insert ops into a graph, in one run.

The graph is a chain of which every third op is a Relu. The tools insert one op behind each;
graphpatch gives each another gradient, for which it inserts three, writes down how to take them out
again, and keeps the order of the file. Tools of TensorFlow 1.15 run in the Python that
GRAPHPATCH_TF1_PYTHON names, graph_def_editor in that of --graph-def-editor, where it is installed;
without, they are left out. One that takes longer than --seconds is stopped: its ratio is at least
what is printed. Exits 1 where graphpatch is not ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from bench import GRAPHPATCH, SCRIPTS

RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def processor(command: list[str], seconds: float) -> tuple[float, str]:
    """Processor seconds of a process, and a note if it was stopped or failed."""
    before, said = resource.getrusage(resource.RUSAGE_CHILDREN), ""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, env=environment)
        if done.returncode:
            said = "failed: " + done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        said = f"stopped after {seconds:.0f} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, said


def commands(model: Path, rules: Path, gde: str | None) -> dict[str, list[str]]:
    """What is run, by tool."""
    out, tf1 = str(model.with_suffix(".out")), os.environ.get("GRAPHPATCH_TF1_PYTHON")
    script = str(SCRIPTS / "peer_edits.py")
    found = {"graphpatch": [GRAPHPATCH, "apply", str(rules), str(model), "-o", out]}
    for tool in ("transform_graph", "graph_editor") if tf1 else ():
        found[tool] = [str(tf1), script, tool, str(model), out]
    if gde:
        found["graph_def_editor"] = [gde, script, "graph_def_editor", str(model), out]
    return found


def main() -> int:
    """Measure each tool once, and print ratios of processor time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SCRIPTS.parent / "build" / "bench")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=300, help="the most that a tool may take")
    parser.add_argument("--graph-def-editor", metavar="PYTHON", help="where it is installed")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model, rules = options.folder / f"chain-{options.nodes}.pb", options.folder / "guided.json"
    rules.write_text(json.dumps({"version": 1, "rules": [RULE]}))
    if not model.exists():
        script = [sys.executable, str(SCRIPTS / "models" / "build_large.py"), str(model), "--chain"]
        subprocess.run([*script, "--nodes", str(options.nodes)], check=True)
    ours, ahead = 0.0, True
    for tool, command in commands(model, rules, options.graph_def_editor).items():
        taken, said = processor(command, options.seconds)
        ours = ours or taken
        ahead = ahead and (taken >= ours or said.startswith("failed"))
        print(f"{tool:18}{taken:9.2f} s{taken / ours:8.1f} x  {said}", flush=True)
    return 0 if ahead else 1


if __name__ == "__main__":
    sys.exit(main())
