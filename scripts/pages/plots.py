"""Plots of the gradients of the library: dx as TensorFlow has it and as the gradient has it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from graphpatch.gradients.library import LIBRARY, Entry
from graphpatch.gradients.numpy_form import numpy_gradient

X = np.linspace(-8, 8, 321)[:, np.newaxis]
# What the plots give parameters that have no default.
GIVEN: Mapping[str, Mapping[str, float]] = {
    "scale": {"factor": 0.5},
    "clip": {"min": -1, "max": 1},
    "clip_by_norm": {"norm": 2},
    "clip_by_global_norm": {"norm": 2},
    "gradient_noise": {"stddev": 0.2},
}
# What asks for the op itself, or for a batch of two halves: nothing of one x to draw.
UNDRAWN = re.compile(r"\b(own|forward|split)\(")
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
    """The name and the SVG of each gradient that is one formula of one x, y and dy."""
    for entry in LIBRARY.values():
        if isinstance(entry.text, str) and not UNDRAWN.search(entry.text):
            yield entry.name, plot(entry)


def plot(entry: Entry) -> str:
    """A gradient as SVG: by x for dy of 1 and -1, or by dy where the op does not matter."""
    mpl.rcParams.update({"svg.hashsalt": "graphpatch", "svg.fonttype": "none"})
    figure = Figure(figsize=(6.4, 2.4), layout="tight")
    if entry.ops:
        axes = figure.subplots(1, 2, sharey=True)
        for one, dy in zip(axes, (1.0, -1.0), strict=True):
            _by_x(one, entry, dy)
    else:
        axes = [figure.subplots()]
        _lines(axes[0], X, X, _dx(entry, np.zeros_like(X), np.zeros_like(X), X), "dy")
    axes[0].set_ylabel("dx")
    axes[-1].legend(loc="upper left", fontsize="small")
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


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
        return numpy_gradient(formula, {}, [x], [y], [dy], ATTRS)[0]
    rows = zip(x, y, dy, strict=True)
    found = [numpy_gradient(formula, {}, [a], [b], [c], ATTRS)[0] for a, b, c in rows]
    return np.stack([np.asarray(one, float) for one in found])


def _lines(axes: Any, by: Any, before: Any, after: Any, label: str) -> None:
    axes.plot(by, before, color="0.6", linestyle="--", label="TensorFlow")
    axes.plot(by, after, color="tab:blue", label="this gradient")
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
