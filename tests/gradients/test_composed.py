"""Keys that say what a gradient is composed of: written and read again, and left alone."""

from __future__ import annotations

import pytest

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    ComposedGradient,
    GradientLayer,
    PythonGradient,
    composed_gradient,
    from_key,
    parse_gradient,
    python_key,
    python_of,
    surrogate_key,
    surrogate_of,
)

FILTERS = [
    "sign",
    {"clip": {"min": -0.5, "max": 2.0}},
    {"formula": "where(dy > 0, dy, 0)"},
    {"registered": "Neg"},
    {"python": "package.module:function"},
]


@pytest.mark.parametrize("place", [None, 0, 3])
@pytest.mark.parametrize("spec", FILTERS, ids=str)
def test_a_key_holds_filters_as_rules_spell_them(spec: object, place: int | None) -> None:
    layer = GradientLayer(place, parse_gradient(spec))  # type: ignore[arg-type]
    whole = ComposedGradient("Relu").behind(layer).before(GradientLayer(1, None)).before(layer)
    assert composed_gradient(whole.key) == whole
    assert whole.inputs == (layer, GradientLayer(1, None))
    assert from_key(whole.key) is None
    assert composed_gradient(whole.key).key == whole.key


def test_without_filters_it_is_the_key_of_the_gradient() -> None:
    for key in ("Relu", "graphpatch:guided_relu", 'graphpatch:{"formula":"dy"}', "Mine"):
        assert composed_gradient(key) == ComposedGradient(key)
        assert composed_gradient(key).key == key


def test_the_other_keys() -> None:
    formula = Formula.parse("tanh(4 * x)")
    key = surrogate_key(formula)
    assert surrogate_of(key) == formula
    assert from_key(key) is None
    assert python_of(python_key(PythonGradient("a.b:c"))) == "a.b:c"
    for other in ("Relu", "graphpatch:sign", 'graphpatch:{"clip":{"max":1.0,"min":0.0}}'):
        assert surrogate_of(other) is None
        assert python_of(other) is None


def test_the_later_filter_is_passed_first_at_outputs_and_last_at_inputs() -> None:
    first, second = (
        GradientLayer(None, parse_gradient("sign")),
        GradientLayer(None, parse_gradient("finite")),
    )
    whole = ComposedGradient("Relu").behind(first).behind(second).before(first).before(second)
    assert whole.outputs == (second, first)
    assert whole.inputs == (second, first)
    assert [
        layer.holds(0)
        for layer in (GradientLayer(None, None), GradientLayer(0, None), GradientLayer(1, None))
    ] == [True, True, False]
