"""What the site plots of gradients that need an op: numbers from closed form, and none left out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pages.scenes import SCENES, Bars, Curve

from graphpatch.gradients.library import LIBRARY


def heights(name: str) -> tuple[Any, Any]:
    (bars,) = SCENES[name]
    assert isinstance(bars, Bars)
    return bars.heights(name)


def points(name: str, place: int, *along: float) -> tuple[list[float], list[float]]:
    curve = SCENES[name][place]
    assert isinstance(curve, Curve)
    before, after = curve.points(name, along)
    return before.tolist(), after.tolist()


def test_a_gradient_that_needs_an_op_has_one_to_be_drawn_at() -> None:
    needs = {
        name
        for name, entry in LIBRARY.items()
        if not isinstance(entry.text, str) or re.search(r"\b(own|forward|split)\(", entry.text)
    }
    assert SCENES.keys() == needs


def test_bars_are_those_of_closed_form() -> None:
    np.testing.assert_allclose(heights("lrp_zplus"), [[3, -0.5, -1, 3], [2.25, 0, 0, 2.25]])
    assert heights("lrp_gamma")[1].sum() == pytest.approx(4.5)
    np.testing.assert_allclose(heights("lrp_alpha_beta")[1], [4.5, -1.5, -3, 4.5])
    np.testing.assert_allclose(heights("lrp_flat")[1], [4.5 / 4] * 4)
    np.testing.assert_allclose(heights("lrp_w2")[1], np.array([1, 0.25, 1, 2.25]))
    np.testing.assert_allclose(heights("lrp_zplus_pool"), [[1, 0.5, -0.25, 0.25],
                                                           [6 / 7, 3 / 7, 0, 1.5 / 7]])  # fmt: skip
    np.testing.assert_allclose(heights("lrp_alpha_beta_pool")[1], np.array([8, 4, -7, 2]) * 1.5 / 7)
    for name in ("lrp_pass", "lrp_pass_batch_norm"):
        np.testing.assert_allclose(heights(name), [[3, 1, -1, -2], [4, 2, -2, -1]])
    np.testing.assert_allclose(heights("shap_max_pool_batch"), [[2, 0, 0, 0], [1, 0, 0, 0]])


CURVES: list[tuple[str, int, float, float, float]] = [
    ("lrp_epsilon_linear", 0, 1, 1, 2 / 2.5),
    ("lrp_epsilon_batch_norm", 0, -2, 1, 1 / 1.5),
    ("deeplift_batch", 1, -2, 0, 2 / 4),
    ("deeplift_rescale", 2, 3, 1 / 16, (3 / 4 - 1 / 2) / 2),
    # y is 3 - 2 + 1; the positive sum is 3 + 1, of which x gets its part twice.
    *((f"lrp_alpha_beta_bias{of}", 0, 3, 1, 2 * 2 / 4) for of in ("", "_conv", "_depthwise")),
    *((f"reveal_cancel{of}_batch", 0, 4, 1, 3 / 4) for of in ("", "_conv", "_depthwise")),
    ("lsq", 1, 8, 3, 3 / 3**0.5),
    ("pact", 0, 3, 0, 1),
    *((name, place, 5, 5, 5) for name in ("mul", "matmul", "batch_matmul") for place in (0, 1)),
]


@pytest.mark.parametrize(("name", "place", "at", "before", "after"), CURVES)
def test_curves_go_through_points_of_closed_form(
    name: str, place: int, at: float, before: float, after: float
) -> None:
    assert points(name, place, at) == (pytest.approx([before]), pytest.approx([after]))


@pytest.mark.parametrize("name", ["guided_relu", "clip", "lrp_flat", "deeplift_batch"])
def test_a_plot_says_what_it_shows(name: str) -> None:
    pytest.importorskip("matplotlib")
    from pages.plots import AFTER, BEFORE, plot

    svg = plot(LIBRARY[name])
    assert svg.startswith("<?xml")
    titles = [scene.scene.title for scene in SCENES.get(name, ())]
    assert all(text in svg for text in (BEFORE, AFTER, *titles))
