"""Where gradients flow, by the table alone: op types, inputs, outputs, overrides."""

from __future__ import annotations

import pytest

from graphpatch import opdefs
from graphpatch.differentiation import flow
from graphpatch.differentiation.flow import is_linear
from tests import graphs
from tests.graphs import main, node

EXPECTED = {
    "none": "PadV2 2, Betainc 0, Betainc 1, Polygamma 0, Zeta 0, FusedBatchNormV3 3,"
    " FusedBatchNormV3 4, Floor 0, StopGradient 0, ScaleAndTranslate 2",
    "flows": "PadV2 0, Betainc 2, Polygamma 1, Zeta 1, FusedBatchNormV3 0, Mul 1, Switch 0,"
    " Conv2D 1, BatchToSpaceND 0",  # no trial could be made of the last
    "zero": "Sign 0, ReluGrad 1, MaxPoolGrad 0, MaxPoolGrad 1",
}
INPUTS = [(pair, word) for word, pairs in EXPECTED.items() for pair in pairs.split(", ")]


@pytest.mark.parametrize(("pair", "word"), INPUTS)
def test_what_comes_to_an_input(pair: str, word: str) -> None:
    op, slot = pair.split()
    known = opdefs.lookup(op)
    assert known is not None
    assert flow.into(op, int(slot), len(known.inputs), "float32") == word


def test_a_list_of_inputs_counts_as_one() -> None:
    assert [flow.into("ConcatV2", slot, 4, "float32") for slot in range(3)] == ["flows"] * 3
    assert flow.into("ConcatV2", 3, 4, "float32") == "none"
    assert flow.into("Print", 0, 3, "float32") == "flows"
    assert [flow.into("Print", slot, 3, "float32") for slot in (1, 2)] == ["none"] * 2
    assert flow.into("AddN", 2, 3, "float32") == "flows"  # as the override of a Select


def test_only_some_outputs_reach_an_input() -> None:
    assert flow.into("FusedBatchNormV3", 0, 5, "float32", "y") == "flows"
    assert flow.into("FusedBatchNormV3", 0, 5, "float32", "batch_mean") == "zero"


def test_dtypes() -> None:
    assert flow.into("Mul", 0, 2, "int32") == "none"
    assert flow.into("ReadVariableOp", 0, 1, "resource") == "flows"
    assert flow.into("TensorListPushBack", 0, 2, "variant") == "flows"
    assert flow.into("Identity", 0, 1, "variant") == "flows"


@pytest.mark.parametrize(
    ("op_type", "raised"),
    [
        ("PreventGradient", "LookupError: Gradient explicitly disabled."),
        ("SparseDenseCwiseAdd", "NotImplementedError"),
        ("SparseSparseMaximum", "TypeError"),  # TensorFlow's own mistake
        ("EagerPyFunc", "AssertionError"),  # no file holds its function
        ("Relu", ""),
        ("MatrixSolveLs", ""),  # but where it is not fast
    ],
)
def test_what_is_raised(op_type: str, raised: str) -> None:
    says = flow.refused(main(node("n", op_type)).node("n"), op_type)
    assert says.startswith(raised)
    assert bool(says) is bool(raised)


def test_step_functions() -> None:
    assert flow.gives("Floor") == "none"
    assert flow.gives("Sign") == "zero"
    assert flow.gives("Relu") == ""
    assert flow.gives("ArgMax") == "none"
    assert not flow.is_step("ArgMax")  # it gives an index


def test_tensorflow_1_15_gives_more_to_a_fused_batch_norm() -> None:
    """It hands on what the kernel returns for them; 2.x gives None."""
    found = flow.recorded_gradient("FusedBatchNorm")
    assert found is not None
    assert found.inputs[3:] == (None, None)
    assert None not in found.before


def test_every_row_is_of_an_op_with_a_registered_gradient() -> None:
    for row in flow.gradient_table().ops:
        known = opdefs.lookup(row.name)
        assert known is not None
        assert known.gradient == "registered"
        assert bool(row.inputs) != bool(row.raises)
        assert not row.inputs or len(row.inputs) == len(known.inputs)
        outputs = {one for inputs in (row.inputs, row.before) for one in inputs if one}
        assert all(place < len(known.outputs) for some in outputs for place in some)


