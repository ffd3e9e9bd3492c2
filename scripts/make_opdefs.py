"""Make graphpatch/data/opdefs.bin, what TensorFlow's ops look like, and what was measured of them.

The first has their OpDef messages, graphpatch/data/opdefs.json the rest.

Two steps, each under the TensorFlow that it describes:

    python3.7 scripts/make_opdefs.py --dump v1.json     # under TensorFlow 1.15.5
    python scripts/make_opdefs.py --merge v1.json       # under TensorFlow 2.x, with graphpatch

Where both know an op, 2.x describes it. The table is the same on every run.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shape_trials import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "graphpatch" / "data" / "opdefs.json"

# What registers gradients of TensorFlow's own ops and is not imported with it.
GRADIENTS = ("while_v2", "map_ops")


def registered_ops() -> list[Any]:
    """Return the OpDef messages of every op in TensorFlow's C++ registry, by name."""
    from tensorflow.core.framework import op_def_pb2

    try:
        from tensorflow.python.client import pywrap_tf_session as c_api
    except ImportError:  # TensorFlow 1
        from tensorflow.python import pywrap_tensorflow as c_api
    ops = op_def_pb2.OpList.FromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return sorted(ops.op, key=lambda op: str(op.name))


def import_everything() -> None:
    """Import what registers further gradients, and under 1.15 every op of tf.contrib."""
    import tensorflow as tf

    python_ops = importlib.import_module("tensorflow.python.ops")
    for module in GRADIENTS:
        if Path(python_ops.__path__[0], module + ".py").exists():  # 1.15 has no map_ops
            importlib.import_module("tensorflow.python.ops." + module)
    if tf.__version__.startswith("1."):
        contrib = Path(tf.contrib.layers.__file__).parent.parent
        for path in sorted(contrib.glob("**/ops/*.py")):
            parts = path.relative_to(contrib).with_suffix("").parts
            importlib.import_module(".".join(("tensorflow", "contrib", *parts)))


def gradient_state(name: str) -> str:
    """Return what the gradient registry holds under this op type."""
    from tensorflow.python.framework import ops

    registry = getattr(ops, "gradient_registry", None) or ops._gradient_registry
    try:
        return "none" if registry.lookup(name) is None else "registered"
    except LookupError:
        return "missing"


def measure_apart(ops: Sequence[Any], ask: Callable[[Any], Row]) -> dict[str, Row]:
    """`ask` for each op, in child processes: some shape functions crash on odd shapes."""
    found: dict[str, Row] = {}
    while len(found) < len(ops):
        rest = ops[len(found) :]
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            measure_into(writer, rest, ask)
        os.close(writer)
        with os.fdopen(reader) as lines:
            found.update({op.name: json.loads(line) for op, line in zip(rest, lines)})
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            crashed = ops[len(found)].name
            print("not measured, its shape function crashes:", crashed, file=sys.stderr)
            found[crashed] = {}
        elif status:
            sys.exit(f"measuring {ops[len(found)].name} failed")
    return found


def measure_into(writer: int, ops: Sequence[Any], ask: Callable[[Any], Row]) -> NoReturn:
    """Return the child's part: one line of JSON for each op."""
    try:
        for op in ops:
            os.write(writer, json.dumps(ask(op)).encode() + b"\n")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def describe_all() -> Row:
    """Return the TensorFlow that runs: its version, and what it knows of each of its ops."""
    import tensorflow as tf

    import_everything()
    ops = registered_ops()
    rows = measure_apart(ops, measure)
    for op in ops:
        rows[op.name]["gradient"] = gradient_state(op.name)
        rows[op.name]["proto"] = base64.b64encode(op.SerializeToString()).decode()
    return {"version": tf.__version__, "ops": rows}


# What is left out of the messages: nothing reads it.
LEFT_OUT = {
    "OpDef": "summary description deprecation control_output is_aggregate"
    " allows_uninitialized_input is_distributed_communication",
    "ArgDef": "description handle_data experimental_full_type",
    "AttrDef": "description has_minimum minimum allowed_values",
}


def message(row: Row) -> Any:
    """Return the OpDef message of a row, without what nothing reads."""
    from graphpatch.protos import OpDef

    op = OpDef.FromString(base64.b64decode(row["proto"]))
    op.DiscardUnknownFields()
    for part in (op, *op.input_arg, *op.output_arg, *op.attr):
        for field in LEFT_OUT[part.DESCRIPTOR.name].split():
            part.ClearField(field)
    return op


def merge(old: Row, new: Row) -> tuple[bytes, str]:
    """Return the messages of all ops, and the table of what was measured, a line for each."""
    import msgspec

    from graphpatch import opdefs
    from graphpatch.protos import OpList

    ops, lines = OpList(), []
    for name in sorted({*old["ops"], *new["ops"]}):
        known_to = "1" if name not in new["ops"] else "both" if name in old["ops"] else "2"
        row = (old if known_to == "1" else new)["ops"][name]
        ops.op.append(message(row))
        measured = {key: value for key, value in row.items() if key != "proto"}
        own = msgspec.convert({**measured, "known_to": known_to}, opdefs.Measured)
        lines.append(json.dumps(name) + ":" + msgspec.json.encode(own).decode())
    versions = json.dumps([old["version"], new["version"]])
    table = '{"tensorflow":' + versions + ',"ops":{\n' + ",\n".join(lines) + "\n}}\n"
    return ops.SerializeToString(deterministic=True), table


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of TensorFlow's ops.")
    step = parser.add_mutually_exclusive_group(required=True)
    step.add_argument("--dump", type=Path, help="write what this TensorFlow knows to a file")
    step.add_argument("--merge", type=Path, help="merge such a file with what this one knows")
    parser.add_argument("--output", type=Path, default=TABLE, help="where --merge writes the table")
    args = parser.parse_args()
    found = describe_all()
    if args.dump:
        args.dump.write_text(json.dumps(found))
        return
    sys.path.insert(0, str(ROOT))
    messages, table = merge(json.loads(args.merge.read_text()), found)
    args.output.with_suffix(".bin").write_bytes(messages)
    args.output.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
