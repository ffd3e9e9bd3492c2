"""Gradients of real graphs against finite differences, in float64 where their ops have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FLOAT, DOUBLE = 1, 2

# Ops that read, or give, a float32 and nothing wider; of the first which inputs.
ONLY_READ = {"NonMaxSuppressionV2": (0, 1, 3)}
ONLY_GIVE = {"ResizeBilinear"}
BESIDE = 16.0  # how much larger than one rounding the error of a sum of many may be


@dataclass(frozen=True)
class Compared:
    """The derivative along a direction: by gradients, by differences, and how far these may err."""

    analytic: float
    numeric: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return abs(self.analytic - self.numeric) <= self.tolerance

    @property
    def tells(self) -> bool:
        """Whether the difference is exact enough to tell a right gradient from a wrong one."""
        return abs(self.numeric) > 20 * self.tolerance


def fed_part(
    graph_def: Any, given: Mapping[str, np.ndarray], outputs: Iterable[str], double: bool
) -> Any:
    """The part of a graph that its outputs need, fed by placeholders in place of some ops.

    With `double`, each float32 of it is a float64.
    """
    import tensorflow as tf

    opened = tf.compat.v1.GraphDef(versions=graph_def.versions)
    for node in graph_def.node:
        new = opened.node.add()
        if node.name in given:
            new.name, new.op = node.name, "Placeholder"
            new.attr["dtype"].type = FLOAT
            shape = [tf.compat.v1.Dimension(size) for size in given[node.name].shape]
            new.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        else:
            new.CopyFrom(node)
        new.attr.pop("_output_shapes", None)
    kept = tf.compat.v1.graph_util.extract_sub_graph(opened, list(outputs))
    return _in_double(kept) if double else kept


def _in_double(graph_def: Any) -> Any:
    """The graph with float64 for float32, but for ops that have no other, between Casts."""
    flows = _flows(graph_def)
    found = type(graph_def)(versions=graph_def.versions)
    for node in graph_def.node:
        if node.op in ONLY_READ:
            for slot in ONLY_READ[node.op]:
                name = f"{node.name}/narrow_{slot}"
                found.node.append(_cast(name, node.input[slot], DOUBLE, FLOAT))
                node.input[slot] = name
        elif node.name not in flows:
            _widen(node)
        if node.op in ONLY_GIVE:
            found.node.append(_cast(node.name, f"{node.name}/narrow", FLOAT, DOUBLE))
            node.name = f"{node.name}/narrow"
        found.node.append(node)
    return found


def _cast(name: str, text: str, source: int, target: int) -> Any:
    import tensorflow as tf

    node = tf.compat.v1.NodeDef(name=name, op="Cast", input=[text])
    node.attr["SrcT"].type, node.attr["DstT"].type = source, target
    return node


def _flows(graph_def: Any) -> set[str]:
    """The ops that pass on the flow of a TensorArray, which is a float32 whatever it holds."""
    flows = {
        n.name for n in graph_def.node if n.op in {"TensorArrayWriteV3", "TensorArrayScatterV3"}
    }
    starts = {f"{n.name}:1" for n in graph_def.node if n.op == "TensorArrayV3"}
    passes = {"Enter", "Merge", "Switch", "NextIteration", "Exit", "Identity"}
    before, passed = -1, set[str]()
    while len(passed) > before:
        before = len(passed)
        for node in graph_def.node:
            first = node.input[0] if node.input else ""
            if node.op in passes and (first in starts or first.partition(":")[0] in flows | passed):
                passed.add(node.name)
    return passed


def _widen(node: Any) -> None:
    import tensorflow as tf

    for key, attr in node.attr.items():
        if attr.type == FLOAT:
            attr.type = DOUBLE
        elif key == "value" and attr.tensor.dtype == FLOAT:
            value = tf.make_ndarray(attr.tensor).astype(np.float64)
            attr.tensor.CopyFrom(tf.make_tensor_proto(value))
        for place, kind in enumerate(attr.list.type):
            attr.list.type[place] = DOUBLE if kind == FLOAT else kind


def constants(graph_def: Any, inside: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The float constants of a graph that have elements, those left out that lie in its loops."""
    import tensorflow as tf

    found = {}
    for node in graph_def.node:
        value = node.attr["value"].tensor if node.op == "Const" else None
        if value is not None and value.dtype in (FLOAT, DOUBLE) and not node.input:
            array = tf.make_ndarray(value)
            if array.size and node.name not in set(inside):
                found[node.name] = array
    return found


def compared(
    path: Path,
    outputs: Iterable[str],
    given: Mapping[str, np.ndarray],
    feeds: Mapping[str, Any],
    double: bool,
    step: float,
) -> Compared:
    """The derivative of a weighted sum of the outputs along a random direction of what is given.

    Central differences at `step` and half of it: what they differ by bounds the error of the
    second; beside it there is what rounding does to the two values, divided by the step.
    """
    import tensorflow as tf

    import graphpatch

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph:
        graphpatch.import_model(path)
        loss = _weighted([graph.get_tensor_by_name(name) for name in outputs])
        points = [graph.get_tensor_by_name(f"{name}:0") for name in given]
        gradients = tf1.gradients(loss, points)
        assert any(gradient is not None for gradient in gradients)
        asked = {
            name: tf.convert_to_tensor(gradient)  # of a gather it is a few rows
            for name, gradient in zip(given, gradients, strict=True)
            if gradient is not None
        }
        kind = np.float64 if double else np.float32
        random = np.random.default_rng(5)
        at = {name: np.asarray(value, kind) for name, value in given.items()}
        way = {name: random.standard_normal(value.shape) for name, value in at.items()}
        with tf1.Session(graph=graph) as session:
            rest = {f"{name}:0": value for name, value in feeds.items()}

            def value(distance: float) -> float:
                moved = {f"{n}:0": (at[n] + distance * way[n]).astype(kind) for n in at}
                return float(session.run(loss, {**rest, **moved}))

            fed = {**rest, **{f"{name}:0": one for name, one in at.items()}}
            found = session.run(asked, fed)
            wide = (value(step) - value(-step)) / (2 * step)
            narrow = (value(step / 2) - value(-step / 2)) / step
            size = abs(value(0.0)) + 1.0
    analytic = sum(float(np.sum(found[n] * way[n])) for n in found)
    rounding = BESIDE * np.finfo(kind).eps * size / step
    return Compared(analytic, narrow, abs(wide - narrow) + rounding)


def _weighted(tensors: list[Any]) -> Any:
    import tensorflow as tf

    flat = [tf.reshape(one, [-1]) for one in tensors]
    sums = [
        tf.reduce_sum(one * tf.cos(tf.cast(tf.range(tf.size(one)), one.dtype) + 0.5))
        for one in flat
    ]
    return tf.add_n(sums)
