"""Plots of the gradients of the library: dx as TensorFlow has it and as the gradient has it.

A gradient of one x, y and dy is drawn over x or dy; one that needs more, at an op of `scenes`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from graphpatch.gradients.library import LIBRARY, Entry
from pages.gradients import GIVEN
from pages.scenes import SCENES, Bars, Curve
from tests.gradients.oracle import numpy_gradient

BEFORE, AFTER = "TensorFlow", "this gradient"
X = np.linspace(-8, 8, 321)[:, np.newaxis]
ATTRS = {"alpha": 0.2}
ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805
# The ops whose gradients the library replaces: the value, and TensorFlow's dx for dy = 1.
Forward = Callable[[Any], Any]
OPS: Mapping[str, tuple[Forward, Forward]] = {
    "Relu": (lambda x: np.maximum(x, 0), lambda x: x > 0),
    "Relu6": (lambda x: np.clip(x, 0, 6), lambda x: (x > 0) & (x < 6)),
    "LeakyRelu": (lambda x: np.where(x > 0, x, 0.2 * x), lambda x: np.where(x > 0, 1, 0.2)),
    "Elu": (lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.where(x > 0, 1, np.exp(x))),
    "Selu": (
        lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(x)),
        lambda x: SCALE * np.where(x > 0, 1, ALPHA * np.exp(x)),
    ),
    "Softplus": (lambda x: np.logaddexp(0, x), lambda x: 1 / (1 + np.exp(-x))),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "Tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "Sign": (np.sign, np.zeros_like),
}


def all_plots() -> Iterator[tuple[str, str]]:
    """Yield the name and the SVG of each gradient."""
    for entry in LIBRARY.values():
        yield entry.name, plot(entry)


def plot(entry: Entry) -> str:
    """Return a gradient as SVG: at its scene; else by x for dy of 1 and -1, or by dy for any op."""
    mpl.rcParams.update({"svg.hashsalt": "graphpatch", "svg.fonttype": "none"})
    figure = Figure(figsize=(6.4, 2.4), layout="tight")
    panels = _panels(entry)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for one, draw in zip(axes, panels, strict=True):
        draw(one)
    if not axes[0].get_ylabel():
        axes[0].set_ylabel("dx")
    axes[-1].legend(loc="best", fontsize="small")
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _panels(entry: Entry) -> list[Callable[[Any], None]]:
    if entry.name in SCENES:
        return [partial(_at_scene, entry=entry, scene=one) for one in SCENES[entry.name]]
    if entry.ops:
        return [partial(_by_x, entry=entry, dy=dy) for dy in (1.0, -1.0)]
    return [partial(_by_dy, entry=entry)]


def _at_scene(axes: Any, entry: Entry, scene: Curve | Bars) -> None:
    axes.set_title(scene.scene.title, fontsize="small")
    if isinstance(scene, Curve):
        _lines(axes, X[:, 0], *scene.points(entry.name, X[:, 0]), scene.label)
        return
    places = np.arange(len(scene.names))
    before, after = scene.heights(entry.name)
    axes.bar(places - 0.2, before, 0.4, color="0.7", label=BEFORE)
    axes.bar(places + 0.2, after, 0.4, color="tab:blue", label=AFTER)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xticks(places, scene.names)
    axes.set_ylabel(scene.label)


def _by_dy(axes: Any, entry: Entry) -> None:
    _lines(axes, X, X, _dx(entry, np.zeros_like(X), np.zeros_like(X), X), "dy")


def _by_x(axes: Any, entry: Entry, dy: float) -> None:
    op = next(name for name in (*entry.ops, "Relu") if name in OPS)
    forward, derivative = OPS[op]
    upstream = np.full_like(X, dy)
    found = _dx(entry, X, np.asarray(forward(X), float), upstream)
    _lines(axes, X, upstream * derivative(X), found, "x")
    axes.set_title(f"{op}, dy = {dy:g}", fontsize="medium")


def _dx(entry: Entry, x: Any, y: Any, dy: Any) -> Any:
    """dx; of gradients of whole tensors, that of a tensor with this one element."""
    formula = entry.formula(GIVEN.get(entry.name))
    if entry.elementwise:
        return numpy_gradient(formula, [x], [y], [dy], ATTRS)[0]
    rows = zip(x, y, dy, strict=True)
    found = [numpy_gradient(formula, [a], [b], [c], ATTRS)[0] for a, b, c in rows]
    return np.stack([np.asarray(one, float) for one in found])


def _lines(axes: Any, by: Any, before: Any, after: Any, label: str) -> None:
    axes.plot(by, before, color="0.6", linestyle="--", label=BEFORE)
    axes.plot(by, after, color="tab:blue", label=AFTER)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
