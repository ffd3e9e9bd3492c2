"""The table of gradients against the TensorFlow that is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from graphpatch.differentiation import flow, gradient_table

tf = pytest.importorskip("tensorflow")

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
ROWS = gradient_table.gradient_table().ops
STEP = 12  # the others are asked in a slow run

same_version = pytest.mark.skipif(
    tf.__version__ != gradient_table.gradient_table().tensorflow[1],
    reason=f"the table is of TensorFlow {gradient_table.gradient_table().tensorflow[1]}, "
    f"here is {tf.__version__}",
)


@pytest.fixture(scope="module")
def asked() -> Any:
    """What the script does that makes the table."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import gradient_trials
        import make_opdefs
    finally:
        sys.path.remove(str(SCRIPTS))
    make_opdefs.import_everything()
    ops = {op.name: op for op in make_opdefs.registered_ops()}
    with tf.Graph().as_default():
        tf.compat.v1.disable_control_flow_v2()
        yield lambda name: gradient_trials.ask(ops[name]) if name in ops else None
        tf.compat.v1.enable_control_flow_v2()


@same_version
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=pytest.mark.slow if place % STEP else ())
        for place, row in enumerate(ROWS)
        # Shape functions of Cudnn's may crash; EagerPyFunc needs a Python function of the process.
        if not row.name.startswith("Cudnn") and row.name != "EagerPyFunc"
    ],
)
def test_the_table_has_what_tensorflow_gives(row: gradient_table.GradientRow, asked: Any) -> None:
    found = asked(row.name)
    if found is None:
        pytest.skip("an op of TensorFlow 1")
    flows, reads = (
        tuple(None if some is None else tuple(some) for some in found.get(key, ()))
        for key in ("inputs", "reads")
    )
    assert (flows, reads, found.get("raises", "")) == (row.inputs, row.reads, row.raises)


x = [0.3, 0.6]
BUILT = {
    "PadV2": lambda a, b, c: tf.raw_ops.PadV2(
        input=a, paddings=[[1, 1]], constant_values=tf.reduce_sum(c)
    ),
    "Betainc": lambda a, b, c: tf.raw_ops.Betainc(a=a, b=b, x=c),
    "Polygamma": lambda a, b, c: tf.raw_ops.Polygamma(a=a, x=b),
    "Zeta": lambda a, b, c: tf.raw_ops.Zeta(x=a + 2.0, q=b),
    "ReluGrad": lambda a, b, c: tf.raw_ops.ReluGrad(gradients=a, features=b),
    "Select": lambda a, b, c: tf.raw_ops.Select(condition=[True, False], x=a, y=b),
}
EXPECTED = {
    "PadV2": (True, None, False),
    "Betainc": (False, False, True),
    "Polygamma": (False, True, None),
    "Zeta": (False, True, None),
    "ReluGrad": (True, True, None),
    "Select": (True, True, None),
}


@pytest.mark.parametrize("op", BUILT)
def test_what_tf_gradients_gives(op: str) -> None:
    """The same from outside: tf.gradients over ops that are read by others."""
    with tf.Graph().as_default():
        ends = [tf.constant(x) for _ in range(3)]
        found = tf.gradients(BUILT[op](*ends), ends)
    for one, expected in zip(found, EXPECTED[op], strict=True):
        assert expected is None or (one is not None) == expected


def test_a_gradient_that_is_zero_is_zero_when_it_is_run() -> None:
    assert flow.into("ReluGrad", 1, 2, "float32") == "zero"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ends = [tf.constant(x) for _ in range(2)]
        found = tf.gradients(tf.raw_ops.ReluGrad(gradients=ends[0], features=ends[1]), ends)
        assert session.run(found[0]).tolist() == [1, 1]
        assert session.run(found[1]).tolist() == [0, 0]


def test_only_the_first_output_of_a_batch_norm_has_a_gradient() -> None:
    """Of its mean the gradient is there, and zero."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        image, one = tf.random.normal([2, 2, 2, 1], seed=1), tf.ones([1])
        norm = tf.raw_ops.FusedBatchNormV3(
            x=image, scale=one, offset=one, mean=one, variance=one, is_training=True
        )
        [found] = tf.gradients(norm.batch_mean, image)
        assert not session.run(found).any()
    assert flow.into("FusedBatchNormV3", 0, 5, "float32", "batch_mean") == "zero"
