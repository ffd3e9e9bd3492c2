from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.formula import (
    AttrRef,
    Call,
    Expression,
    Formula,
    Literal,
    NumberList,
    ParameterRef,
    TensorRef,
    Variable,
    parse_formula,
)
from graphpatch.gradients.functions import FUNCTIONS

PARAMETERS = ("slope", "norm", "min")


def spelled(expression: Expression) -> str:
    """The expression in prefix notation: one spelling for each tree."""
    if isinstance(expression, Call):
        options = [f"{name}={spelled(value)}" for name, value in expression.options]
        return f"({' '.join([expression.function, *map(spelled, expression.arguments), *options])})"
    if isinstance(expression, NumberList):
        return f"[{' '.join(map(spelled, expression.items))}]"
    if isinstance(expression, Literal):
        return str(expression.value)
    prefix = {AttrRef: "attr.", ParameterRef: "$", TensorRef: "@", Variable: ""}[type(expression)]
    return prefix + expression.name


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * x", "(+ 1.0 (* 2.0 x0))"),
        ("1 - 2 - 3", "(- (- 1.0 2.0) 3.0)"),
        ("2 ** 3 ** x", "(** 2.0 (** 3.0 x0))"),
        ("-x ** 2", "(-x (** x0 2.0))"),
        ("-x * y", "(* (-x x0) y0)"),
        ("x - -y", "(- x0 (-x y0))"),
        ("+x", "x0"),
        ("not x > 0 and y < 1 or dy == 2", "(or (and (not (> x0 0.0)) (< y0 1.0)) (== dy0 2.0))"),
        ("0 < x <= y != 3", "(and (and (< 0.0 x0) (<= x0 y0)) (!= y0 3.0))"),
        ("where(b=1, a=dy, condition=true)", "(where True dy0 1.0)"),
        ("clip(dy, max=1, min=min)", "(clip dy0 $min 1.0)"),
        ("norm(dy) / norm", "(/ (norm dy0) $norm)"),
        ("dy * tensor(\"a/b:1\") / tensor( 'c' )", "(/ (* dy0 @a/b:1) @c)"),
        ("sum(x, [1, -2])", "(sum x0 axes=[1.0 (-x 2.0)])"),
        ("sum(x, keepdims=true, axes=[])", "(sum x0 axes=[] keepdims=True)"),
        ("matmul(dy, x1, transpose_b=not attr.t)", "(matmul dy0 x1 transpose_b=(not attr.t))"),
        ("slope * attr.alpha", "(* $slope attr.alpha)"),
        ("1e-3 + .5 + 2. + 1.5E2", "(+ (+ (+ 0.001 0.5) 2.0) 150.0)"),
        ("inf - nan + pi", "(+ (- inf nan) 3.141592653589793)"),
        (" x\n\t+ y ", "(+ x0 y0)"),
        ("let s = x + 1; s * s", "(* (+ x0 1.0) (+ x0 1.0))"),
        ("let a = x > 0; let b = where(a, dy, 0); b", "(where (> x0 0.0) dy0 0.0)"),
        ("concat(x, y, dy, axis=-1)", "(concat x0 y0 dy0 axis=(-x 1.0))"),
        ("split(x, 2, 1)", "(split x0 parts=2.0 index=1.0)"),
        ("gather(x, [1, 0], axis=1)", "(gather x0 [1.0 0.0] axis=1.0)"),
        ("own(dy, x0, relu(x1))", "(own dy0 x0 (relu x1))"),
    ],
)
def test_what_a_text_stands_for(text: str, tree: str) -> None:
    assert spelled(parse_formula(text, PARAMETERS)) == tree


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "the formula is empty"),
        ("x +", 4, "expected a value, found the end"),
        ("x y", 3, "expected an operator or the end, found 'y'"),
        ("x)", 2, "')' closes nothing"),
        ("sum(x, [1, 2)", 13, "expected ',' or ']', found ')'"),
        ("where(x > 0 dy, 0)", 13, "expected ',' or ')', found 'dy'"),
        ("and x", 1, "expected a value, found 'and'"),
        ("x + not y", 5, "put the 'not ...' in parentheses"),
        ("x = 2", 3, "equality is written =="),
        ("x ^ 2", 3, "powers are written **"),
        ("x > 0 && y > 0", 7, "write: and"),
        ("x % 2", 3, "there is no remainder"),
        ("x § y", 3, "a formula has no '§'"),
        ("dy if x > 0 else 0", 4, "where(condition, a, b)"),
        ("2x", 2, "neither a number nor a name"),
        ("1e999", 1, "write: inf"),
        ("reluu(x)", 1, "nearest: relu"),
        ("tf.nn.relu(x)", 1, "by their bare name"),
        ("relu", 1, "relu is a function, and needs its arguments"),
        ("x(2)", 1, "write * to multiply"),
        ("dx * 2", 1, "the upstream gradient is dy, and dx is what the formula gives"),
        ("x00", 1, "unknown name 'x00'"),
        ("slop * dy", 1, "nearest: slope"),
        ("alpha", 1, "a formula knows slope, norm, min, x, y, dy (for x0, y0, dy0), x1, ..., y1"),
        ("grad", 1, "the upstream gradient is dy"),
        ("None", 1, "null stands for a whole formula"),
        ("dy * tensor(x)", 13, "in quotes, tensor('name:0'), found 'x'"),
        ("tensor('')", 8, "expected the name of a tensor"),
        ("tensor('a', 1)", 11, "expected ')' after the name of the tensor"),
        ("'a' * dy", 1, "expected a value"),
        ("attr.", 6, "expected the name of an attr"),
        ("[1, 2]", 1, "expected a value, found '['"),
        ("exp([1])", 5, "x of exp cannot be a list"),
        ("where(x > 0)", 1, "where needs a and b: where(condition, a, b)"),
        ("exp()", 1, "exp needs x: exp(x)"),
        ("exp(x, y)", 8, "exp takes 1 at most: exp(x)"),
        ("sum(x, 0, false, true, 1)", 24, "sum(x, axes=, from_axis=, keepdims=)"),
        ("max(x, 0) * dy", 8, "axes stand by name, axes=0; of two numbers: maximum(a, b)"),
        ("exp(x, q=1)", 8, "exp has no 'q': exp(x)"),
        ("clip(dy, 0, 1, min=0)", 20, "clip is given min twice"),
        ("(" * 101 + "x" + ")" * 101, 101, "nested more than 100 deep"),
        ("x" + " + x" * 101, 1, "nested more than 100 deep"),
        ("let s = x", 10, "expected ';', which ends a let, found the end"),
        ("let s = x; dy", 1, "let s = ... is never used"),
        ("let 2 = x; dy", 5, "expected a name after let, found '2'"),
        ("let exp = x; exp", 5, "exp has a meaning already"),
        ("let s = x; let s = y; s", 16, "s has a meaning already"),
        ("let s x; s", 7, "expected '=' after the name"),
        ("x; y", 2, "a formula is one expression"),
        ("dy * let s = x; s", 6, "a let stands at the beginning"),
        ("concat(x)", 1, "concat needs b"),
        ("(" * 90 + "x" + " + x)" * 90 + " + x" * 20, 1, "nested more than 100 deep"),
    ],
)
def test_where_a_text_is_no_formula(text: str, column: int, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        parse_formula(text, PARAMETERS)
    said, shown, caret = str(caught.value).split("\n")
    assert said.startswith(f"formula, column {column}: ")
    assert message in said
    assert len(shown) <= 102
    assert shown.strip() in " ".join(text.split("\n"))
    assert caret[:-1].strip() == ""
    if column <= 50:
        assert len(caret) == column + 2
        assert shown[2:] == text[:100]


def test_the_caret_of_a_long_formula_stays_in_sight() -> None:
    with pytest.raises(FormulaError) as caught:
        parse_formula(f"{'dy + ' * 30}oops + {'dy + ' * 30}dy")
    _, shown, caret = str(caught.value).split("\n")
    assert shown[len(caret) - 1 :].startswith("oops")


def test_every_function_of_the_language_parses_as_it_is_spelled() -> None:
    for name, function in FUNCTIONS.items():
        call = parse_formula(f"{name}({', '.join('x' for _ in function.arguments)})")
        assert isinstance(call, Call)
        assert call.function == name
        assert len(call.arguments) == len(function.arguments)


def test_what_a_formula_reads() -> None:
    formula = Formula.parse("slope * dy * attr.alpha + x1", ["slope"])
    read = (formula.alike, formula.variables, formula.attrs, formula.parameters, str(formula))
    text = "slope * dy * attr.alpha + x1"
    assert read == (True, {"dy0", "x1"}, {"alpha"}, {"slope"}, text)
    formula = Formula.parse(["dy * x1", None])
    read = (formula.alike, formula.expressions[1], formula.variables, str(formula))
    assert read == (False, None, {"dy0", "x1"}, "[dy * x1, null]")


def test_values_are_bound_by_name_and_the_last_counts() -> None:
    formula = Formula.parse("a * dy + b", {"a": 2.0, "b": 1.0})
    assert dict(formula.values) == {"a": 2.0, "b": 1.0}
    assert dict(formula.bind({"a": 3.0}).values) == {"a": 3.0, "b": 1.0}
    assert formula.bind({}) == formula
    assert formula != formula.bind({"a": 3.0})
    with pytest.raises(FormulaError, match="no parameter 'aa'; nearest: a"):
        formula.bind({"aa": 1.0})
    with pytest.raises(FormulaError, match="it has: -"):
        Formula.parse("dy").bind({"slope": 1.0})


@pytest.mark.parametrize(
    ("source", "parameters", "message"),
    [
        (5, (), "a formula is a text or a list of them, and this is 5"),
        ([], (), "the list holds no formula"),
        ([None, None], (), "nothing flows"),
        (["dy", 3], (), "formula 1 of the list is 3, not a text or null"),
        (["dy", "dyy"], (), "unknown name 'dyy'; nearest: dy"),
        ("dy", ["x1"], "'x1' cannot be a parameter"),
        ("dy", ["pi"], "'pi' cannot be a parameter"),
        ("dy", ["a b"], "'a b' cannot be a parameter"),
        ("k * dy", {"k": "2"}, "parameter 'k' is '2', not a number"),
    ],
)
def test_what_is_no_formula(source: Any, parameters: Any, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        Formula.parse(source, parameters)
    assert message in str(caught.value)
    assert isinstance(caught.value, RulesError)
