"""Learned quantization, for a match as one op, and gradients with noise or without small parts."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter

_LSQ = "Esser et al., Learned Step Size Quantization, 2020"
_PACT = "Choi et al., PACT: Parameterized Clipping Activation for Quantized Neural Networks, 2018"
_QUOTIENT = "let q = x0 / x1; "

QUANTIZATION = (
    Entry(
        "lsq",
        (
            f"{_QUOTIENT}where(low < q < high, dy, 0)",
            f"{_QUOTIENT}dy * (where(q <= low, low, where(q >= high, high, round(q) - q))"
            " / sqrt(sum(ones_like(x0)) * high))",
        ),
        purpose="learned step size: x0 gets dy within the range; x1, the step, learns too",
        avoid="there is a step for each channel: the gradient is scaled by the size of all of x0",
        source=_LSQ,
        parameters=(
            Parameter("low", "the smallest level, such as -128 (-Q_N)", None, "low <= 0"),
            Parameter("high", "the largest level, such as 127 (Q_P)", None, "high > 0"),
        ),
    ),
    Entry(
        "pact",
        ("where(0 <= x0 < x1, dy, 0)", "where(x0 >= x1, dy, 0)"),
        purpose="a clip at 0 and at x1, a learned bound; rounding in the match is ignored",
        avoid="nothing in the match rounds: TensorFlow's own gradient is the same",
        source=_PACT,
    ),
    Entry(
        "gradient_noise",
        "dy + stddev * normal_like(dy, seed)",
        purpose="adds normal noise to the gradient, other noise in each run",
        avoid="you compare runs number by number",
        source="Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep"
        " Networks, 2015",
        parameters=(
            Parameter("stddev", "the standard deviation", None, "stddev >= 0"),
            Parameter(
                "seed", "seed of the noise, an integer", 0.0, "seed >= 0 and seed == floor(seed)"
            ),
        ),
        reach="in the paper the deviation decays with the global step; a file has none",
    ),
    Entry(
        "rectified_gradient",
        "where(y * dy > quantile(y * dy, q, from_axis=1), dy, 0)",
        purpose="rectified gradient: in each example only the largest y * dy pass",
        avoid="the op has no batch axis, or a network is trained",
        source="Kim et al., Why are Saliency Maps Noisy? Cause of and Solution to Noisy Saliency"
        " Maps, 2019",
        parameters=(
            Parameter("q", "which part of the elements is taken out", 0.98, "q >= 0 and q <= 1"),
        ),
        ops=("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"),
        by_element=False,
    ),
)
