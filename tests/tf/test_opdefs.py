"""The table of ops against the TensorFlow that is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from graphpatch import opdefs
from graphpatch.analysis.rule_words import type_gradient
from graphpatch.differentiation import flow
from graphpatch.opdefs import FlatArg, flatten
from graphpatch.protos import OpDef as OpDefProto

tf = pytest.importorskip("tensorflow")

from tests.tf import live_nets  # noqa: E402

# Only under the version that the table was made from can every op be compared.
same_version = pytest.mark.skipif(
    tf.__version__ != opdefs.table().tensorflow[1],
    reason=f"the table is of TensorFlow {opdefs.table().tensorflow[1]}, here is {tf.__version__}",
)


@pytest.fixture(scope="module")
def registered() -> dict[str, Any]:
    """The OpDef message of every op in TensorFlow's registry."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session as c_api

    ops = op_def_pb2.OpList.FromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return {op.name: op for op in ops.op}


@pytest.fixture(scope="module")
def both(registered: dict[str, Any]) -> list[tuple[opdefs.OpDef, Any]]:
    """What the table says of each op, beside TensorFlow's message."""
    pairs = [(opdefs.lookup(name), proto) for name, proto in registered.items()]
    return [(op, proto) for op, proto in pairs if op is not None]


# Every op


@same_version
def test_the_table_has_every_op_and_no_other(registered: dict[str, Any]) -> None:
    table = {name: measured.known_to for name, measured in opdefs.table().ops.items()}
    assert not registered.keys() - table.keys()
    assert not [name for name in registered if table[name] == "1"]
    gone = table.keys() - registered.keys()
    # Ops that a build makes for itself (`_Mkl...` on x86) begin with an underscore.
    assert not [name for name in gone if table[name] != "1" and not name.startswith("_")]


@same_version
def test_args_attrs_and_flags(both: list[tuple[opdefs.OpDef, Any]]) -> None:
    for op, proto in both:
        registered = opdefs.from_proto(OpDefProto.FromString(proto.SerializeToString()))
        for key in ("name", "inputs", "outputs", "defaults", "stateful", "commutative"):
            assert getattr(op, key) == getattr(registered, key), op.name
        types = [[(attr.name, attr.type) for attr in each.attrs] for each in (op, registered)]
        assert types[0] == types[1], op.name


@same_version
def test_gradients(both: list[tuple[opdefs.OpDef, Any]]) -> None:
    from tensorflow.python.framework import ops

    for module in ("map_ops", "while_v2"):  # they register gradients when they are imported
        importlib.import_module(f"tensorflow.python.ops.{module}")
    for op, _ in both:
        try:
            function = ops.gradient_registry.lookup(op.name)
        except LookupError:
            assert op.gradient == "missing", op.name
        else:
            assert op.gradient == ("none" if function is None else "registered"), op.name


@same_version
def test_which_ops_have_the_gradient_of_their_function(
    both: list[tuple[opdefs.OpDef, Any]],
) -> None:
    """MapDataset and SymbolicGradient call functions, and TensorFlow has no gradient for them."""
    from tensorflow.python.ops import gradients_util

    for op, _ in both:
        if any(attr.type in ("func", "list(func)") for attr in op.attrs):
            called = gradients_util._IsPartitionedCall(SimpleNamespace(type=op.name))
            flows = called or op.gradient == "registered"
            assert type_gradient(op) == ("function" if flows else op.gradient), op.name


# The tensors of nodes that TensorFlow built


def function_ops() -> None:
    """Ops of every kind of arg: lists by number and by types, several outputs, functions."""
    x = tf.ones((4, 6), name="x")
    tf.split(x, 2, axis=1)
    tf.split(x, [1, 2, 3], axis=1)
    tf.concat([x, x, x], axis=0)
    tf.math.top_k(x, 2)
    tf.identity_n([x, tf.constant(1), tf.constant("s")])
    tf.dynamic_partition(x, [0, 1, 2, 0], 3)
    tf.unique(tf.constant([1, 2, 1]))
    scale = tf.ones(6)
    image = tf.cast(tf.reshape(x, (1, 2, 2, 6)), tf.float16)
    tf.raw_ops.FusedBatchNormV3(x=image, scale=scale, offset=scale, mean=scale, variance=scale)
    one_by_one = tf.function(lambda a, b: (b, tf.cast(a, tf.int64), a))
    one_by_one(x, tf.constant(True))
    tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 2.0), (tf.constant(0), x))
    tf.cond(x[0, 0] > 0, lambda: (x, tf.constant(1)), lambda: (x, tf.constant(2)))
    tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=3, element_dtype=tf.float32)
    tf.raw_ops.ReadVariableOp(
        resource=tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[]), dtype=tf.float64
    )
    tf.io.parse_single_example(
        tf.constant(""),
        {
            "sparse": tf.io.VarLenFeature(tf.int64),
            "words": tf.io.VarLenFeature(tf.string),
            "dense": tf.io.FixedLenFeature([2], tf.float32, [0.0, 0.0]),
        },
    )


def function_graph() -> Any:
    return tf.function(function_ops).get_concrete_function().graph


