"""References of DeepLIFT, measured: what each activation reads when the model sees one input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats.given import ModelLike
from graphpatch.formats.load import model_from
from graphpatch.formats.messages import chosen
from graphpatch.gradients.library import LIBRARY
from graphpatch.graph.body import Body
from graphpatch.runtime.import_model import import_model
from graphpatch.runtime.running import Running, placeholders
from graphpatch.runtime.values import tensor_name

GRADIENT = "deeplift_rescale"
INSIDE = (
    "a call may come to it with other inputs each time, so no tensor of the graph is its reference;"
    " @deeplift takes references from the batch there too"
)
LARGE = 1 << 14  # elements of a tensor that is written as a file, not into the rules


@dataclass(frozen=True)
class References:
    """Rules with a reference for each unit, and the arrays that they name, by file."""

    rules: dict[str, Any]
    arrays: dict[str, Any]
    skipped: dict[str, str]

    def save(self, path: str | Path) -> None:
        """Write the rules, and beside them the arrays, in a folder of the rules' name."""
        import msgspec

        target = Path(path)
        for name, array in self.arrays.items():
            file = target.parent / name
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, array)
        text = msgspec.json.format(msgspec.json.encode(self.rules), indent=2)
        target.write_bytes(text + b"\n")


def references(model: ModelLike, feed: Mapping[str, Any], stem: str = "references") -> References:
    """Rules that give each activation of the main graph its input on a reference as reference.

    `feed` has the reference input, a batch of one, by tensor name; `stem` is the folder that the
    rules name their arrays in. Raises GraphpatchError where a placeholder is missing, or nothing
    could be measured.
    """
    import tensorflow as tf

    loaded = model_from("model", model)
    graph_read = chosen(loaded, "")
    ops = _activations(graph_read.main)
    inside = {
        f"{name} in function {body.label}": INSIDE
        for body in graph_read.bodies
        if not body.is_main
        for name in _activations(body)
    }
    if not ops:
        more = f"; {len(inside)} are in functions: {INSIDE}" if inside else ""
        raise ModelError(f"{loaded.path} has no activation in its main graph{more}")
    with tf.Graph().as_default() as graph:
        import_model(loaded)
        given = {tensor_name(name): np.asarray(value) for name, value in feed.items()}
        _check(graph, given)
        inputs = {name: graph.get_operation_by_name(name).inputs[0].name for name in ops}
        values, reasons = Running(graph, given).run(sorted(set(inputs.values())), optimise=False)
    return _written(inputs, values, reasons, stem, inside)


def _activations(body: Body) -> list[str]:
    types = (*LIBRARY[GRADIENT].ops, *LIBRARY[GRADIENT].by_op_type)
    return [body.heads.names[place] for one in types for place in body.by_type.get(one, ())]


def _check(graph: Any, feed: Mapping[str, Any]) -> None:
    missing = sorted(placeholders(graph, 1, (), {}).keys() - feed.keys())
    if missing:
        raise GraphpatchError(f"the feed has no {missing[0]}; it has: {', '.join(feed) or '-'}")


def _written(
    inputs: Mapping[str, str],
    values: Mapping[str, Any],
    reasons: Mapping[str, str],
    stem: str,
    inside: Mapping[str, str],
) -> References:
    rules, arrays, skipped = [], {}, dict(inside)
    for number, (name, tensor) in enumerate(sorted(inputs.items())):
        if tensor not in values:
            skipped[name] = reasons.get(tensor, "it was not computed")
            continue
        value = np.asarray(values[tensor])
        if value.ndim and value.shape[0] != 1:
            skipped[name] = f"it reads {list(value.shape)}: the reference is not a batch of one"
            continue
        file = f"{stem}/{number:03}.npy"
        arrays[file] = value
        gradient = {GRADIENT: {"reference": file}}
        match = {"name": name, "body": "main"}
        rules.append({"name": name, "match": match, "patch": {"override_gradient": gradient}})
    if not rules:
        raise GraphpatchError(f"nothing was measured: {next(iter(skipped.items()))}")
    return References({"version": 1, "rules": rules}, arrays, skipped)
