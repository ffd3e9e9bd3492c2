"""Running the gradients that `doctor` foretells: not None is not yet success."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.errors import ModelError
from graphpatch.formats.container import SAVED
from graphpatch.formats.model import Model
from graphpatch.formats.sizes import as_message
from graphpatch.graph.emit import graph_pieces
from graphpatch.runtime.importing import importing
from graphpatch.runtime.running import (
    Running,
    first_line,
    placeholders,
    seeded_variable,
    variables_of,
)
from graphpatch.runtime.values import GUESSES

# One example first: through a batch norm in training form nothing flows then, and that is told.
ONE_FIRST = ((1, (1,)), *GUESSES)
TRAINED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A pair of tensors, and the tensors of the way between them, by name."""

    source: str
    target: str
    way: Sequence[str] = ()


def run_pairs(
    model: Model, place: int, pairs: Sequence[Asked], control_flow_v2: bool = True
) -> list[dict[str, Any]]:
    """What tf.gradients gives for each pair in graph `place` of a model, and what running it does.

    Placeholders and variables get small seeded values, and so does the upstream gradient: random
    normal numbers, like the target in shape and dtype. `gradient` is `tensor`, `none` or `error`;
    `zero` whether all of it is zero; `says` it in words. The graph runs, with all that it does:
    `analysis.unsafe.refuse_unsafe` first, where it is not trusted.
    """
    import tensorflow as tf

    before = tf.compat.v1.control_flow_v2_enabled()
    _switch(control_flow_v2)
    try:
        return [_one(_imported(model, place), pair) for pair in pairs]
    finally:
        _switch(before)


def _switch(control_flow_v2: bool) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()


def _imported(model: Model, place: int) -> Any:
    """The tf.Graph of a model's graph, with the control-flow contexts that the file holds.

    Raises ModelError where it is larger than protobuf's 2 GB, or TensorFlow does not import it.
    """
    import tensorflow as tf

    graph = model.graphs[place]
    try:
        if model.container.path and not graph.is_object_based:
            meta, whole = _meta_graph(model, place), None
        else:
            meta, whole = None, as_message(tf.compat.v1.GraphDef, graph_pieces(graph))
    except ModelError as error:
        raise ModelError(f"{model.path}: {error}") from error
    with tf.Graph().as_default() as imported, importing(model.path):
        if meta is not None:
            tf.compat.v1.train.import_meta_graph(meta)
        else:
            tf.compat.v1.import_graph_def(whole, name="")
    return imported


def _meta_graph(model: Model, place: int) -> Any:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if model.container == SAVED:
        return as_message(SavedModel, model.pieces()).meta_graphs[place]
    return as_message(MetaGraphDef, model.pieces())


def _one(graph: Any, pair: Asked) -> dict[str, Any]:
    import tensorflow as tf

    with graph.as_default():
        target = graph.get_tensor_by_name(pair.target)
        names = list(dict.fromkeys((pair.source, *pair.way)))
        try:
            source = graph.get_tensor_by_name(pair.source)
            [found] = tf.gradients(target, [source])
            if found is not None:
                upstream = _upstream(target)
                [found] = tf.gradients(target, [source], upstream)
                along = _along(graph, target, names, upstream)
        except Exception as error:  # whatever a gradient function raises is the answer
            return _answer("error", says=f"tf.gradients raises {first_line(error)}")
    if found is None:
        return _answer("none", says="None")
    return _ran(graph, pair, found, along)


def _upstream(target: Any) -> Any:
    """Seeded random numbers to differentiate with; None, for ones, where the target is no float.

    Of ones the gradient is that of the sum, which for a softmax is constant.
    """
    import tensorflow as tf

    if target.dtype.base_dtype not in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        return None
    seed, dtype = [0, zlib.crc32(target.name.encode()) & 0x7FFFFFFF], target.dtype.base_dtype
    return tf.random.stateless_normal(tf.shape(target), seed, dtype=dtype)


def _along(graph: Any, target: Any, names: Sequence[str], upstream: Any) -> dict[str, Any]:
    """The gradient at each tensor of the way, where there is one."""
    import tensorflow as tf

    tensors = [graph.get_tensor_by_name(name) for name in names]
    floats = [t for t in tensors if t.dtype.is_floating and t.dtype == t.dtype.base_dtype]
    found = tf.gradients(target, floats, upstream) if floats else []
    return {t.name: dx for t, dx in zip(floats, found, strict=True) if dx is not None}


def _ran(graph: Any, pair: Asked, found: Any, along: Mapping[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    reasons: list[str] = []
    for size, shape in ONE_FIRST:
        try:
            values = _values(graph, {"": found, **along}, size, shape)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if not isinstance(error, tf.errors.CancelledError):  # it only tells of another failure
                reasons.append(first_line(error))
            if isinstance(error, (tf.errors.NotFoundError, tf.errors.UnimplementedError)):
                break  # other sizes do not help
            continue
        dx = _dense(values[""])
        if dx.any() or not dx.size:
            largest = float(np.abs(dx).max()) if dx.size else 0.0
            return _answer("tensor", ran=True, says=f"largest element {largest:.3g}")
        why = _where_zero(graph, pair, values)
        return _answer("tensor", ran=True, zero=True, says=f"exactly zero{why}")
    reason = reasons[0] if reasons else "CancelledError, and TensorFlow does not say why"
    return _answer("tensor", says=f"the gradient is built, and running it fails: {reason}")


def _where_zero(graph: Any, pair: Asked, values: Mapping[str, Any]) -> str:
    """The op of the way in which the gradient becomes zero."""
    at = [name for name in pair.way if name in values]
    zero = [name for name in at if not _dense(values[name]).any()]
    if not zero or zero == at:
        return ""
    last = pair.way[pair.way.index(zero[-1]) + 1]
    op = graph.get_tensor_by_name(last).op
    training = op.type in TRAINED and op.get_attr("is_training")
    why = ", a batch norm in training form: what it gives has mean 0, whatever it reads"
    return f", from {op.type} {op.name} on{why if training else ''}"


def _values(
    graph: Any, fetches: Mapping[str, Any], size: int, whole: tuple[int, ...]
) -> dict[str, Any]:
    """By seeded variables too: what a checkpoint holds is not needed to see a gradient flow."""
    variables = {op.name: seeded_variable(op, size, whole) for op in variables_of(graph)}
    running = Running(graph, placeholders(graph, size, whole, {}), variables)
    return running.evaluate(fetches)


def _dense(value: Any) -> Any:
    return np.asarray(getattr(value, "values", value))


def _answer(gradient: str, ran: bool = False, zero: bool = False, says: str = "") -> dict[str, Any]:
    return {"gradient": gradient, "ran": ran, "zero": zero, "says": says}