def main_graph() -> Any:
    """A v1 graph with reference dtypes."""
    with tf.Graph().as_default() as graph:
        live_nets.furnished()
    return graph


EXPECTED = {
    main_graph: "VariableV2 Assign Identity Placeholder FIFOQueueV2 QueueDequeueV2 IteratorGetNext"
    " LookupTableFindV2 PyFunc SaveV2 RestoreV2",
    function_graph: "Split SplitV ConcatV2 TopKV2 IdentityN DynamicPartition"
    " Unique FusedBatchNormV3 PartitionedCall StatelessWhile StatelessIf EmptyTensorList"
    " VarHandleOp ReadVariableOp ParseExampleV2",
}


@pytest.mark.parametrize("build", EXPECTED)
def test_dtypes_of_the_tensors_of_a_node(build: Any) -> None:
    operations = build().get_operations()
    assert {operation.type for operation in operations} >= set(EXPECTED[build].split())
    for operation in operations:
        told = flat(operation.node_def, "outputs")
        assert [(arg.dtype, arg.is_ref) for arg in told] == list(map(seen, operation.outputs))
        asked = flat(operation.node_def, "inputs")
        for arg, tensor in zip(asked, operation.inputs, strict=True):
            dtype, is_ref = seen(tensor)
            assert arg.dtype == dtype
            assert is_ref or not arg.is_ref  # whoever reads values alone takes both


def known(op_type: str) -> opdefs.OpDef:
    op = opdefs.lookup(op_type)
    assert op is not None, op_type
    return op


def flat(node: Any, which: str) -> list[FlatArg]:
    op = known(node.op)
    return flatten(op, getattr(op, which), node.attr.get)


def seen(tensor: Any) -> tuple[str, bool]:
    return tensor.dtype.base_dtype.name, tensor.dtype._is_ref_dtype


def test_how_a_function_body_spells_outputs() -> None:
    """Each output is read by an Identity: in the FunctionDef its input is as we spell it."""

    def body() -> None:
        function_ops()
        for operation in tf.compat.v1.get_default_graph().get_operations():
            for index, tensor in enumerate(operation.outputs):
                tf.raw_ops.Identity(input=tensor, name=f"read/{operation.name}/{index}")

    nodes = tf.function(body).get_concrete_function().function_def.node_def
    by_name = {node.name: node for node in nodes}
    readers = [node for node in nodes if node.name.startswith("read/")]
    assert len(readers) > 40
    for reader in readers:
        name, index = reader.name.removeprefix("read/").rsplit("/", 1)
        arg = flat(by_name[name], "outputs")[int(index)]
        assert reader.input[0] == f"{name}:{arg.name}:{arg.index}"
        assert flat(reader, "outputs")[0].dtype == arg.dtype


# What keeps the shape, when it is run

BESIDE_OTHERS = ("FakeQuantWithMinMaxVars", "Cumsum", "SelectV2", "Roll", "QuantizeAndDequantizeV2")


def trials() -> Iterator[tuple[opdefs.OpDef, int]]:
    """Ops that can be run with no attr set and all inputs alike, and some others."""
    for op in map(known, opdefs.op_types()):
        alike = {(arg.type_attr, arg.number_attr, arg.is_ref) for arg in op.inputs}
        simple = len(alike) == 1 and not (op.stateful or op.inputs[0].type_list_attr)
        if hasattr(tf.raw_ops, op.name) and (simple or op.name in BESIDE_OTHERS):
            yield from ((op, k) for k in op.keeps_shape if k < len(op.inputs))


def run_shape(op: opdefs.OpDef, k: int, dtype: Any) -> tuple[int, ...] | None:
    """The shape of output 0 on a CPU; None where there is no such op or kernel."""
    arguments, like = {}, op.inputs[k]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        for arg in op.inputs:
            kind = tf.as_dtype(arg.dtype) if arg.dtype else dtype
            same = arg is like or (arg.type_attr == like.type_attr != "")
            single = op.name == "QuantizeAndDequantizeV2" and arg is not like
            filling = "1" if kind == tf.string else tf.cast(1, kind)
            tensor = tf.fill((3, 5) if same and not single else (), filling)
            arguments[arg.name] = [tensor] if arg.number_attr else tensor
        try:
            getattr(tf.raw_ops, op.name)(**arguments)
            return tuple(session.run(graph.get_operations()[-1].outputs[0]).shape)
        except (ValueError, TypeError, tf.errors.OpError):
            return None


@pytest.mark.slow
@same_version
def test_what_keeps_the_shape_keeps_it_when_run() -> None:
    ran = set()
    for op, k in trials():
        for dtype in (tf.float32, tf.int32, tf.string, tf.complex64):
            shape = run_shape(op, k, dtype)
            assert shape in (None, (3, 5)), (op.name, k)
            ran.update([op.name] if shape else [])
    assert len(ran) > 130
    assert ran >= {"Relu", "Mul", "Softmax", "LogicalAnd", "Round", *BESIDE_OTHERS}


def test_which_ops_are_step_functions() -> None:
    steps = set(filter(flow.is_step, opdefs.op_types()))
    assert steps == {"Ceil", "Floor", "FloorDiv", "Rint", "Round", "TruncateDiv"}
    assert flow.gives("Sign") == "zero"
