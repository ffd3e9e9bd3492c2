"""Checksum what `apply` writes over a folder of models, to compare before and after a change.

Usage: output_checksums.py FOLDER > sums.txt. One line a model and rules: the checksum of the
patched bytes and of the report, or the error in full. What was patched is reverted too, and must
be the model's own bytes again. Where two lists of lines are the same, so is every output.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.errors import GraphpatchError
from graphpatch.graph.wire import piece_bytes

RULES: dict[str, list[dict[str, Any]]] = {
    "guided_relu": [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
    "attr": [
        {
            "match": {"op": ["Relu", "Relu6", "Tanh", "Sigmoid"]},
            "patch": {"override_gradient": {"scale": 0.5}},
            "emit": "attr",
        }
    ],
    "clip": [
        {
            "match": {"op": ["Relu", "Tanh", "MatMul", "Conv2D", "Mul", "Add", "Softmax"]},
            "patch": {"override_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
        }
    ],
    "scale": [
        {
            "match": {"op": ["Relu", "Sub", "BiasAdd", "Sigmoid", "AddV2"]},
            "patch": {"override_gradient": {"scale": 0.5}},
        }
    ],
    "registered": [
        {"match": {"op": ["Relu", "Tanh"]}, "patch": {"override_gradient": {"registered": "Mine"}}}
    ],
    "filter": [
        {"match": {"op": ["Relu", "MatMul"]}, "patch": {"filter_gradient": "reverse"}},
    ],
    "stop": [{"match": {"op": ["Relu", "BiasAdd"]}, "patch": {"stop_gradient": True}}],
    "two": [
        {"match": {"op": ["Relu", "Tanh"]}, "patch": {"override_gradient": "zero"}},
        {"match": {"op": ["MatMul", "Conv2D"]}, "patch": {"override_gradient": {"scale": 2.0}}},
    ],
    "through": [
        {"match": {"op": ["Sign", "Round", "Floor", "Relu"]}, "patch": {"straight_through": True}}
    ],
    "main": [
        {
            "match": {"op": ["Relu", "Mul", "Add", "Sub", "Tanh", "Sigmoid"], "body": "main"},
            "patch": {"override_gradient": {"clip": {"min": -1.0, "max": 1.0}}},
        }
    ],
}


def digest(data: bytes) -> str:
    """Return some letters that tell bytes from other bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def models(folder: Path) -> Iterator[Path]:
    """Yield what can be a model in a folder and below, in order of names."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".pb", ".pbtxt", ".meta"} and path.is_file():
            yield path.parent if path.stem == "saved_model" else path


def outcome(path: Path, rules: list[dict[str, Any]], original: bytes) -> str:
    """Return what a rule does to a model: checksums, or the error."""
    try:
        result = graphpatch.apply(rules, path)
    except GraphpatchError as error:
        return f"{type(error).__name__} {str(error)!r}"
    patched = b"".join(map(piece_bytes, result.model.pieces()))
    report = digest(json.dumps(result.report).encode())
    try:
        back = graphpatch.revert(result).model
        same = b"".join(map(piece_bytes, back.pieces())) == original
    except GraphpatchError as error:
        return f"{digest(patched)} {report} {type(error).__name__} {str(error)!r}"
    return f"{digest(patched)} {report} {'reverted' if same else 'NOT REVERTED'}"


def main() -> None:
    """Print a line for each model and each rule."""
    for path in models(Path(sys.argv[1])):
        try:
            model = graphpatch.load(path)
        except GraphpatchError as error:
            print(path, type(error).__name__, str(error))
            continue
        original = b"".join(map(piece_bytes, model.pieces()))
        for name, rules in RULES.items():
            print(path.relative_to(sys.argv[1]), name, outcome(path, rules, original), flush=True)


if __name__ == "__main__":
    main()