# op type, override: is its gradient None for input 0, and does it let one back through?
GIVES_NONE = {
    ("Relu", None): (False, True),
    ("Floor", None): (True, False),
    ("ArgMax", None): (True, False),
    ("Shape", None): (True, False),  # by ops.NotDifferentiable
    ("Bincount", None): (False, True),  # TensorFlow raises: what a user registers is not known
    ("Sign", None): (False, True),  # zeros are a tensor
    ("Nobody", None): (False, True),
    ("Relu", "Floor"): (True, False),
    ("Floor", "Relu"): (False, True),
    ("Floor", "Mine"): (False, True),
}


@pytest.mark.parametrize(("op", "key"), GIVES_NONE)
def test_an_op_by_its_type_or_its_override(op: str, key: str | None) -> None:
    override = {} if key is None else {"_gradient_op_type": key}
    reads = node("n", op, "x", **override)
    found = graphs.main(node("x", "Placeholder"), reads).node("n")
    assert (flow.is_none(found, 0), flow.lets_through(found)) == GIVES_NONE[op, key]


@pytest.mark.parametrize(
    ("op", "may_be"),
    [("Relu", False), ("MatMul", False), ("Max", False), ("Floor", False), ("Nobody", False),
     ("Bincount", False), ("Sign", True), ("TopKV2", True), ("MaxPoolWithArgmax", True)],
)  # fmt: skip
def test_which_may_get_zeros(op: str, may_be: bool) -> None:
    assert flow.may_be_zero(op) == may_be


# Whose gradient does not depend on values: d(op)/dx is the same for every x that varies.


V, C, F = (True, False), (False, True), (False, False)  # varies, is a constant, is fed

CASES = {
    ("Add", (V, V)): True,  # d(x + y)/dx = 1
    ("Reshape", (V, C)): True,
    ("Tanh", (V,)): False,  # 1 - tanh(x)^2
    ("Mul", (V, C)): True,  # d(x * c)/dx = c
    ("Mul", (V, V)): False,  # d(x * y)/dx = y
    ("Mul", (V, F)): False,  # what is fed may differ as well
    ("MatMul", (C, C)): False,  # nothing varies that it could be linear in
    ("RealDiv", (V, C)): True,  # d(x / c)/dx = 1 / c
    ("RealDiv", (C, V)): False,  # d(c / x)/dx = -c / x^2
    ("Mean", (V, C)): True,
    ("Mean", (V, V)): True,  # axes come of shapes
    ("BroadcastTo", (C, V)): True,  # a shape that comes of a noisy tensor is that of any other
    ("Select", (C, V, V)): True,
    ("Select", (V, C, V)): False,  # which of the two depends on what varies
    ("GatherV2", (V, C, C)): True,
    ("GatherV2", (V, V, C)): False,  # and so does which row
    ("ReluGrad", (F, V)): False,  # d(relu'(y) * dy)/d(dy) = relu'(y)
    ("Concat", (C, V, V, V)): True,
    ("AddN", (V, C, V)): True,
    ("TensorArrayReadV3", (F, C, V)): True,  # its flow orders ops
    ("Conv2D", (V, F)): False,
    ("EagerPyFunc", (V,)): False,  # what Python does is not known
    ("no such op", (V,)): False,
}


@pytest.mark.parametrize(("op", "inputs"), CASES)
def test_by_the_inputs_that_vary(op: str, inputs: tuple[tuple[bool, bool], ...]) -> None:
    varies, is_constant = zip(*inputs, strict=True)
    read = "".join(list(op))  # not the same object as a constant, as op types of a file are not
    assert is_linear(read, varies, is_constant) == CASES[op, inputs]


@pytest.mark.parametrize(
    ("op", "known", "unknown"),
    [("BiasAdd", True, True), ("Add", True, False), ("Abs", False, False), ("Enter", True, True),
     ("Merge", False, False), ("no such op", False, False)],
)  # fmt: skip
def test_whose_gradient_reads_no_tensor(op: str, known: bool, unknown: bool) -> None:
    assert flow.is_asked_apart(op, lambda: True) == known
    assert flow.is_asked_apart(op, lambda: False) == unknown
