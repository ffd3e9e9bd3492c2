"""Make graphpatch/data/gradients.json: into which inputs of an op TensorFlow's gradient flows.

Two steps, each under the TensorFlow that is asked:

    python3.7 scripts/make_gradients.py --dump v1.json    # under TensorFlow 1.15.5
    python scripts/make_gradients.py --merge v1.json      # under TensorFlow 2.x

Every op type with a registered gradient is asked (gradient_trials.py says how). Where the two
versions differ, the line has what 1.15 gives as well. The table is the same on every run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradient_trials
import make_opdefs

if TYPE_CHECKING:
    from collections.abc import Iterator

    Row = dict[str, Any]

TABLE = make_opdefs.ROOT / "graphpatch" / "data" / "gradients.json"

# What runs a body, or a frame, is differentiated by code of its own, and needs a graph around it.
CONTROL_FLOW = frozenset(
    "Case StatelessCase If StatelessIf While StatelessWhile Enter RefEnter Exit RefExit LoopCond"
    " Merge RefMerge NextIteration RefNextIteration Switch RefSwitch".split()
)


def describe_all() -> Row:
    """Return the TensorFlow that runs: its version, and what each gradient function gives."""
    import tensorflow as tf

    make_opdefs.import_everything()
    tf.compat.v1.disable_control_flow_v2()  # with it, the gradients of TensorArrays raise
    known = make_opdefs.registered_ops()
    ops = [op for op in known if is_asked(op.name)]
    rows = make_opdefs.measure_apart(ops, gradient_trials.ask)
    silent = sorted(name for name, row in rows.items() if not row)
    print(f"{len(silent)} not built:", ", ".join(silent), file=sys.stderr)
    return {"version": tf.__version__, "known": [op.name for op in known], "ops": rows}


def is_asked(name: str) -> bool:
    return make_opdefs.gradient_state(name) == "registered" and name not in CONTROL_FLOW


def merge(old: Row, new: Row) -> Iterator[str]:
    """Yield the lines of the table, one for each op."""
    dropped = set(new["known"]) - set(new["ops"])  # 2.x has the op, and no gradient of it
    before = {name: row for name, row in old["ops"].items() if name not in dropped}
    rows = {name: row for name, row in merged(before, new["ops"]) if len(row) > 1}
    versions = json.dumps([old["version"], new["version"]])
    readers = json.dumps(gradient_trials.SHAPE_READERS)
    yield '{"tensorflow":' + versions + ',"shape_readers":' + readers + ',"ops":['
    for place, name in enumerate(sorted(rows)):
        yield json.dumps(rows[name], separators=(",", ":")) + "," * (place < len(rows) - 1)
    yield "]}"


def merged(old: Row, new: Row) -> Iterator[tuple[str, Row]]:
    """Yield what each op gives in 2.x, and in 1.15 where that is something else."""
    for name in {*old, *new}:
        now = new.get(name) or old.get(name, {})
        row = dict({"name": name}, **now)
        before = old.get(name, {})
        if "inputs" in before and before["inputs"] != now.get("inputs"):
            row["before"] = before["inputs"]
        yield name, row


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of TensorFlow's gradients.")
    step = parser.add_mutually_exclusive_group(required=True)
    step.add_argument("--dump", type=Path, help="write what this TensorFlow gives to a file")
    step.add_argument("--merge", type=Path, help="merge such a file with what this one gives")
    parser.add_argument("--output", type=Path, default=TABLE, help="where --merge writes")
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    found = describe_all()
    if args.dump:
        args.dump.write_text(json.dumps(found))
        return
    lines = merge(json.loads(args.merge.read_text()), found)
    args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
