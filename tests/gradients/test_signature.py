"""What a formula may ask of an op, and the message where the op does not have it."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.attach import computed_gradient
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.linear import construction
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import formula_ops, gradient_function, gradient_ops
from graphpatch.gradients.spec import (
    DefaultGradient,
    FilteredGradient,
    GradientSpec,
    InlineFormula,
    PythonGradient,
    SurrogateFormula,
    from_key,
    parse_gradient,
)
from graphpatch.runtime import gradient_functions

UNARY = Signature.of(["float32"], ["float32"])
MIXED = Signature.of(
    ["float32", "int32", "float64"],
    ["float32", "int64", "bool"],
    {"alpha": 0.2, "wrap": True, "padding": b"SAME"},
)
TEXT = Signature.of(["float32", "string"], ["float32"])
HALF = Signature.of(["float16"], ["float16"])


def test_an_argument_must_have_a_dtype() -> None:
    for dtype in ("", "float99", "DT_FLOAT"):
        with pytest.raises(FormulaError, match=f"dtype of y0 is not known .'{dtype}'.: an attr"):
            Signature.of([], [dtype])


@pytest.mark.parametrize(
    ("signature", "source", "column", "message"),
    [
        (UNARY, "dy * x1", 6, "the op has no x1; it has: x0, y0, dy0"),
        (UNARY, "dy * attr.alpha", 6, "the op has no attr 'alpha'; its numbers and booleans: none"),
        (MIXED, ["dy * attr.alhpa", None, None], 6, "no attr 'alhpa'; nearest: alpha"),
        (MIXED, ["dy * attr.padding", None, None], 6, "attr 'padding' is b'SAME'"),
        (MIXED, ["dy * attr.wrap", None, None], 6, "this is a condition"),
        (MIXED, ["dy * x1", None, None], 6, "this is int32; formulas compute in float16"),
        (MIXED, ["dy * x2", None, None], 4, "'*' meets float32 and float64; write: cast_like"),
        (MIXED, ["dy1", None, None], 1, "y1 is int64: no gradient reaches it"),
        (MIXED, [None, "dy", None], 1, "x1 is int32, and carries no gradient: write null"),
        (MIXED, ["y2", None, None], 1, "this is a condition; write: where(..., dy, 0)"),
        (MIXED, ["y1", None, None], 1, "a gradient is a number, and this is int64"),
        (UNARY, "dy * (x > 0)", 9, "write: where(..., 1, 0)"),
        (UNARY, "where(x, dy, 0)", 7, "'where' takes a condition here, not a number"),
        (UNARY, "true", 1, "a gradient is a number, and this is a condition"),
        (UNARY, "dy + true", 6, "'+' takes numbers, and this is a condition"),
        (UNARY, "matmul(2, dy)", 8, "matmul takes a tensor here, not a plain number"),
        (TEXT, ["dy * cast_like(x1, dy)", None], 16, "this is string, which cannot be cast"),
        (UNARY, "dy * 1e-50", 6, "1e-50 is 0 in float32"),
        (HALF, "dy + 1e-8", 6, "1e-08 is 0 in float16"),
        (UNARY, "sum(dy, axes=[0, 0])", 14, "axes names an axis twice"),
        (UNARY, "sum(dy, axes=1.5)", 14, "expected an integer, found 1.5"),
        (UNARY, "sum(dy, axes=x)", 14, "or an attr, found a tensor"),
        (UNARY, "sum(dy, from_axis=-1)", 19, "from_axis counts from 0, and this is -1"),
        (UNARY, "sum(dy, from_axis=1, axes=1)", 1, "axes or from_axis, not both"),
        (UNARY, "split(x, 0, 0)", 10, "parts counts from 1, and this is 0"),
        (UNARY, "normal_like(x, seed=-1)", 21, "seed counts from 0, and this is -1"),
        (UNARY, f"normal_like(x, seed={2**53 + 1})", 21, f"seed is from 0 to {2**53 - 1}, and"),
        (UNARY, "sum(dy, keepdims=1)", 18, "keepdims is true or false, not 1"),
    ],
)
def test_a_formula_that_does_not_suit_the_op(
    signature: Signature, source: Any, column: int, message: str
) -> None:
    with pytest.raises(FormulaError) as caught:
        gradient_ops(Formula.parse(source), signature)
    said = str(caught.value).split("\n")[0]
    assert said.startswith(f"formula, column {column}: ")
    assert message in said


COUNTS = [
    (UNARY, ["dy", "dy"], "the list has 2 formulas, and the op has 1 input;"),
    (MIXED, ["dy"], "the list has 1 formula, and the op has 3 inputs;"),
    (Signature.of(["int32"], ["float32"]), "dy", "no input of the op carries"),
    (Signature.of(["complex64"], ["complex64"]), "dy", "an input is complex64"),
]


@pytest.mark.parametrize(("signature", "source", "message"), COUNTS)
def test_a_gradient_with_the_wrong_count(signature: Signature, source: Any, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        gradient_ops(Formula.parse(source), signature)
    assert message in str(caught.value)


@pytest.mark.parametrize("source", ["dy * x", "x + y", "x2", ["x", None]])
def test_what_is_no_function_of_the_inputs(source: Any) -> None:
    with pytest.raises(FormulaError, match="expected one formula of x0"):
        formula_ops(Formula.parse(source), UNARY, "float32")


def test_a_parameter_without_a_value() -> None:
    with pytest.raises(FormulaError, match="column 6: parameter 'k' has no value"):
        gradient_ops(Formula.parse("dy * k", ["k"]), UNARY)
    found = gradient_ops(Formula.parse("dy * k", {"k": 2.0}), MIXED)
    assert [value and value.dtype for value in found] == ["float32", None, "float64"]


BEYOND = {
    "2147483648 -99999999999999999999999 1e308 254": (
        "sum(dy, axes=[{}])",
        "max(x0, axes={})",
        "transpose(dy, perm=[0, {}])",
        "sum(dy, from_axis={})",
        "concat(dy, dy, axis={})",
        "split(dy, parts=2, index=0, axis={})",
        "quantile(dy, q=0.5, from_axis={})",
    ),
    "3e10": ("gather(dy, [{}])",),
    "1e30": (
        *("split(dy, parts={}, index=0)", "split(dy, parts=2, index={})"),
        "normal_like(dy, seed={})",
    ),
}


@pytest.mark.parametrize("numbers", BEYOND)
def test_integers_are_those_that_the_op_may_have(numbers: str) -> None:
    for text in BEYOND[numbers]:
        for number in numbers.split():
            with pytest.raises(FormulaError, match=r"is from|counts from"):
                gradient_function(Formula.parse(text.format(number)), UNARY)


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
        computed_gradient(gradient, signature)


def test_a_sum_of_all_in_a_narrow_dtype_has_a_construction() -> None:
    op = Signature.of(["float16"], ["float16"], same_shape=True)
    assert construction(Formula.parse("sum(dy) * x"), op, "Relu", False) is not None


# Keys of every gradient but the default: written and read again.

FILTERS: list[GradientSpec] = [
    *("sign", {"clip": {"min": -0.5, "max": 2.0}}, {"formula": "where(dy > 0, dy, 0)"}),
    *({"registered": "Mine"}, {"python": "package.module:function"}),
]


@pytest.mark.parametrize("at", ["outputs", "output:0", "input:3"])
@pytest.mark.parametrize("spec", FILTERS, ids=str)
def test_a_key_is_read_as_the_gradient_that_it_carries(spec: GradientSpec, at: str) -> None:
    gradient = parse_gradient(spec)
    assert not isinstance(gradient, DefaultGradient)
    filtered = FilteredGradient("Relu", ((at, gradient.key), ("inputs", None)))
    surrogate = SurrogateFormula(Formula.parse("tanh(4 * x)"))
    for keyed in (gradient, filtered, surrogate):
        assert from_key(keyed.key) == keyed
    assert FilteredGradient(gradient.key).key == gradient.key


def test_a_filter_in_python_is_no_gradient_where_none_is_allowed() -> None:
    for at in ("outputs", "inputs"):
        gradient = FilteredGradient("Relu", ((at, PythonGradient("os.path:join").key),))
        assert gradient_functions.gradient_function(gradient) is None
        assert gradient_functions.gradient_function(gradient, allow_python=True) is not None


@pytest.mark.parametrize(
    "key",
    [
        *("{cut", '{"own": 3}', '{"own": "Relu", "filters": [["output:x", null]]}'),
        '{"own": "Relu", "outputs": [[null, "Neg"]], "inputs": []}',  # of 0.2
    ],
)
def test_a_key_that_cannot_be_read_is_named(key: str) -> None:
    with pytest.raises(RulesError, match="cannot be read"):
        from_key(f"graphpatch:{key}")
