from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.formula import Formula


def test_one_text_is_for_all_inputs_alike() -> None:
    formula = Formula.parse("slope * dy * attr.alpha + x1", ["slope"])
    assert formula.alike
    assert formula.variables == {"dy0", "x1"}
    assert formula.attrs == {"alpha"}
    assert formula.parameters == {"slope"}
    assert str(formula) == "slope * dy * attr.alpha + x1"


def test_a_list_has_one_for_each_input() -> None:
    formula = Formula.parse(["dy * x1", None])
    assert not formula.alike
    assert formula.expressions[1] is None
    assert formula.variables == {"dy0", "x1"}
    assert str(formula) == "[dy * x1, null]"


def test_values_are_bound_by_name_and_the_last_counts() -> None:
    formula = Formula.parse("a * dy + b", {"a": 2.0, "b": 1.0})
    assert dict(formula.values) == {"a": 2.0, "b": 1.0}
    assert dict(formula.bind({"a": 3.0}).values) == {"a": 3.0, "b": 1.0}
    assert formula.bind({}) == formula
    assert formula != formula.bind({"a": 3.0})


@pytest.mark.parametrize(
    ("source", "parameters", "message"),
    [
        (5, (), "a formula is a text or a list of them, and this is 5"),
        (None, (), "a formula is a text or a list of them, and this is None"),
        ([], (), "the list holds no formula"),
        ([None, None], (), "nothing flows"),
        (["dy", 3], (), "formula 1 of the list is 3, not a text or null"),
        (["dy", "dyy"], (), "unknown name 'dyy'; nearest: dy"),
        ("dy", ["x1"], "'x1' cannot be a parameter"),
        ("dy", ["pi"], "'pi' cannot be a parameter"),
        ("dy", ["and"], "'and' cannot be a parameter"),
        ("dy", ["attr"], "'attr' cannot be a parameter"),
        ("dy", ["a b"], "'a b' cannot be a parameter"),
        ("k * dy", {"k": "2"}, "parameter 'k' is '2', not a number"),
        ("k * dy", {"k": [1]}, "parameter 'k' is [1], not a number"),
    ],
)
def test_what_is_no_formula(source: Any, parameters: Any, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        Formula.parse(source, parameters)
    assert message in str(caught.value)
    assert isinstance(caught.value, RulesError)


def test_an_unknown_parameter_names_the_nearest() -> None:
    formula = Formula.parse("slope * dy", ["slope"])
    with pytest.raises(FormulaError, match="no parameter 'slop'; nearest: slope"):
        formula.bind({"slop": 1.0})
    with pytest.raises(FormulaError, match="it has: -"):
        Formula.parse("dy").bind({"slope": 1.0})
