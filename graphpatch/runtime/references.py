"""References of DeepLIFT, measured: what each activation reads when the model sees one input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats.destination import JSON_MARK, MARK, NO_CHECKSUM, marked
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.model import graph_with_tags
from graphpatch.formats.output import writing_file, writing_folder
from graphpatch.gradients.library import LIBRARY
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Node
from graphpatch.recipe_notes import activations_of
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import GraphRun, placeholders, require_tensorflow
from graphpatch.runtime.register import import_model
from graphpatch.runtime.values import fed_values

RESCALE = "deeplift_rescale"
INSIDE_CALL = (
    "a call may come to it with other inputs each time, so no tensor of the graph is its reference;"
    " @deeplift takes references from the batch there too"
)
# What @deeplift has a rule for, with references in the batch alone.
OF_BATCHES = LIBRARY["shap_max_pool_batch"], LIBRARY["shap_softmax_batch"]
BY_BATCH = {op_type for gradient in OF_BATCHES for op_type in gradient.ops}
IN_BATCH = "; @deeplift has a rule for it, with references in the batch"


@dataclass(frozen=True)
class References:
    """Rules with a reference for each unit, and the arrays that they name, by file."""

    rules: dict[str, Any]
    arrays: dict[str, Any]
    skipped: dict[str, str]

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Write the rules, and beside them the arrays, in a folder of the rules' name.

        Both take their names at the end.
        """
        files = {Path(name).name: [_marked_npy(array)] for name, array in self.arrays.items()}
        text = json.dumps({**self.rules, **JSON_MARK}, indent=2) + "\n"
        rules = writing_file(path, [marked(text.encode())])
        with writing_folder(path.with_suffix(""), files), rules:
            yield


def _marked_npy(array: Any) -> bytes:
    """Return an .npy file of an array, with graphpatch's mark as a comment in its header.

    By the mark a second run knows what it may replace, which np.save cannot write.
    """
    header = f"{np.lib.format.header_data_from_array_1_0(array)} # written {MARK}{NO_CHECKSUM}"
    padded = header.ljust(-(len(header) + 11) % 64 + len(header)) + "\n"
    start = np.lib.format.magic(1, 0) + len(padded).to_bytes(2, "little") + padded.encode()
    return marked(start + array.tobytes("A"))


def references(model: ModelLike, feed: Mapping[str, Any], stem: str = "references") -> References:
    """Return rules that give activations of the main graph their input on a reference.

    `feed` has the reference input, a batch of one, by tensor name; `stem` is the folder that the
    rules name their arrays in. `skipped` has what keeps TensorFlow's own gradient, so that the
    contributions need not add up to the difference: activations of several ops, Softmax, MaxPool,
    and all in functions. Raises GraphpatchError where a placeholder is missing, or nothing
    could be measured.
    """
    require_tensorflow("references are measured by")
    loaded = model_from("model", model)
    graph_read = graph_with_tags(loaded, "")
    ops, skipped = _measurable_activations(graph_read)
    if not ops:
        name, why = next(iter(skipped.items()), ("", ""))
        more = f"; {len(skipped)} cannot be measured, such as {name}: {why}" if skipped else ""
        raise ModelError(f"{loaded.path} has no activation to measure in its main graph{more}")
    with tf.Graph().as_default() as graph:
        import_model(loaded)
        fed = {name: np.asarray(value) for name, value in fed_values(feed).items()}
        missing = sorted({tensor.name for tensor in placeholders(graph)} - fed.keys())
        if missing:
            raise GraphpatchError(f"the feed has no {missing[0]}; it has: {', '.join(fed) or '-'}")
        inputs = {name: graph.get_operation_by_name(name).inputs[0].name for name in ops}
        values, reasons = GraphRun(graph, fed).run(sorted(set(inputs.values())), optimise=False)
    rules, arrays = [], {}
    for number, (name, tensor) in enumerate(sorted(inputs.items())):
        value, file = np.asarray(values.get(tensor)), f"{stem}/{number:03}.npy"
        if tensor not in values:
            skipped[name] = reasons.get(tensor, "it was not computed")
        elif value.ndim and value.shape[0] != 1:
            skipped[name] = f"it reads {list(value.shape)}: the reference is not a batch of one"
        else:
            arrays[file] = value
            patch = {"override_gradient": {RESCALE: {"reference": file}}}
            rules.append({"name": name, "match": {"name": name, "body": "main"}, "patch": patch})
    if not rules:
        raise GraphpatchError(f"nothing was measured: {next(iter(skipped.items()))}")
    return References({"version": 1, "rules": rules}, arrays, skipped)


def _measurable_activations(graph: Graph) -> tuple[list[str], dict[str, str]]:
    """Return the activations whose input can be measured; why the others are skipped, by name."""
    types = {*LIBRARY[RESCALE].ops, *LIBRARY[RESCALE].by_op_type}
    ops, skipped = [], {}
    pools = (Node(graph.main, index) for index in graph.main.by_type.get("MaxPool", ()))
    for kind, node in (*activations_of([graph]), *(("MaxPool", node) for node in pools)):
        if not node.body.is_main:
            skipped[f"{node.name} in function {node.body.label}"] = INSIDE_CALL
        elif kind in types:
            ops.append(node.name)
        else:
            batch = IN_BATCH if kind in BY_BATCH or kind.startswith("@") else ""
            skipped[node.name] = f"{kind} keeps TensorFlow's own gradient{batch}"
    return ops, skipped
