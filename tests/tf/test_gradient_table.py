"""What graphpatch knows of ops, dtypes and hidden ops, against the TensorFlow that is installed."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch import opdefs
from graphpatch.analysis.doctor.survey import survey
from graphpatch.differentiation import flow
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.match.keys import ELEMENTWISE
from graphpatch.opdefs import DIFFERENTIABLE, DTYPE_NAMES, is_ref
from tests.graphs import opened
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
    graph = tf.Graph()

    def ask(name: str) -> Any:
        with graph.as_default():
            return gradient_trials.ask(ops[name]) if name in ops else None

    tf.compat.v1.disable_control_flow_v2()
    yield ask
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


# What tf.custom_gradient hides.

INNER = {"Mul", "Sigmoid", "Tanh", "Relu", "Square", "AddV2"}


@tf.custom_gradient  # type: ignore[untyped-decorator]
def two(a: Any, b: Any) -> Any:
    """Two results, of which one has an op that does not depend on the arguments' product."""
    return (tf.tanh(a) * b, tf.nn.relu(b)), lambda d0, d1: (d0, d1)


def beside(x: Any) -> Any:
    inner = tf.sigmoid(x)
    doubled = tf.custom_gradient(lambda value: (value * inner, lambda dy: dy * 2.0))
    return doubled(x) + tf.square(inner)


@pytest.mark.parametrize(
    "build",
    [*(tf.nn.swish, beside), lambda x: tf.multiply(*two(x, x + 1.0)), lambda x: two(x, x + 1.0)[0]],
)
def test_hidden_ops_have_no_gradient_and_no_others(build: Any) -> None:
    with tf.Graph().as_default() as graph:
        loss = tf.reduce_sum(build(tf.compat.v1.placeholder(tf.float32, [3])))
        main = opened(graph.as_graph_def()).main
        inner = [op for op in graph.get_operations() if op.type in INNER]
        unreached = {op.name for op in inner if tf.gradients(loss, op.outputs[0])[0] is None}
    hidden = {main.heads.names[index] for index in hidden_ops(main)}
    assert unreached
    assert {name for name in unreached if main.readers.get(name)} == hidden & {
        op.name for op in inner
    }


def test_the_names_of_dtypes() -> None:
    from tensorflow.core.framework import types_pb2

    for number in types_pb2.DataType.values():
        if number:
            dtype = tf.as_dtype(number)
            assert DTYPE_NAMES[number] == dtype.base_dtype.name
            assert is_ref(number) == dtype._is_ref_dtype


def test_the_dtypes_that_carry_gradients() -> None:
    from tensorflow.python.eager import backprop_util

    names = {name for name in DTYPE_NAMES.values() if hasattr(tf.dtypes, name)}
    assert {"resource", "variant"} | DIFFERENTIABLE == {
        name for name in names if backprop_util.IsTrainable(getattr(tf.dtypes, name))
    }


# The class `elementwise`: where one element of an input is changed, one of the output changes.

ELEMENTS = [0.3, 0.6, 0.2, 0.7, 0.4]
# Of integers and bools, or constant here.
UNTRIED = {"Invert", "IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalNot", "LogicalOr"}


@pytest.mark.slow
def test_one_element_of_the_output_hangs_on_one_of_each_input() -> None:
    done = set()
    for op in ELEMENTWISE:
        known, function = opdefs.lookup(op), getattr(tf.raw_ops, op, None)
        assert known is not None, op
        if function is None or op in UNTRIED:
            continue
        names = [name for name in inspect.signature(function).parameters if name != "name"]
        arguments: dict[str, Any] = {}
        for place, arg in enumerate(known.inputs):
            key = names[place]  # an input may have another name there
            arguments[key] = np.float32(ELEMENTS) + np.float32(0.05 * place)
            if arg.dtype == "bool":
                arguments[key] = np.float32(ELEMENTS) > 0.35
            elif arg.number_attr:
                arguments[key] = [np.float32(ELEMENTS), np.float32(ELEMENTS)]
        for name in names:
            if name == "DstT":
                arguments[name] = tf.float64
        before = np.asarray(function(**arguments))
        for key, value in arguments.items():
            if isinstance(value, np.ndarray):
                other = value.copy()
                other[3] = not other[3] if other.dtype == bool else other[3] + np.float32(0.2)
                after = np.asarray(function(**{**arguments, key: other}))
                same = (after == before) | (np.isnan(after) & np.isnan(before))
                assert same[[0, 1, 2, 4]].all(), (op, key)
        assert before.shape == (5,), op
        done.add(op)
    assert len(done) > 70
