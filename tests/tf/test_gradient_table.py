"""The table of gradients against the TensorFlow that is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from graphpatch.differentiation import flow
from tests.models.doctor_oracle import Agreement, compare_pairs

tf = pytest.importorskip("tensorflow")

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
ROWS = flow.gradient_table().ops
STEP = 12  # the others are asked in a slow run

same_version = pytest.mark.skipif(
    tf.__version__ != flow.gradient_table().tensorflow[1],
    reason=f"the table is of TensorFlow {flow.gradient_table().tensorflow[1]}, "
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


@pytest.mark.every(6)
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
def test_the_table_has_what_tensorflow_gives(row: flow.GradientRow, asked: Any) -> None:
    found = asked(row.name)
    if found is None:
        pytest.skip("an op of TensorFlow 1")
    flows, reads = (
        tuple(None if some is None else tuple(some) for some in found.get(key, ()))
        for key in ("inputs", "reads")
    )
    assert (flows, reads, found.get("raises", "")) == (row.inputs, row.reads, row.raises)
    refused = {attr: tuple(told) for attr, told in found.get("refuses", {}).items()}
    assert refused == row.refuses


def test_a_gradient_that_is_zero_is_zero_when_it_is_run() -> None:
    assert flow.into("ReluGrad", 1, 2, "float32") == "zero"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ends = [tf.constant([0.3, 0.6]) for _ in range(2)]
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


def raising(x: Any) -> Any:
    """Ops whose gradients raise in all cases, and with one value of a flag."""
    sparse = tf.sparse.from_dense(x)
    given = {"a_indices": sparse.indices, "a_values": tf.reshape(x, [4]), "a_shape": [2, 2]}
    given |= {f"b{name[1:]}": value for name, value in given.items()}
    yield tf.raw_ops.SparseSparseMaximum(**given).output_values
    yield tf.raw_ops.SparseSparseMinimum(**given).output_values
    yield tf.raw_ops.EagerPyFunc(input=[x], token="of another process", Tout=[tf.float32])[0]
    for fast in (False, True):
        yield tf.raw_ops.MatrixSolveLs(matrix=x, rhs=x, l2_regularizer=0.0, fast=fast)


def test_doctor_foretells_what_gradient_functions_raise() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2], "x")
        for place, one in enumerate(raising(x)):
            tf.identity(one, f"y{place}")
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    [seen] = survey(graphpatch.load(meta), ["x"], [f"y{place}" for place in range(5)])
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
    assert found.differing == []
    assert found.verdicts == {"error": 4, "flows": 1}
    assert {one.kind for pair in seen.diagnoses for one in pair.findings} == {"refuses"}
