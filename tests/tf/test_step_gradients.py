"""The op types whose registered gradient is None or zeros, against TensorFlow."""

from __future__ import annotations

import pytest

from graphpatch import opdefs
from graphpatch.differentiation import flow

tf = pytest.importorskip("tensorflow")

# Their gradients run in a place of their own: on a mesh, under XLA, in a debugger, in a loop.
ELSEWHERE = {"CopyToMeshGrad", "DebugGradientIdentity", "Exit", "XlaClusterOutput"}

# Elementwise in float32, so that they can be built on one or two like placeholders.
SIMPLE = [
    op.name
    for op in opdefs.table().ops
    if op.keeps_shape
    and op.name not in ELSEWHERE
    and op.gradient == "registered"
    and op.known_to != "1"
    and len(op.inputs) in (1, 2)
    and all(arg.type_attr == "T" and not arg.number_attr for arg in op.inputs)
    and {attr.name for attr in op.attrs} == {"T"}
]


def gradients(op_type: str) -> list[object] | None:
    """What comes back at [0.5, 1.5] with dy = 1; None where the op takes no float32."""
    known = opdefs.lookup(op_type)
    assert known is not None
    with tf.Graph().as_default() as graph:
        inputs = [tf.constant([0.5, 1.5]) for _ in known.inputs]
        try:
            y = graph.create_op(op_type, inputs).outputs[0]
        except (TypeError, ValueError):
            return None
        found = tf.gradients(y, inputs) if y.dtype.is_floating else [None]
        with tf.compat.v1.Session() as session:
            return [None if dx is None else session.run(dx) for dx in found]


@pytest.mark.every(5)
@pytest.mark.parametrize("op_type", SIMPLE)
def test_ops_says_none_and_zero_of_just_the_step_functions(op_type: str) -> None:
    found = gradients(op_type)
    if found is None:
        pytest.skip(f"{op_type} takes no float32")
    expected = flow.gives(op_type)
    assert all(dx is None for dx in found) == (expected == "none")
    if expected == "zero":
        assert all((dx == 0).all() for dx in found)


def test_every_step_function_is_asked() -> None:
    steps = {op.name for op in opdefs.table().ops if flow.is_step(op.name)}
    assert steps == {"Ceil", "Floor", "FloorDiv", "Rint", "Round", "TruncateDiv"}
    assert steps | {"Sign"} <= set(SIMPLE)
