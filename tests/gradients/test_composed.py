"""Keys that say what a gradient is composed of: written and read again, and left alone."""

from __future__ import annotations

import pytest

from graphpatch.errors import RulesError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    ComposedGradient,
    DefaultGradient,
    GradientSpec,
    PythonGradient,
    composed_gradient,
    from_key,
    parse_gradient,
    python_of,
    surrogate_key,
    surrogate_of,
)
from graphpatch.runtime.gradient_functions import gradient_of

FILTERS: list[GradientSpec] = [
    *("sign", {"clip": {"min": -0.5, "max": 2.0}}, {"formula": "where(dy > 0, dy, 0)"}),
    *({"registered": "Neg"}, {"python": "package.module:function"}),
]


@pytest.mark.parametrize("place", [None, 0, 3])
@pytest.mark.parametrize("spec", FILTERS, ids=str)
def test_a_key_holds_the_keys_of_filters(spec: GradientSpec, place: int | None) -> None:
    gradient = parse_gradient(spec)
    assert not isinstance(gradient, DefaultGradient)
    layer = place, gradient.key
    whole = ComposedGradient("Relu").with_layer("output", layer)
    whole = whole.with_layer("input", (1, None)).with_layer("input", layer)
    assert composed_gradient(whole.key) == whole
    assert whole.inputs == (layer, (1, None))
    assert from_key(whole.key) is surrogate_of(whole.key) is python_of(whole.key) is None
    assert composed_gradient(whole.key).key == whole.key
    assert composed_gradient(gradient.key) == ComposedGradient(gradient.key)
    assert ComposedGradient(gradient.key).key == gradient.key
    formula = Formula.parse("tanh(4 * x)")
    assert surrogate_of(surrogate_key(formula)) == formula
    assert from_key(surrogate_key(formula)) is None


def test_a_filter_in_python_is_no_gradient_where_none_is_allowed() -> None:
    layer = None, PythonGradient("os.path:join").key
    for side in ("output", "input"):
        key = ComposedGradient("Relu").with_layer(side, layer).key
        assert gradient_of(key) is None
        assert gradient_of(key, allow_python=True) is not None


@pytest.mark.parametrize(
    "key", ["{cut", '{"own": 3}', '{"own": "Relu", "outputs": [[0, {"clip": 1}]]}']
)
def test_a_key_that_cannot_be_read_is_named(key: str) -> None:
    with pytest.raises(RulesError, match="cannot be read"):
        composed_gradient(f"graphpatch:{key}")
