"""The patched files that `matrix.py` hands to each TensorFlow, with what should come of them.

Each is a small graph of its own, `y` of `x`, patched with what users get by default. `right` is the
gradient that the rules ask for at `matrix_consumer.X`, by closed form; `default` is TensorFlow's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matrix_consumer import X

import graphpatch

W = np.array([1.0, -1.0, 2.0], np.float32)
POSITIVE = (X > 0) * 1.0
RELU = np.maximum(X, 0)


def rule(op: str, patch: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"match": {"op": op}, "patch": patch, **more}


def override(gradient: Any) -> dict[str, Any]:
    return {"override_gradient": gradient}


GUIDED = rule("Relu", override("guided_relu"))


class Case(NamedTuple):
    """How y is made of x, the rule, and the gradients; `kind` as `matrix_consumer.WAYS` has it."""

    name: str
    kind: str
    build: Callable[[Any], Any]
    rule: Mapping[str, Any]
    forward: Any
    right: Any
    default: Any = None
    emit: str = "auto"


def relu(x: Any) -> Any:
    import tensorflow as tf

    return tf.nn.relu(x) * W


def rounded(x: Any) -> Any:
    import tensorflow as tf

    return tf.round(x) * W


def signed(x: Any) -> Any:
    import tensorflow as tf

    return tf.sign(x) * W


def plain(x: Any) -> Any:
    import tensorflow as tf

    return tf.multiply(x, W, name="scaled")


def called(x: Any) -> Any:
    """Relu in the body of a function that PartitionedCall calls."""
    import tensorflow as tf

    return tf.function(lambda x: tf.nn.relu(x), autograph=False)(x) * W


def looped(x: Any) -> Any:
    """Relu twice, in the body of a While (or of a v1 loop)."""
    import tensorflow as tf

    def body(step: Any, x: Any) -> tuple[Any, Any]:
        return step + 1, tf.nn.relu(x)

    return tf.while_loop(lambda step, _: step < 2, body, [0, x])[1] * W


GUIDES = np.maximum(W, 0) * POSITIVE

# fmt: off
CASES = (
    Case("key of TensorFlow", "pb", rounded, rule("Round", {"straight_through": True}),
         np.round(X) * W, W),
    Case("key to register", "pb", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE, "attr"),
    Case("construction", "pb", signed, rule("Sign", {"surrogate_gradient": "2 * x"}),
         np.sign(X) * W, 2 * W),
    Case("linear gradient", "pb", plain,
         rule("Mul", {"filter_gradient": {"reverse": {"strength": 3}}}), X * W, -3 * W, W),
    Case("function", "pb", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("function in a called body", "pb", called, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("function in a While body", "pb", looped, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("function, .pbtxt", "pbtxt", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("function in a v1 loop, .meta", "meta", looped, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("TF1 SavedModel", "saved_model", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("TF2 SavedModel, exported", "saved_model", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("TF2 SavedModel, patched", "saved_model", relu, GUIDED, RELU * W, GUIDES, W * POSITIVE),
    Case("TF2 SavedModel, While body", "saved_model of loops", looped, GUIDED, RELU * W, GUIDES,
         W * POSITIVE),
)
# fmt: on


def meta_graph(case: Case) -> Any:
    """Return the unpatched graph, without attrs that older TensorFlows do not know."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.disable_control_flow_v2 if case.kind == "meta" else tf1.enable_control_flow_v2)()
    try:
        with tf1.Graph().as_default():
            tf.identity(case.build(tf1.placeholder(tf.float32, [3], name="x")), name="y")
            meta = tf1.train.export_meta_graph(strip_default_attrs=True)
    finally:
        tf1.enable_control_flow_v2()
    for node in meta.graph_def.node:
        node.attr.pop("debug_name", None)
    return meta


def save_tf1(case: Case, folder: Path) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [3], name="x")
        tf1.saved_model.simple_save(session, str(folder), {"x": x}, {"y": case.build(x)})


def save_tf2(case: Case, folder: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    spec = tf.TensorSpec([3], tf.float32, name="x")
    serving = tf.function(lambda x: {"y": case.build(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serving})


def built(case: Case, place: Path) -> tuple[Path, dict[str, Any]]:
    """Return the unpatched model on disk, and what `apply` is told besides the rules."""
    if case.name == "TF1 SavedModel":
        save_tf1(case, place)
    elif case.name in ("TF2 SavedModel, patched", "TF2 SavedModel, While body"):
        save_tf2(case, place)
    else:
        meta, suffix = meta_graph(case), ".meta" if case.kind == "meta" else ".pb"
        message = meta if case.kind == "meta" else meta.graph_def
        place = place.with_suffix(suffix)
        place.write_bytes(message.SerializeToString(deterministic=True))
    if case.name != "TF2 SavedModel, exported":
        return place, {}
    from graphpatch.formats.destination import Export

    return place, {"export": Export(("x",), ("y",))}


def build(folder: Path) -> None:
    """Write all files, and files.json that lists them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = []
    for number, case in enumerate(CASES):
        suffix = "" if "saved_model" in case.kind else f".{case.kind}"
        model, options = built(case, folder / f"{number}-before")
        rules = [{**case.rule, "emit": case.emit}]
        graphpatch.apply(rules, model, **options).model.save(folder / f"{number}{suffix}")
        numbers = {
            key: None if (value := getattr(case, key)) is None else np.float32(value).tolist()
            for key in ("forward", "right", "default")
        }
        path = f"{number}{suffix}"
        alone = case.build is looped
        listed.append(
            {"name": case.name, "kind": case.kind, "path": path, "alone": alone, **numbers}
        )
    (folder / "files.json").write_text(json.dumps(listed, indent=1))
