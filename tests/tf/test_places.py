"""Every patch kind, by every carrier, in every place: the gradient is that of its numpy form.

The models are differentiated in fresh processes that cannot import graphpatch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.gradients.formula import Formula
from tests.draws import quick, selected
from tests.gradients.oracle import numpy_gradient
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES, UNREACHED, Place

tf = pytest.importorskip("tensorflow")

Rule = Callable[[Any, Any, Any], Any]

FORMULA = "0.5 * dy * dy + x * y"


def unit(x: Any) -> Any:
    """The ops around the patched one; a way past it, so that there always is a gradient."""
    return tf.square(tf.tanh(3.0 * x)) + x


def own(x: Any, y: Any, dy: Any) -> Any:
    return dy * (1 - y * y)


def numpy_form(text: str) -> Rule:
    formula = Formula.parse(text)
    return lambda x, y, dy: numpy_gradient(formula, [x], [y], [dy])[0]


class Case(NamedTuple):
    """A patch on Tanh; what its gradient then is, and what what flows back to it passes first."""

    patch: dict[str, Any]
    gradient: Rule = own
    passes: Rule = lambda x, y, dy: dy
    emit: str = "auto"


# fmt: off
PATCHES: dict[str, Case] = {
    "override formula": Case({"override_gradient": {"formula": FORMULA}}, numpy_form(FORMULA)),
    "override exact": Case({"override_gradient": "reverse"}, numpy_form("-dy")),
    "override built-in": Case({"override_gradient": "Neg"}, numpy_form("-dy")),
    "override key": Case({"override_gradient": {"formula": FORMULA}}, emit="attr"),
    "filter formula": Case({"filter_gradient": {"formula": FORMULA}},
                           passes=lambda _, y, dy: numpy_form(FORMULA)(y, y, dy)),
    "filter inputs": Case({"filter_gradient": {"formula": FORMULA}, "at": "inputs"},
                          lambda x, y, dy: numpy_form(FORMULA)(x, x, own(x, y, dy))),
    "filter library": Case({"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
                           passes=numpy_form("clip(dy, -0.1, 0.1)")),
    "filter exact": Case({"filter_gradient": "reverse"}, passes=numpy_form("-dy")),
    "filter key": Case({"filter_gradient": {"formula": FORMULA}}, emit="attr"),
    "straight through": Case({"straight_through": True}, numpy_form("dy")),
    "stop": Case({"stop_gradient": True}, numpy_form("zeros_like(x)")),
    "stop inputs": Case({"stop_gradient": True, "at": "inputs"}, numpy_form("zeros_like(x)")),
}
OWN_KEYS = ("override key", "filter key")
KEYS = {"override built-in", *OWN_KEYS}
# What is tried everywhere; the rest of the patches where places differ in how they are treated.
SHORT = ("override formula", "override built-in", "override key",
         "filter formula", "straight through", "stop")
FEW = {(place, patch) for place in ("PartitionedCall", "While") for patch in SHORT[:3]}
LONG = ("main", "While", "If", "Case", "PartitionedCall", "nested two deep", "legacy call",
        "v1 while", "v1 cond")
# fmt: on
PAIRS = quick(
    ((place, patch) for place in PLACES for patch in (PATCHES if place in LONG else SHORT)),
    lambda place, patch: place == "main" or patch == SHORT[0] or (place, patch) in FEW,
)


def reference(place: Place, case: Case) -> Any:
    """The gradient of the sum of y by x, in numpy."""
    x, tape = np.array(X, np.float32), []
    for _ in range(place.times):
        tape.append((3 * x, np.tanh(3 * x)))
        x = np.square(tape[-1][1]) + x
    dy = np.ones_like(x)
    for a, t in reversed(tape):
        dy = dy + 3 * case.gradient(a, t, case.passes(a, t, 2 * t * dy))
    return dy


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("places"))
    for place, patch in selected(request, "place", "patch"):
        if place in UNREACHED:
            continue
        # Built anew each time: TensorFlow 2 wants functions of one name to be the same.
        found.add(f"{place}, {patch}", built(PLACES[place]), [rule_of(PATCHES[patch])])
    return found.run(request)


def built(place: Place) -> Any:
    return graph(lambda x: place.build(unit, x), place.v1)


def rule_of(case: Case) -> dict[str, Any]:
    return {"match": {"op": "Tanh"}, "patch": case.patch, "emit": case.emit}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "patch"), PAIRS)
def test_the_gradient(batch: Batch, place: str, patch: str, runtime: str) -> None:
    name, case = f"{place}, {patch}", PATCHES[patch]
    if patch in KEYS and PLACES[place].whole:
        assert "TensorFlow ignores the attr silently" in batch.refused[name]
        assert "(emit: auto)" in batch.refused[name]
        return
    if PLACES[place].unknown_to == runtime:
        assert "not registered" in batch.error(name, runtime)
        return
    if patch in OWN_KEYS:
        assert batch.error(name, runtime).startswith("LookupError: No gradient defined for oper")
        return
    expected = reference(PLACES[place], case)
    found = batch.gradient(name, runtime)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
    assert not np.allclose(found, reference(PLACES[place], Case({})), rtol=1e-2)


@pytest.mark.parametrize(("place", "patch"), PAIRS)
def test_how_it_travels(batch: Batch, place: str, patch: str) -> None:
    expected: str | None = "function"
    if patch in KEYS:
        carrier = "attr" if patch in OWN_KEYS else "built-in"
        expected = None if PLACES[place].whole else carrier
    elif not PLACES[place].whole and patch in {
        "override exact",
        "filter exact",
        "straight through",
    }:
        expected = "built-in"
    elif not PLACES[place].whole and patch in {"stop", "stop inputs"}:
        expected = "construction"
    assert batch.emitted.get(f"{place}, {patch}") == expected


@pytest.mark.every(3)
@pytest.mark.parametrize("patch", SHORT)
@pytest.mark.parametrize("place", UNREACHED)
def test_where_a_session_gives_no_gradient_a_patch_is_refused(
    place: str, patch: str, tmp_path: Path
) -> None:
    path = tmp_path / ("model.meta" if UNREACHED[place].v1 else "model.pb")
    path.write_bytes(built(UNREACHED[place]).SerializeToString())
    with pytest.raises(PatchError, match=r"a Session gives no gradient through .*inline") as error:
        graphpatch.apply([rule_of(PATCHES[patch])], path)
    assert '"body": "main" leaves functions out' in str(error.value)
