"""Surrogates: gradients for ops whose own is zero almost everywhere, such as Sign and Round.

The step is at x = 0. Each is the derivative of a smooth function that looks like the step.
"""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter

_STEPS = ("Sign", "Round", "Rint", "Floor", "Ceil")

_VALID_SLOPE = "slope > 0 and is_finite(slope)"
_AT_ZERO = "the op also steps elsewhere than at 0, as Round and Floor do: use straight_through"

STEPS = (
    Entry(
        "straight_through",
        "dy",
        purpose="straight-through estimator: the step counts as the identity",
        avoid="inputs far from the step must get no gradient: hard_tanh_ste gives them none",
        source="Bengio, Leonard and Courville, Estimating or Propagating Gradients Through"
        " Stochastic Neurons, 2013",
        ops=_STEPS,
        whole=True,
    ),
    Entry(
        "hard_tanh_ste",
        "where(abs(x) <= 1, dy, 0)",
        purpose="straight-through estimator for binary units: no gradient where they saturate",
        avoid="inputs often lie beyond -1 and 1: they get no gradient and stay there",
        source="Hubara et al., Binarized Neural Networks, 2016",
        ops=("Sign",),
        whole=True,
    ),
    Entry(
        "sigmoid_surrogate",
        "dy * (slope * sigmoid(slope * x) * sigmoid(-slope * x))",
        purpose="the step counts as a logistic function",
        avoid=_AT_ZERO,
        source="Neftci, Mostafa and Zenke, Surrogate Gradient Learning in Spiking Neural"
        " Networks, 2019",
        parameters=(
            Parameter("slope", "the steepness; at 0 dx is slope / 4 * dy", 1.0, _VALID_SLOPE),
        ),
        ops=("Sign",),
        whole=True,
    ),
    Entry(
        "arctan_surrogate",
        "dy * (slope / 2 / (1 + square(pi / 2 * slope * x)))",
        purpose="the step counts as arctan(pi / 2 * slope * x) / pi + 1 / 2",
        avoid=_AT_ZERO,
        source="Fang et al., Incorporating Learnable Membrane Time Constant to Enhance Learning"
        " of Spiking Neural Networks, 2021",
        parameters=(
            Parameter("slope", "the steepness; at 0 dx is slope / 2 * dy", 2.0, _VALID_SLOPE),
        ),
        ops=("Sign",),
        whole=True,
    ),
    Entry(
        "fast_sigmoid_surrogate",
        "dy / square(1 + slope * abs(x))",
        purpose="the step counts as x / (1 + slope * abs(x)), which needs no exp",
        avoid=_AT_ZERO,
        source="Zenke and Ganguli, SuperSpike, 2018",
        parameters=(Parameter("slope", "how fast it falls; at 0 dx is dy", 1.0, _VALID_SLOPE),),
        ops=("Sign",),
        whole=True,
    ),
    Entry(
        "triangle_surrogate",
        "dy * (height * relu(1 - abs(x) / width))",
        purpose="the derivative of the step is a triangle: nothing flows beyond its width",
        avoid=_AT_ZERO,
        source="Esser et al., Convolutional Networks for Fast, Energy-Efficient Neuromorphic"
        " Computing, 2016; height 0.3: Bellec et al., Long Short-Term Memory and"
        " Learning-to-Learn in Networks of Spiking Neurons, 2018",
        parameters=(
            Parameter("height", "dx / dy at 0", 1.0, "height > 0 and is_finite(height)"),
            Parameter("width", "where it reaches 0", 1.0, "width > 0 and is_finite(width)"),
        ),
        ops=("Sign",),
        whole=True,
    ),
)
