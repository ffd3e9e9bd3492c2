"""Running the gradients that `doctor` foretells: not None is not yet success."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.formats.container import SAVED
from graphpatch.formats.model import Model
from graphpatch.graph.emit import graph_pieces
from graphpatch.graph.wire import piece_bytes

FED = frozenset({"Placeholder", "PlaceholderV2"})
VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
TRAINED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})

# What unknown sizes, and shapes of unknown rank, may be: the first guess that runs is taken.
GUESSES = ((1, (1,)), (2, (2,)), (1, (1, 8, 8, 3)), (1, ()), (4, (2, 3)), (32, (1, 32, 32, 3)))
TIMEOUT = 10_000  # milliseconds: some graphs wait for a queue that nobody fills


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
    """The tf.Graph of a model's graph, with the control-flow contexts that the file holds."""
    import tensorflow as tf

    graph = model.graphs[place]
    raw = b"".join(map(piece_bytes, graph_pieces(graph)))
    with tf.Graph().as_default() as imported:
        if model.container.path and not graph.is_object_based:
            meta = _meta_graph(model, place)
            tf.compat.v1.train.import_meta_graph(meta)
        else:
            tf.compat.v1.import_graph_def(tf.compat.v1.GraphDef.FromString(raw), name="")
    return imported


def _meta_graph(model: Model, place: int) -> Any:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    raw = b"".join(map(piece_bytes, model.pieces()))
    if model.container == SAVED:
        return SavedModel.FromString(raw).meta_graphs[place]
    return MetaGraphDef.FromString(raw)


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
            return _answer("error", says=f"tf.gradients raises {_first_line(error)}")
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
    for size, shape in GUESSES:
        try:
            values = _values(graph, {"": found, **along}, size, shape)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if not isinstance(error, tf.errors.CancelledError):  # it only tells of another failure
                reasons.append(_first_line(error))
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
    graph: Any, fetches: Mapping[str, Any], size: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    import tensorflow as tf

    feeds = dict(_feeds(graph, size, shape))
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=TIMEOUT)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        _assign(graph, session, size, shape)
        values: dict[str, Any] = session.run(dict(fetches), feeds)
    return values


def _feeds(graph: Any, size: int, shape: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    for op in graph.get_operations():
        if op.type in FED:
            tensor = op.outputs[0]
            yield tensor, _value(tensor.name, tensor.dtype, tensor.shape, size, shape)


def _assign(graph: Any, session: Any, size: int, shape: tuple[int, ...]) -> None:
    """Give each variable a value; what a checkpoint holds is not needed to see a gradient flow."""
    import tensorflow as tf

    with graph.as_default():
        for op in graph.get_operations():
            if op.type in VARIABLES:
                dtype, given = op.get_attr("dtype"), tf.TensorShape(op.get_attr("shape"))
                value = tf.constant(_value(op.name, dtype, given, size, shape), dtype)
                handle = op.outputs[0]
                if op.type == "VarHandleOp":
                    session.run(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
                else:
                    session.run(tf.compat.v1.assign(handle, value, validate_shape=False).op)


def _value(name: str, dtype: Any, given: Any, size: int, shape: tuple[int, ...]) -> Any:
    """Seeded by the name: small floats, zeros and ones, or empty strings."""
    sizes = shape if given.rank is None else tuple(dim or size for dim in given.as_list())
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if dtype.base_dtype.name == "string":
        return np.full(sizes, b"", dtype=object)
    is_number = dtype.is_floating or dtype.is_complex
    values: Any = random.standard_normal(sizes) if is_number else random.integers(0, 2, size=sizes)
    return np.asarray(values).astype(dtype.base_dtype.as_numpy_dtype)


def _dense(value: Any) -> Any:
    return np.asarray(getattr(value, "values", value))


def _answer(gradient: str, ran: bool = False, zero: bool = False, says: str = "") -> dict[str, Any]:
    return {"gradient": gradient, "ran": ran, "zero": zero, "says": says}


def _first_line(error: Exception) -> str:
    noise = ("Graph execution", "Detected at node", "Node:", " ", "\t")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(noise)]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
