"""Whose gradient does not depend on values: d(op)/dx is the same for every x that varies."""

from __future__ import annotations

import pytest

from graphpatch.differentiation.flow import is_linear

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
