"""The library in numbers: for each gradient, dx for each regime of x and dy, from closed form.

Each row is (x, dy, dx). Rows are examples of a batch: shape (rows, 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphpatch.gradients.library import LIBRARY
from tests.gradients.oracle import numpy_op_forward

N, I = math.nan, math.inf  # noqa: E741
LN3, LN05 = math.log(3), math.log(0.5)
SELU, SELU_ALPHA = 1.0507009873554805, 1.7580993408473768  # Klambauer et al., 2017

Row = tuple[float, float, float]


@dataclass(frozen=True)
class Regimes:
    """A gradient with parameters, the op it is for, and the numbers it gives."""

    name: str
    rows: tuple[Row, ...]
    parameters: Mapping[str, float] | float | None = None
    attrs: Mapping[str, float] = field(default_factory=dict)
    op: str = ""

    @property
    def op_type(self) -> str:
        """The op type whose gradient it is: by default the first of those that it is meant for."""
        return self.op or next(iter(LIBRARY[self.name].ops), "")

    def y(self, x: Any) -> Any:
        """What the op gives; where it may be any op, Sign."""
        with np.errstate(all="ignore"):
            return numpy_op_forward(self.op_type or "Sign", [x], self.attrs)

    def __str__(self) -> str:
        return f"{self.name}{self.op}-{self.parameters}"


def _of(name: str, *rows: Row, parameters: Any = None, attrs: Any = None, op: str = "") -> Regimes:
    """A gradient in rows of numbers."""
    return Regimes(name, rows, parameters, attrs or {}, op)


def _of_dy(name: str, *pairs: tuple[float, float], parameters: Any = None) -> Regimes:
    """A gradient that looks at dy alone: the same for every x."""
    rows = tuple((x, dy, dx) for dy, dx in pairs for x in (-1.0, 0.0, 2.0, N, I))
    return Regimes(name, rows, parameters)


_SAME = ((1.0, 1.0), (-2.0, -2.0), (0.0, 0.0), (N, N), (I, I), (-I, -I))

FILTERS = (
    _of_dy("zero", *((dy, 0.0) for dy, _ in _SAME)),
    _of_dy("identity", *_SAME),
    _of_dy("straight_through", *_SAME),
    _of_dy("scale", (1, 0.5), (-2, -1), (0, 0), (N, N), (I, I), (-I, -I), parameters=0.5),
    _of_dy("scale", (1, -2), (-2, 4), (I, -I), parameters={"factor": -2}),
    _of_dy("scale", (1, 0), (I, N), parameters=0),
    _of_dy("reverse", (1, -1), (-2, 2), (0, 0), (N, N), (I, -I), (-I, I)),
    _of_dy("reverse", (1, -0.3), (-2, 0.6), parameters={"strength": 0.3}),
    _of_dy("clip", (1, 0.25), (-1, -0.125), (0.0625, 0.0625), (0.25, 0.25), (-0.125, -0.125),
        (0, 0), (I, 0.25), (-I, -0.125), (N, N), parameters={"min": -0.125, "max": 0.25}),
    _of_dy("sign", (3, 1), (-0.5, -1), (0, 0), (I, 1), (-I, -1), (N, N)),
    _of_dy("finite", (3, 3), (-0.5, -0.5), (0, 0), (I, 0), (-I, 0), (N, 0)),
    _of_dy("finite", (3, 3), (I, 7), (-I, 7), (N, 7), parameters={"value": 7}),
    _of_dy("deconv_relu", (1, 1), (-2, 0), (0, 0), (I, I), (-I, 0), (N, N)),
)  # fmt: skip

ACTIVATIONS = (
    _of("guided_relu", (1, 2, 2), (1, -2, 0), (-1, 2, 0), (-1, -2, 0), (0, 2, 0), (0, -2, 0),
        (1, 0, 0), (-1, 0, 0), (N, 2, 0), (1, N, 0), (-1, N, 0), (I, 2, 2), (-I, 2, 0), (1, I, I),
        (1, -I, 0), (-1, I, 0), (0, I, 0)),
    _of("guided_relu6", (1, 2, 2), (1, -2, 0), (-1, 2, 0), (-1, -2, 0), (7, 2, 0), (7, -2, 0),
        (0, 2, 0), (6, 2, 0), (5.5, 2, 2), (6, -2, 0), (N, 2, 0), (1, N, 0), (I, 2, 0), (-I, 2, 0),
        (1, I, I), (7, I, 0)),
    _of("guided_leaky_relu", (1, 2, 2), (1, -2, 0), (-1, 2, 0.4), (-1, -2, 0), (0, 2, 0.4),
        (0, -2, 0), (1, 0, 0), (N, 2, 0.4), (1, N, 0), (1, I, I), (-1, I, I), (-1, -I, 0),
        (-I, 2, 0.4), attrs={"alpha": 0.2}),
    _of("guided_elu", (1, 2, 2), (1, -2, 0), (LN05, 2, 1), (LN05, -2, 0), (0, 2, 2), (-I, 2, 0),
        (1, N, 0), (1, I, I), (LN05, I, I), (LN05, -I, 0), (I, 3, 3), (N, 2, 2)),
    _of("guided_selu", (1, 2, 2 * SELU), (1, -2, 0), (LN05, 2, SELU_ALPHA), (LN05, -2, 0),
        (0, 2, 2 * SELU), (-I, 2, 0), (1, N, 0), (1, I, I), (LN05, -I, 0)),
    _of("guided_softplus", (0, 2, 1), (0, -2, 0), (LN3, 2, 1.5), (-LN3, 2, 0.5), (LN3, -2, 0),
        (I, 2, 2), (-I, 2, 0), (N, 2, N), (N, -2, 0), (1, N, 0), (0, I, I), (0, -I, 0)),
    _of("redirected_relu", (1, 1, 1), (1, -1, -1), (-1, 1, 0), (-1, -1, -1), (0, 1, 1), (0, -1, -1),
        (1, 0, 0), (-1, 0, 0), (N, 1, 1), (1, N, N), (-1, N, N), (1, I, I), (-1, I, 0),
        (-1, -I, -I), (I, 1, 1), (-I, 1, 0), (-I, -1, -1)),
    _of("redirected_relu6", (1, 1, 1), (1, -1, -1), (-1, 1, 0), (-1, -1, -1), (7, 1, 1), (7, -1, 0),
        (0, 1, 1), (0, -1, -1), (6, 1, 1), (6, -1, -1), (N, 1, 1), (7, N, N), (-1, I, 0),
        (-1, -I, -I), (7, I, I), (7, -I, 0), (I, 1, 1), (I, -1, 0)),
)  # fmt: skip

STEPS = (
    _of("hard_tanh_ste", (0, 3, 3), (0.5, -3, -3), (1, 3, 3), (-1, 3, 3), (1.5, 3, 0),
        (-1.5, -3, 0), (N, 3, 0), (0, N, N), (2, N, 0), (0, I, I), (2, I, 0), (I, 3, 0)),
    _of("sigmoid_surrogate", (0, 3, 1.5), (0, -3, -1.5), (LN3 / 2, 4, 1.5), (-LN3 / 2, -4, -1.5),
        (I, 3, 0), (-I, 3, 0), (N, 3, N), (0, N, N), (0, I, I), (I, I, N), parameters=2),
    _of("arctan_surrogate", (0, 3, 3), (0, -3, -3), (1 / math.pi, 3, 1.5), (-1 / math.pi, -3, -1.5),
        (I, 3, 0), (-I, 3, 0), (N, 3, N), (0, N, N), (0, I, I), (I, I, N)),
    _of("fast_sigmoid_surrogate", (0, 3, 3), (1, 4, 1), (-1, -4, -1), (3, 16, 1), (-3, 16, 1),
        (I, 3, 0), (-I, 3, 0), (N, 3, N), (0, N, N), (0, I, I), (I, I, N)),
    _of("triangle_surrogate", (0, 3, 3), (0.5, 3, 1.5), (-0.5, -3, -1.5), (1, 3, 0), (-1, 3, 0),
        (2, 3, 0), (I, 3, 0), (N, 3, N), (0, N, N), (0, I, I), (2, I, N)),
    _of("triangle_surrogate", (0, 3, 3), (1, 3, 1.5), (4, 3, 0), parameters={"width": 2}),
    _of("triangle_surrogate", (0, 3, 0.9), (1, 3, 0.45), (-1, -3, -0.45), (2, 3, 0), (-4, 3, 0),
        parameters={"height": 0.3, "width": 2}),
)  # fmt: skip

ATTRIBUTION = (
    _of("lrp_epsilon", (1.5, 4, 3), (1.5, -4, -3), (-1.5, 4, 0), (0, 4, 0), (-1.5, -4, 0),
        (N, 1, N), (1, N, N), (1.5, I, I), (I, 1, N), (-I, 1, 0), parameters=0.5),
    _of("lrp_epsilon", (LN3, 1, 0.8 / (LN3 + 0.5)), (-LN3, 1, 0.8 / (LN3 + 0.5)), (0, 1, 0),
        (I, 1, 0), parameters={"epsilon": 0.5}, op="Tanh"),
    _of("deeplift_rescale", (1, 4, 2), (3, 4, 3), (3, -4, -3), (-3, 4, 0), (-1, 4, 0), (0, 4, 0),
        (N, 4, 0), (1, N, N), (1, I, I), parameters={"reference": -1}),
    _of("deeplift_rescale", (2, 3, 3), (-2, 3, 0), (0, 3, 0), (2, -3, -3), (0.25, 3, 3)),
    _of("deeplift_rescale_sigmoid", (LN3, 1, 0.25 / LN3), (-LN3, 1, 0.25 / LN3), (0, 4, 1),
        (0, -4, -1), (I, 1, 0), op="Sigmoid"),
    _of("deeplift_rescale_tanh", (LN3, 1, 0.8 / LN3), (-LN3, -1, -0.8 / LN3), (0, 4, 4), (I, 1, 0),
        (0, N, N), op="Tanh"),
)  # fmt: skip


def _spike(name: str, *rows: Row, parameters: Any = None) -> Regimes:
    """Of a surrogate: numbers at some x, and what is no number stays none."""
    odd = ((0.5, N, N), (N, 1, N))
    return Regimes(name, (*rows, *odd), parameters)


SPIKES = (
    _spike("exponential_surrogate", (0, 3, 3), (LN05, 4, 1), (-LN05, -4, -1), parameters=2),
    _spike("softsign_surrogate", (0, 3, 3), (0.5, 4, 1), (-0.5, -4, -1), (I, 1, 0)),
    _spike("log_abs_surrogate", (0, 3, 6), (1.5, 4, 2), (-1.5, -4, -2), (I, 1, 0), parameters=2),
    _spike("erf_surrogate", (0, 1, 1 / math.sqrt(math.pi)),
        (math.sqrt(LN3), 3, 1 / math.sqrt(math.pi)), (I, 1, 0), parameters=1),
    _of("piecewise_leaky_surrogate", (0, 4, 1), (2, 4, 1), (-2, -4, -1), (2.5, 4, 1), (-I, 8, 2),
        (N, 4, 1), (0, N, N), parameters={"width": 2, "leak": 0.25}),
    _spike("s2nn_surrogate", (0, 3, 6), (1, 3, 3), (-LN3, 4, 0.75), (-I, 1, 0), (I, 1, 0),
        parameters={"slope": 1, "tail": 2}),
    _spike("q_pseudo_spike_surrogate", (0, 3, 3), (1, 9, 1), (-1, -9, -1), (I, 1, 0)),
    _of("stochastic_spike_surrogate", (0.5, 3, 3), (7, -2, -2), (I, 4, 4)),
    _spike("square_wave_surrogate",
        *((x, 1, sum(math.cos((2 * i + 1) * math.pi / 2 * x) for i in range(3))) for x in (0, 0.5)),
        parameters={"terms": 3, "period": 4}),
    _of("leaky_step_surrogate", (0, 3, 6), (5, 3, 6), (-1, 4, 1), (-I, 4, 1), (I, 1, 2), (N, 1, 2),
        (0, N, N), parameters={"leak": 0.25, "slope": 2}),
    _spike("reciprocal_surrogate", (0, 4, 2), (1, 4, 2), (-4, 4, 1), (I, 1, 0), parameters=0.5),
    _of("log_tailed_surrogate", (0, 4, 1), (-3, 4, 1), (0.5, 3, 3), (1, 3, 3), (4, 4, 1), (I, 1, 0),
        (N, 1, N), parameters={"leak": 0.25}),
    _spike("escape_rate_surrogate", (1, 2, 50), (1 + LN3, 3, 25), (1 - LN3, 3, 25), (I, 1, 0)),
    _of("sparse_fast_sigmoid_surrogate", (0, 3, 3), (1, 4, 1), (-1, 4, 1), (-2, 4, 0), (-3, 4, 0),
        (I, 1, 0), (N, 1, 0), parameters={"slope": 1, "reach": 2}),
)  # fmt: skip

OTHERS = (
    _of("deeplift_rescale_other", (9, 4, 2.5), (9, -4, -2.5), (1, 4, 4), (-2, 4, 4 / 3),
        (0.5, 4, 4), (9, N, N), parameters={"reference": 1}, op="Relu6"),
)  # fmt: skip

REGIMES = (*FILTERS, *ACTIVATIONS, *STEPS, *SPIKES, *ATTRIBUTION, *OTHERS)

Vector = tuple[float, ...]

NORMS: tuple[tuple[str, dict[str, float], Vector, Vector], ...] = (
    ("clip_by_norm", {"norm": 5}, (6, 8), (3, 4)),
    ("clip_by_norm", {"norm": 5}, (3, 4), (3, 4)),
    ("clip_by_norm", {"norm": 5}, (-0.75, 1), (-0.75, 1)),
    ("clip_by_norm", {"norm": 5}, (0, 0), (0, 0)),
    ("clip_by_norm", {"norm": 5}, (I, 1), (N, N)),
    ("clip_by_norm", {"norm": 5}, (N, 1), (N, N)),
    ("clip_by_global_norm", {"norm": 5}, (6, 8), (3, 4)),
    ("clip_by_global_norm", {"norm": 5}, (-0.75, 1), (-0.75, 1)),
    ("clip_by_global_norm", {"norm": 5}, (0, 0), (0, 0)),
    ("clip_by_global_norm", {"norm": 5}, (I, 1), (N, N)),
    ("clip_by_global_norm", {"norm": 5}, (1, N), (N, N)),
    ("normalize", {}, (-3, 4), (-0.6, 0.8)),
    ("normalize", {}, (0, 0), (0, 0)),
    ("normalize", {}, (I, 1), (N, N)),
    ("normalize", {}, (N, 0), (N, N)),
    ("redirected_relu", {}, (-1, -2), (-1, -2)),
)
"""A gradient, its parameters, dy of one tensor, and dx. x is -1 throughout."""

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-12}
