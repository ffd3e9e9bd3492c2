"""Numbers of any size in formulas, options, parameters and constants: a message, or a gradient."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.attach import attached_functions
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.linear import construction
from graphpatch.gradients.lowering import gradient_function
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import InlineFormula, parse_gradient

ONE = Signature.of(["float32"], ["float32"])


@pytest.mark.parametrize("number", ["2147483648", "-99999999999999999999999", "1e308", "254"])
@pytest.mark.parametrize(
    "text",
    [
        "sum(dy, axes=[{}])",
        "max(x0, {})",
        "transpose(dy, perm=[0, {}])",
        "sum(dy, from_axis={})",
        "concat(dy, dy, axis={})",
        "split(dy, parts=2, index=0, axis={})",
        "quantile(dy, q=0.5, from_axis={})",
    ],
)
def test_axes_are_those_that_a_tensor_may_have(text: str, number: str) -> None:
    with pytest.raises(FormulaError, match=r"is from|counts from"):
        gradient_function(Formula.parse(text.format(number)), ONE)


@pytest.mark.parametrize(
    "text",
    [
        "split(dy, parts=1e20, index=0)",
        "split(dy, parts=2, index=1e20)",
        "gather(dy, [3e10])",
        "normal_like(dy, seed=1e30)",
    ],
)
def test_integers_are_those_of_the_op(text: str) -> None:
    with pytest.raises(FormulaError, match="is from"):
        gradient_function(Formula.parse(text), ONE)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_beyond_any_float_is_refused(sign: int) -> None:
    huge: Any = sign * 10**400
    for spec in ({"scale": huge}, {"formula": "dy * k", "constants": {"k": huge}}):
        with pytest.raises(RulesError, match=r"beyond any float|inf; expected"):
            parse_gradient(spec)
    with pytest.raises(RulesError, match="expected numbers"):
        parse_gradient({"formula": "dy * k", "constants": {"k": [huge]}})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_tensor_beyond_a_dtype_is_refused(dtype: str) -> None:
    gradient = parse_gradient({"formula": "dy * k", "constants": {"k": [1.0, 1e300]}})
    assert isinstance(gradient, InlineFormula)
    signature = Signature.of([dtype], [dtype])
    with pytest.raises(FormulaError, match=f"a number of k is infinite in {dtype}"):
        attached_functions(gradient, signature)


def test_a_sum_of_all_in_a_narrow_dtype_has_a_construction() -> None:
    op = Signature.of(["float16"], ["float16"], same_shape=True)
    assert construction(Formula.parse("sum(dy) * x"), op, "Relu", False) is not None
