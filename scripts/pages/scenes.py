"""What gradients that need an op are drawn at: a small op, whose numbers the title says.

A curve shows dx where one number goes from left to right and the others stay. Bars show what an
attribution makes of dx, for each input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY
from tests.gradients.oracle import numpy_gradient, numpy_op_forward

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Scene:
    """An op and what it reads; of several `ops` each reads the one before and one input more.

    `before` is TensorFlow's dx of input 0, where the ops are not those whose own gradient it is.
    """

    title: str
    ops: tuple[str, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    place: int = 0
    before: Callable[[Arrays], Any] | None = None

    def gradients(self, name: str, inputs: Arrays, upstream: Any = None) -> tuple[Any, Any]:
        """Dx of the input at `place`: as TensorFlow has it, and by a gradient of the library."""
        inputs = [np.asarray(one, float) for one in inputs]
        y = self._values(inputs)[-1][0] if self.ops else inputs[0]
        dy = np.ones_like(y) if upstream is None else np.asarray(upstream, float)
        entry = LIBRARY[name]
        one_op = self.ops[0] if len(self.ops) == 1 else ""
        formula = entry.formula(dict(self.parameters))
        after = numpy_gradient(formula, inputs, [y], [dy], self.attrs, one_op)[self.place]
        before = self._own(inputs, dy) if self.before is None else self.before(inputs)
        return np.asarray(before, float), np.asarray(after, float)

    def _values(self, inputs: Arrays) -> list[Arrays]:
        """Return what each op reads, and at last what the last one gives."""
        first = 1 if len(self.ops) > 1 else len(inputs) - 1
        reads: list[Arrays] = [list(inputs[: first + 1])]
        more = iter(inputs[first + 1 :])
        for place, op in enumerate(self.ops):
            y = numpy_op_forward(op, reads[-1], self.attrs)
            is_inner = place + 1 < len(self.ops) and self.ops[place + 1] == "BiasAdd"
            reads.append([y, next(more)] if is_inner else [y])
        return reads

    def _own(self, inputs: Arrays, dy: Any) -> Any:
        reads = self._values(inputs)
        for op, read in reversed(list(zip(self.ops, reads, strict=False))):
            place = self.place if read is reads[0] else 0
            own = Formula.parse(["own(dy)" if n == place else None for n in range(len(read))])
            y = numpy_op_forward(op, read, self.attrs)
            dy = numpy_gradient(own, read, [y], [dy], self.attrs, op)[place]
        return dy


@dataclass(frozen=True)
class Curve:
    """dx of one element of an input, by a number t that stands somewhere in the inputs."""

    scene: Scene
    label: str
    inputs: Callable[[float], Arrays]
    part: tuple[int, ...]
    upstream: Any = None

    def points(self, name: str, along: Any) -> tuple[Any, Any]:
        """Dx before and after, at each number."""
        pairs = [self.scene.gradients(name, self.inputs(t), self.upstream) for t in along]
        before, after = zip(*pairs, strict=True)
        return tuple(np.array([one[self.part] for one in side]) for side in (before, after))  # type: ignore[return-value]


@dataclass(frozen=True)
class Bars:
    """What each element of input 0 gets: dx times `factor`, which reads the inputs."""

    scene: Scene
    label: str
    inputs: Arrays
    names: tuple[str, ...]
    factor: Callable[[Arrays], Any] = lambda inputs: inputs[0]

    def heights(self, name: str) -> tuple[Any, Any]:
        """Return the bars before and after, as many as there are names."""
        inputs = [np.asarray(one, float) for one in self.inputs]
        found = (self.factor(inputs) * dx for dx in self.scene.gradients(name, inputs))
        before, after = (np.ravel(one)[: len(self.names)] for one in found)
        return before, after


X, W = [3.0, 1.0, -1.0, -2.0], [1.0, -0.5, 1.0, -1.5]  # both signs of each
PARTS = tuple(f"x = {x:g}\nw = {w:g}" for x, w in zip(X, W, strict=True))
RELEVANCE = "relevance: x * dx"
DIFFERENCE = "(x - reference) * dx"
WINDOW = {"ksize": [1, 1, 4, 1], "strides": [1, 1, 4, 1], "padding": "VALID"}
ROW = {"strides": [1, 1, 1, 1], "padding": "VALID"}
WINDOWS: Mapping[str, Any] = {"MatMul": {}, "Conv2D": ROW, "DepthwiseConv2dNative": ROW}
NORM = {"epsilon": 0.0, "is_training": False}


def shared(title: str, **parameters: float) -> tuple[Bars]:
    """How a MatMul of one output shares its relevance among four inputs."""
    scene = Scene(f"MatMul{title}: y = {np.dot(X, W):g}, dy = 1", ("MatMul",), parameters)
    weights = np.array(W)[:, np.newaxis]
    return (Bars(scene, RELEVANCE, [[X], weights], PARTS),)


def averaged(title: str) -> tuple[Bars]:
    """How a mean of four numbers shares its relevance among them."""
    scene = Scene(f"AvgPool{title}: y = {np.mean(POOLED):g}, dy = 1", ("AvgPool",), {}, WINDOW)
    names = tuple(f"x = {x:g}" for x in POOLED)
    return (Bars(scene, RELEVANCE, [in_window(POOLED)], names),)


def in_window(x: Sequence[float]) -> Any:
    """Return a batch of one image, one pixel high, of one channel."""
    return np.reshape(np.asarray(x, float), (-1, 1, 4, 1))


def revealed(op: str, shape: tuple[int, ...], weights: tuple[int, ...]) -> tuple[Curve]:
    """ReLU of a linear op of [x, 2] by the weights 1 and -1, against a reference of zeros."""
    title = f"Relu(BiasAdd({op})) of [x, 2], weights [1, -1], reference 0, dy = 1"
    scene = Scene(title, (op, "BiasAdd", "Relu"), {}, WINDOWS[op])
    more = [np.reshape([1.0, -1.0], weights), np.zeros(1)]
    part = (0,) * len(shape)
    return (Curve(scene, "x", lambda t: [np.reshape([t, 2, 0, 0], shape), *more], part),)


def with_bias(op: str, shape: tuple[int, ...], weights: tuple[int, ...]) -> tuple[Curve]:
    """Return a linear op of [x, 2] by the weights 1 and -1, and a bias of 1."""
    scene = Scene(f"BiasAdd({op}) of [x, 2], weights [1, -1], bias 1, dy = 1",
                  (op, "BiasAdd"), {}, WINDOWS[op])  # fmt: skip
    more = [np.reshape([1.0, -1.0], weights), np.ones(1)]
    part = (0,) * len(shape)
    return (Curve(scene, "x", lambda t: [np.reshape([t, 2], shape), *more], part),)


def rescaled(op: str) -> Curve:
    """Return an activation with a reference of 1."""
    scene = Scene(f"{op}, reference 1, dy = 1", (op,), {"reference": 1.0})
    return Curve(scene, "x", lambda t: [[t]], (0,))


def stabilised(title: str, op: str, inputs: Callable[[float], Arrays]) -> tuple[Curve]:
    """Return the epsilon rule at an op, with an epsilon that can be seen."""
    known: Mapping[str, Mapping[str, Any]] = {"AvgPool": WINDOW, "FusedBatchNorm": NORM}
    title = f"{title}, epsilon = 0.5, dy = 1"
    scene = Scene(title, (op,), {"epsilon": 0.5}, known.get(op, {}))
    return (Curve(scene, "x", inputs, (0, 0, 0, 0) if op == "AvgPool" else (0, 0)),)


def against(reference: float) -> Curve:
    """Return an activation whose reference is another example."""
    scene = Scene(f"Relu, reference {reference:g}, dy = 1", ("Relu",))
    return Curve(scene, "x", lambda t: [[[t], [reference]]], (0, 0))


def products(op: str, **attrs: Any) -> tuple[Curve, Curve]:
    """Of y = x0[0, 0] * x1[0, 0] + 2 * 3."""
    return (
        Curve(
            Scene(f"{op}, dy = 1: dx0[0, 0]", (op,), {}, attrs),
            "x1[0, 0]",
            lambda t: [[[1.0, 2.0]], [[t], [3.0]]],
            (0, 0),
        ),
        Curve(
            Scene(f"{op}, dy = 1: dx1[0, 0]", (op,), {}, attrs, place=1),
            "x0[0, 0]",
            lambda t: [[[t, 2.0]], [[1.0], [3.0]]],
            (0, 0),
        ),
    )


def quantized(place: int) -> Curve:
    """round(clip(x0 / x1, low, high)) * x1, with a step of 1; its Round has no gradient."""

    def before(inputs: Arrays) -> Any:
        level = np.round(np.clip(inputs[0] / inputs[1], -4, 3))
        return np.zeros_like(inputs[0]) if place == 0 else level.sum()

    scene = Scene(
        f"levels -4 to 3, step 1, dy = 1: dx{place}",
        (),
        {"low": -4, "high": 3},
        place=place,
        before=before,
    )
    return Curve(scene, "x0", lambda t: [[t], 1.0], (0,) if place == 0 else ())


def clipped(place: int) -> Curve:
    """round(clip(x0, 0, x1)), with a bound of 4; its Round has no gradient."""
    scene = Scene(
        f"bound 4, dy = 1: dx{place}",
        (),
        place=place,
        before=lambda inputs: np.zeros_like(inputs[place]),
    )
    return Curve(scene, "x0", lambda t: [[t], 4.0], (0,) if place == 0 else ())


def passed_on(op: str, more: Arrays, title: str) -> tuple[Bars]:
    """Relevance at four units to which something is added."""
    names = tuple(f"x = {x:g}\nadds {b:g}" for x, b in zip(X, ADDED, strict=True))
    return (Bars(Scene(title, (op,), {}, NORM), RELEVANCE, [[X], *more], names),)


ADDED = [1.0, 1.0, -1.0, 1.0]
CHANNELS = [np.ones(4), np.array(ADDED), np.zeros(4), np.ones(4)]
POOLED = (4.0, 2.0, -1.0, 1.0)
EXAMPLE, REFERENCE = (3.0, 1.0, 2.0, 0.0), (1.0, 2.0, 0.0, 0.5)

SCENES: Mapping[str, tuple[Curve | Bars, ...]] = {
    **{
        f"deeplift_rescale{word}": tuple(map(rescaled, ("Relu", "Sigmoid", "Softsign")))
        for word in ("", "_sigmoid", "_tanh", "_other")
    },
    "lrp_alpha_beta_bias": with_bias("MatMul", (1, 2), (2, 1)),
    "lrp_alpha_beta_bias_conv": with_bias("Conv2D", (1, 1, 2, 1), (1, 2, 1, 1)),
    "lrp_alpha_beta_bias_depthwise": with_bias("DepthwiseConv2dNative", (1, 1, 2, 1), (1, 2, 1, 1)),
    "lrp_epsilon_linear": stabilised(
        "MatMul of [x, 1], weights [1, 1]", "MatMul", lambda t: [[[t, 1.0]], [[1.0], [1.0]]]
    ),
    "lrp_epsilon_pool": stabilised(
        "AvgPool of [x, 1, 1, 1]", "AvgPool", lambda t: [in_window([t, 1, 1, 1])]
    ),
    "lrp_epsilon_batch_norm": stabilised(
        "FusedBatchNorm, scale 1, offset 1",
        "FusedBatchNorm",
        lambda t: [[[t]], np.ones(1), np.ones(1), np.zeros(1), np.ones(1)],
    ),
    "lrp_zplus": shared(""),
    "lrp_alpha_beta": shared(", alpha = 2, beta = 1"),
    "lrp_gamma": shared(", gamma = 1", gamma=1.0),
    "lrp_w2": shared(""),
    "lrp_flat": shared(""),
    "lrp_zplus_pool": averaged(""),
    "lrp_alpha_beta_pool": averaged(", alpha = 2, beta = 1"),
    "lrp_pass": passed_on("BiasAdd", [np.array(ADDED)], "BiasAdd, dy = 1"),
    "lrp_pass_batch_norm": passed_on("FusedBatchNorm", CHANNELS, "FusedBatchNorm, scale 1, dy = 1"),
    "reveal_cancel_batch": revealed("MatMul", (2, 2), (2, 1)),
    "reveal_cancel_conv_batch": revealed("Conv2D", (2, 1, 2, 1), (1, 2, 1, 1)),
    "reveal_cancel_depthwise_batch": revealed("DepthwiseConv2dNative", (2, 1, 2, 1), (1, 2, 1, 1)),
    "deeplift_batch": (against(-2.0), against(2.0)),
    "shap_max_pool_batch": (
        Bars(
            Scene("MaxPool: 3, of the reference 2; dy = 1", ("MaxPool",), {}, WINDOW),
            DIFFERENCE,
            [in_window((*EXAMPLE, *REFERENCE))],
            tuple(f"x = {x:g}\nreference {r:g}" for x, r in zip(EXAMPLE, REFERENCE, strict=True)),
            lambda inputs: inputs[0][:1] - inputs[0][1:],
        ),
    ),
    "shap_softmax_batch": tuple(
        Curve(
            Scene(f"Softmax of [x, 0, 0], reference 0: dx[{place}]", ("Softmax",)),
            "x",
            lambda t: [[[t, 0.0, 0.0], [0.0, 0.0, 0.0]]],
            (0, place),
            [[1.0, 0.0, 0.0]] * 2,
        )
        for place in (0, 1)
    ),
    "deeplift_product_batch": (
        Curve(
            Scene("Mul of 2 and x, of the references 0 and 1: dx0", ("Mul",)),
            "x",
            lambda t: [[[2.0], [0.0]], [[t], [1.0]]],
            (0, 0),
            [[1.0], [1.0]],
        ),
    ),
    "deeplift_pair_batch": (
        Curve(
            Scene("RealDiv of x and 2, of the references 0 and 1: dx1", ("RealDiv",), place=1),
            "x",
            lambda t: [[[t], [0.0]], [[2.0], [1.0]]],
            (0, 0),
            [[1.0], [1.0]],
        ),
    ),
    "lsq": (quantized(0), quantized(1)),
    "pact": (clipped(0), clipped(1)),
    "mul": (
        Curve(Scene("Mul, dy = 1: dx0", ("Mul",)), "x1", lambda t: [[1.0], [t]], (0,)),
        Curve(Scene("Mul, dy = 1: dx1", ("Mul",), place=1), "x0", lambda t: [[t], [1.0]], (0,)),
    ),
    "matmul": products("MatMul", transpose_a=False, transpose_b=False),
    "batch_matmul": products("BatchMatMul", adj_x=False, adj_y=False),
}
