"""Time graphpatch: `python scripts/bench [PART ...]`, all parts but `start` by default.

| part | what is timed |
|---|---|
| commands | each command on a 553 MB VGG16 and on graphs of up to 1,000,000 nodes, beside `cp`, TensorFlow's own script and networkx alone |
| patterns | patterns of four ops, beside networkx alone |
| linear | each command on a graph and on one ten times as large, of five shapes, and many rules |
| fleet | 200 models by one process and by two |
| peers | other tools that insert ops into a graph |
| forward | the forward pass of a patched ResNet50, in one TensorFlow process |
| start | `graphpatch ops` beside another checkout: `--other FOLDER` |

Every measurement is a whole process: wall time, processor time, peak memory. The tasks of a part run
in turn, `--rounds` times, so that all meet the same machine. Ratios are of processor time within this
run, the least of all rounds; seconds and memory are medians. Exits 1 where a target is missed, or
where a task does not end with the exit code that it should have. Models are built in --folder where
they are missing; with outputs they take 2 GB of disk, and TensorFlow's side 8 GB of memory.
"""  # noqa: E501

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import parts
from bench.measuring import GRAPHPATCH, Part, measure_all, print_runs, print_targets

BY_DEFAULT = [name for name in parts.PARTS if name != "start"]


def main() -> int:
    """Measure the parts that are asked for, and say whether their targets are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", default=BY_DEFAULT)
    parser.add_argument("--folder", type=Path, default=parts.ROOT / "build" / "bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the largest graph")
    parser.add_argument("--only", default="", help="part of the titles to run: chain:, or cp|ops")
    parser.add_argument("--other", type=Path, help="the checkout that `start` compares with")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts.PARTS):
        parser.error(f"no part {min(unknown)!r}; there are: {', '.join(parts.PARTS)}")
    if not Path(GRAPHPATCH).exists():
        parser.error(f"{GRAPHPATCH} is missing: run scripts/test, then this with .venv/bin/python")
    options.folder.mkdir(parents=True, exist_ok=True)
    met = True
    for name in options.parts:
        part: Part = parts.PARTS[name](options)
        chosen = [word for word in options.only.split("|") if word]
        tasks = {
            title: task
            for title, task in part.tasks.items()
            if not chosen or any(word in title for word in chosen)
        }
        print(f"# {name}", flush=True)
        runs = measure_all(tasks, options.folder, options.rounds)
        print_runs(runs)
        met = print_targets(part.targets, runs) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
