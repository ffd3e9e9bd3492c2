"""TensorFlow asked for gradients, and which ops it looked up for them."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphpatch import opdefs
from graphpatch.names import OpKey
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import first_line, nodes_in, require_tensorflow


@dataclass(frozen=True, slots=True)
class GradientAnswer:
    """One gradient: `tensor` with its value, `none`, or `error` with what TensorFlow says."""

    kind: str
    value: Any = None
    says: str = ""

    def __str__(self) -> str:
        return {"none": "None", "tensor": "a tensor"}.get(self.kind, self.says)


class RaisedError(Exception):
    """tf.gradients raises; the text says what."""


def gradients(
    ys: Sequence[Any],
    xs: Sequence[Any],
    upstream: Sequence[Any] | None = None,
    apart: bool = False,
    **options: Any,
) -> list[Any]:
    """Build what flows back from `ys` to each of `xs` in their graph; None where nothing does.

    `upstream` is what arrives at `ys`: ones by default. With `apart`, nothing flows through one of
    `xs` to another. `options` are others of `tf.compat.v1.gradients`.
    """
    more = {"colocate_gradients_with_ops": True, **options}  # as tf.gradients does
    stopped = list(xs) if apart else None
    return list(tf.compat.v1.gradients(ys, xs, upstream, stop_gradients=stopped, **more))


def gradients_or_raised(
    y: Any, xs: Sequence[Any], upstream: Any = None, dense: bool = False
) -> list[Any]:
    """Return the gradient of a tensor with respect to each of others, weighted by `upstream`.

    It is None where none flows. With `dense`, a sparse one is made a tensor. Raises RaisedError for
    whatever a gradient function raises.
    """
    with y.graph.as_default():
        try:
            dxs = gradients([y], xs, None if upstream is None else [upstream])
            return [tf.convert_to_tensor(dx) if dense and dx is not None else dx for dx in dxs]
        except Exception as error:
            raise RaisedError(f"tf.gradients raises {first_line(error)}") from error


def seeded_upstream(tensor: Any) -> Any:
    """Return seeded random numbers like a tensor, to differentiate it with; zeros of no floats.

    Of ones the gradient is that of the sum, which for a softmax is constant.
    """
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return tf.zeros_like(tensor)
    seed = [0, zlib.crc32(tensor.name.encode()) & 0x7FFFFFFF]
    return tf.cast(tf.random.stateless_normal(tf.shape(tensor), seed), tensor.dtype.base_dtype)


def op_types_in(graph_def: Any) -> set[str]:
    """Return the op types of a GraphDef, those in its functions too."""
    return {node.op for node in nodes_in(graph_def)}


def warn_of_newer(before: set[str], after: set[str]) -> None:
    """Say that TensorFlow 1.15, which knew all op types of a graph, does not know new ones."""
    added = opdefs.newer_than_1_15(after - before)
    if added and not opdefs.newer_than_1_15(before):
        warnings.warn(
            f"the gradients were built by TensorFlow 2 and have {', '.join(added)}, which "
            "TensorFlow 1.15 does not know: load the result in TensorFlow 2",
            stacklevel=3,
        )


@contextmanager
def recorded() -> Iterator[set[OpKey]]:
    """Note each op whose gradient TensorFlow looks up meanwhile.

    `get_gradient_function` is asked of each op that an upstream gradient came to, whether its key
    is registered or its function has a gradient of its own in the library; nothing is built of it
    but by who asked. What C++ differentiates (SymbolicGradient over a body) does not ask.
    """
    from tensorflow.python.framework import ops

    asked, original = set[OpKey](), ops.get_gradient_function

    def look_up(op: Any) -> Any:
        is_body = hasattr(op.graph, "outer_graph")
        asked.add((op.graph.name if is_body else "main", op.name))
        return original(op)

    ops.get_gradient_function = look_up
    try:
        yield asked
    finally:
        ops.get_gradient_function = original


@contextmanager
def control_flow(is_v2: bool) -> Iterator[None]:
    """Import and differentiate with control flow v2, or as after disable_control_flow_v2()."""
    require_tensorflow("gradients are run by")
    tf1 = tf.compat.v1
    switches = {True: tf1.enable_control_flow_v2, False: tf1.disable_control_flow_v2}
    before = tf1.control_flow_v2_enabled()
    switches[is_v2]()
    try:
        yield
    finally:
        switches[before]()
