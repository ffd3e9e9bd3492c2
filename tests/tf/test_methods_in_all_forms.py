"""Gradients of attribution and quantization: numpy beside TensorFlow's ops, 2.x and 1.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from graphpatch.runtime.gradient_functions import formula_gradients
from tests.gradients.oracle import numpy_gradient, numpy_op_forward
from tests.gradients.regimes import NORMS, REGIMES
from tests.tf import run_graph, tensorflow1
from tests.tf.function_calls import Calls

tf = pytest.importorskip("tensorflow")

LIMITS = {"float32": 1e-4, "float64": 1e-9}  # of the largest element
RNG = np.random.default_rng(0)
MATMUL: dict[str, Any] = {"transpose_a": False, "transpose_b": False}
ADJOINT: dict[str, Any] = {"adj_x": False, "adj_y": False}
DEPTHWISE: dict[str, Any] = {
    **{"strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1]},
    **{"padding": "SAME", "data_format": "NHWC"},
}
CONV = {**DEPTHWISE, "explicit_paddings": [], "use_cudnn_on_gpu": True}
POOL: dict[str, Any] = {
    **{"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1]},
    **{"padding": "VALID", "data_format": "NHWC"},
}
NORM: dict[str, Any] = {"epsilon": 1e-3, "is_training": False, "data_format": "NHWC"}


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape)


POOLED, NORMED = ("epsilon", "zplus", "alpha_beta"), ("pass", "epsilon")
OF_NORM = [draw(4, 4, 4, 2), draw(2), draw(2), draw(2), abs(draw(2)) + 0.5]


class Case(NamedTuple):
    """A gradient at an op; without one, at a match as one op, whose output is `y`."""

    name: str
    op: str
    inputs: list[Any]
    attrs: dict[str, Any] = {}  # noqa: RUF012
    parameters: dict[str, Any] = {}  # noqa: RUF012
    layer: str = ""  # the linear op of a layer with a Relu behind it

    def output(self, inputs: list[Any]) -> Any:
        if self.layer:
            return np.maximum(numpy_op_forward(self.layer, inputs[:2], self.attrs) + inputs[2], 0)
        return numpy_op_forward(self.op, inputs, self.attrs) if self.op else inputs[0]


DEPTH = "DepthwiseConv2dNative"
LINEAR = ("lrp_zplus", "lrp_alpha_beta", "lrp_gamma", "lrp_w2", "lrp_flat", "lrp_epsilon_linear")
CASES = [
    *(Case(name, "MatMul", [draw(4, 5), draw(5, 3)], MATMUL) for name in LINEAR),
    *(Case(name, "Conv2D", [draw(4, 5, 5, 2), draw(3, 3, 2, 3)], CONV) for name in LINEAR),
    *(Case(name, DEPTH, [draw(4, 5, 5, 2), draw(3, 3, 2, 2)], DEPTHWISE) for name in LINEAR),
    *(Case(f"lrp_{name}_pool", "AvgPool", [draw(4, 4, 4, 2)], POOL) for name in POOLED),
    *(Case(f"lrp_{name}_batch_norm", "FusedBatchNormV3", OF_NORM, NORM) for name in NORMED),
    Case("matmul", "MatMul", [draw(4, 5), draw(5, 3)], MATMUL),
    Case("batch_matmul", "BatchMatMulV2", [draw(2, 4, 5), draw(2, 5, 3)], ADJOINT),
    Case("mul", "Mul", [draw(4, 3), draw(4, 3)]),
    Case("deeplift_product_batch", "Mul", [draw(4, 3), draw(4, 3)]),
    Case("deeplift_product_batch", "BatchMatMulV2", [draw(4, 2, 5), draw(4, 5, 3)], ADJOINT),
    Case("deeplift_pair_batch", "RealDiv", [draw(4, 3), abs(draw(4, 3)) + 0.5]),
    Case("deeplift_pair_batch", "SquaredDifference", [draw(4, 3), draw(4, 1)]),
    Case("lrp_pass", "BiasAdd", [draw(4, 3), draw(3)]),
    *(Case("deeplift_batch", op, [draw(4, 3)]) for op in ("Relu", "Sigmoid", "Tanh")),
    Case("shap_max_pool_batch", "MaxPool", [draw(4, 4, 4, 2)], POOL),
    Case("shap_softmax_batch", "Softmax", [draw(4, 3)]),
    Case("rectified_gradient", "Relu", [draw(4, 9)], parameters={"q": 0.6}),
    Case("lsq", "", [draw(9), np.array(0.7)], parameters={"low": -2, "high": 3}),
    Case("pact", "", [3 * draw(9), np.array(1.1)]),
    *(
        Case(f"{name}{word}{batch}", "", inputs, attrs, layer=layer)
        for name, batch in (("lrp_alpha_beta_bias", ""), ("reveal_cancel", "_batch"))
        for word, layer, inputs, attrs in (
            ("", "MatMul", [draw(4, 5), draw(5, 3), draw(3)], MATMUL),
            ("_conv", "Conv2D", [draw(4, 5, 5, 2), draw(3, 3, 2, 3), draw(3)], CONV),
            ("_depthwise", DEPTH, [draw(4, 5, 5, 2), draw(3, 3, 2, 2), draw(4)], DEPTHWISE),
        )
    ),
]


class Drawn(NamedTuple):
    """A case in a dtype, and the gradients that numpy gives."""

    case: Case
    dtype: str
    inputs: list[Any]
    y: Any
    dy: Any
    wanted: list[Any]

    @property
    def formula(self) -> Any:
        return LIBRARY[self.case.name].formula(self.case.parameters or None)

    def check(self, found: Callable[[int], Any]) -> None:
        for slot, dx in enumerate(self.wanted):
            if dx is not None:
                says = f"{self.case.name} at {self.case.op}{self.case.layer}, {slot}, {self.dtype}"
                limit = LIMITS[self.dtype] * np.abs(dx).max()
                np.testing.assert_allclose(found(slot), dx, rtol=0, atol=limit, err_msg=says)


@functools.cache
def drawn() -> list[Drawn]:
    """All cases in all dtypes."""
    return [_drawn(case, dtype) for dtype in LIMITS for case in CASES]


def _drawn(case: Case, dtype: str) -> Drawn:
    inputs = [np.asarray(one, dtype) for one in case.inputs]
    y = np.asarray(case.output(inputs), dtype)
    dy = RNG.normal(size=y.shape).astype(dtype)
    if case.name.endswith("_batch"):  # what flows back to both halves is the same
        dy[len(dy) // 2 :] = dy[: len(dy) // 2]
    one = Drawn(case, dtype, inputs, y, dy, [])
    return one._replace(
        wanted=list(numpy_gradient(one.formula, inputs, [y], [dy], case.attrs, case.op))
    )


@functools.cache
def called() -> tuple[Calls, list[list[str]]]:
    """All of them as calls of functions, and the tensors that each call gives."""
    calls, given = Calls(), []
    for number, (case, dtype, inputs, y, dy, _) in enumerate(drawn()):
        op = Signature.of([dtype] * len(inputs), [dtype], case.attrs, op_type=case.op)
        function = gradient_function(drawn()[number].formula, op, f"f{number}")
        given.append(list(calls.add(function, [*inputs, y, dy])))
    return calls, given


def check(fetch: Callable[..., Any], *more: Any) -> None:
    calls, given = called()
    values = fetch(calls.graph.SerializeToString(), calls.feeds, calls.fetches, *more)
    for one, tensors in zip(drawn(), given, strict=True):
        one.check(lambda slot, tensors=tensors: values[tensors[slot]])


def test_every_gradient_is_compared_in_its_forms() -> None:
    elsewhere = {one.name for one in REGIMES} | {name for name, *_ in NORMS}
    # What gradient_noise adds is drawn by TensorFlow; tests/tf/test_formula_forms.py has it.
    left = LIBRARY.keys() - elsewhere - {case.name for case in CASES} - {"gradient_noise"}
    assert left == set()


def test_as_ops_of_tensorflow() -> None:
    for one in (one for one in drawn() if one.dtype == "float32"):
        found = formula_gradients(
            one.formula,
            [tf.constant(x) for x in one.inputs],
            [tf.constant(one.y)],
            [tf.constant(one.dy)],
            one.case.attrs,
            op_type=one.case.op,
        )
        one.check(lambda slot, found=found: found[slot])


def test_as_functions_in_a_session() -> None:
    check(run_graph.run)


@pytest.mark.slow
def test_as_functions_under_tensorflow_1(tmp_path: Path) -> None:
    check(tensorflow1.fetch, tmp_path)
