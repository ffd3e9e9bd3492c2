"""Surrogates: gradients for ops whose own is zero almost everywhere, such as Sign and Round.

The step is at x = 0. Each is the derivative of a smooth function that looks like the step.
"""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter, positive

_STEPS = ("Sign", "Round", "Rint", "Floor", "Ceil")
_SPIKINGJELLY = "spikingjelly, surrogate.py"
_SNNTORCH = "snntorch, surrogate.py"
_AT_ZERO = "the op also steps elsewhere than at 0, as Round and Floor do: use straight_through"


def _spike(
    name: str, slope: str, purpose: str, source: str, *parameters: Parameter, whole: bool = False
) -> Entry:
    """Return dy * slope."""
    lets, semicolon, value = slope.rpartition("; ")
    text = f"{lets}{semicolon}dy * ({value})"
    return Entry(name, text, purpose, _AT_ZERO, source, parameters, ("Sign",), whole=whole)


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
    _spike(
        "sigmoid_surrogate",
        "slope * sigmoid(slope * x) * sigmoid(-slope * x)",
        "the step counts as a logistic function",
        "Neftci, Mostafa and Zenke, Surrogate Gradient Learning in Spiking Neural Networks, 2019",
        positive("slope", 1.0, "the steepness; at 0 dx is slope / 4 * dy"),
        whole=True,
    ),
    _spike(
        "arctan_surrogate",
        "slope / 2 / (1 + square(pi / 2 * slope * x))",
        "the step counts as arctan(pi / 2 * slope * x) / pi + 1 / 2",
        "Fang et al., Incorporating Learnable Membrane Time Constant to Enhance Learning"
        " of Spiking Neural Networks, 2021",
        positive("slope", 2.0, "the steepness; at 0 dx is slope / 2 * dy"),
        whole=True,
    ),
    Entry(
        "fast_sigmoid_surrogate",
        "dy / square(1 + slope * abs(x))",
        purpose="the step counts as x / (1 + slope * abs(x)), which needs no exp",
        avoid=_AT_ZERO,
        source="Zenke and Ganguli, SuperSpike, 2018",
        parameters=(positive("slope", 1.0, "how fast it falls; at 0 dx is dy"),),
        ops=("Sign",),
        whole=True,
    ),
    _spike(
        "triangle_surrogate",
        "height * relu(1 - abs(x) / width)",
        "the derivative of the step is a triangle: nothing flows beyond its width",
        "Esser et al., Convolutional Networks for Fast, Energy-Efficient Neuromorphic"
        " Computing, 2016; height 0.3: Bellec et al., Long Short-Term Memory and"
        " Learning-to-Learn in Networks of Spiking Neurons, 2018",
        positive("height", 1.0, "dx / dy at 0"),
        positive("width", 1.0, "where it reaches 0"),
        whole=True,
    ),
)

SPIKES = (
    _spike(
        "exponential_surrogate",
        "slope / 2 * exp(-slope * abs(x))",
        "the derivative of the step falls exponentially",
        f"{_SPIKINGJELLY}, PiecewiseExp",
        positive("slope", 1.0, "the steepness; at 0 dx is slope / 2 * dy"),
    ),
    _spike(
        "softsign_surrogate",
        "slope / 2 / square(1 + slope * abs(x))",
        "the step counts as a soft sign, which needs no exp",
        f"{_SPIKINGJELLY}, SoftSign",
        positive("slope", 2.0, "the steepness; at 0 dx is slope / 2 * dy"),
    ),
    _spike(
        "log_abs_surrogate",
        "1 / (1 / slope + abs(x))",
        "the step counts as sign(x) * log(1 + slope * abs(x)): a long tail",
        f"{_SPIKINGJELLY}, NonzeroSignLogAbs",
        positive("slope", 1.0, "at 0 dx is slope * dy"),
    ),
    _spike(
        "erf_surrogate",
        "slope / sqrt(pi) * exp(-square(slope * x))",
        "the step counts as the error function: the derivative is a normal distribution",
        f"{_SPIKINGJELLY}, Erf; Esser et al., 2015",
        positive("slope", 2.0, "the steepness; at 0 dx is slope / sqrt(pi) * dy"),
    ),
    _spike(
        "piecewise_leaky_surrogate",
        "where(abs(x) <= width, 1 / (2 * width), leak)",
        "the step counts as a line within its width, with a small slope beyond",
        f"{_SPIKINGJELLY}, PiecewiseLeakyReLU",
        positive("width", 1.0, "how far the line goes"),
        Parameter("leak", "dx / dy beyond", 0.01, "leak >= 0"),
    ),
    _spike(
        "s2nn_surrogate",
        "where(x < 0, slope * sigmoid(slope * x) * sigmoid(-slope * x), tail / (1 + x))",
        "the step counts as a logistic function below 0 and as a logarithm above",
        f"{_SPIKINGJELLY}, S2NN; Suetake et al., S2NN, 2022",
        positive("slope", 4.0, "the steepness below 0"),
        positive("tail", 1.0, "dx / dy at 0 from above"),
    ),
    _spike(
        "q_pseudo_spike_surrogate",
        "(1 + 2 / (q - 1) * abs(x)) ** -q",
        "the derivative of the step has a tail that falls as a power",
        f"{_SPIKINGJELLY}, QPseudoSpike; Herranz-Celotti and Rouat, 2022",
        Parameter("q", "how fast the tail falls", 2.0, "q > 1 and is_finite(q)"),
    ),
    _spike(
        "leaky_step_surrogate",
        "where(x < 0, leak, slope)",
        "one slope below the step and one above: a leaky ReLU",
        f"{_SPIKINGJELLY}, LeakyKReLU; {_SNNTORCH}, LeakySpikeOperator (leak 0.1, slope 1)",
        Parameter("leak", "dx / dy below 0", 0.0, "is_finite(leak)"),
        Parameter("slope", "dx / dy from 0 on", 1.0, "is_finite(slope)"),
    ),
    _spike(
        "reciprocal_surrogate",
        "minimum(1 / abs(x), most)",
        "the slope of the line from the origin to the step",
        f"{_SPIKINGJELLY}, FakeNumericalGradient",
        positive("most", 0.3, "the largest dx / dy"),
    ),
    _spike(
        "log_tailed_surrogate",
        "where(x <= 0, leak, where(x <= 1, 1, 1 / x))",
        "the step counts as a ReLU that goes on as a logarithm from 1",
        f"{_SPIKINGJELLY}, LogTailedReLU",
        Parameter("leak", "dx / dy below 0", 0.0, "is_finite(leak)"),
    ),
    _spike(
        "escape_rate_surrogate",
        "slope * exp(-decay * abs(x - 1))",
        "an escape rate: the derivative falls exponentially around x = 1",
        f"{_SNNTORCH}, SpikeRateEscape; Gerstner and Kistler, Spiking Neuron Models, 2002",
        positive("decay", 1.0, "how fast it falls"),
        positive("slope", 25.0, "dx / dy at x = 1"),
    ),
    Entry(
        "stochastic_spike_surrogate",
        "where(x > 0, dy, dy * (variance * (0.5 * erf(normal_like(x, seed) / 1.4142135623730951)"
        " + mean)))",
        purpose="a unit that spiked passes dy, any other unit a random part of it, uniform between"
        " variance * (mean - 0.5) and variance * (mean + 0.5)",
        avoid="you compare runs number by number",
        source=f"{_SNNTORCH}, StochasticSpikeOperator",
        parameters=(
            Parameter("mean", "the middle, in multiples of the width", 0.0, "is_finite(mean)"),
            Parameter("variance", "the width", 0.2, "variance >= 0 and is_finite(variance)"),
            Parameter(
                "seed", "seed of the noise, an integer", 0.0, "seed >= 0 and seed == floor(seed)"
            ),
        ),
        ops=("Sign",),
    ),
    _spike(
        "square_wave_surrogate",
        "let w = 2 * pi / period * x; let s = sin(w); 4 / period * where(abs(s) < 0.0003,"
        " terms * cos(w) * (1 - (terms * terms - 1) * 2 / 3 * s * s),"
        " sin(2 * terms * w) / (2 * s))",
        "the step counts as the first terms of the Fourier series of a square wave",
        f"{_SPIKINGJELLY}, SquarewaveFourierSeries (n = terms + 1, T_period = period)",
        Parameter(
            "terms", "how many terms, an integer", 1.0, "terms >= 1 and terms == floor(terms)"
        ),
        positive("period", 8.0, "period of the wave"),
    ),
    _spike(
        "sparse_fast_sigmoid_surrogate",
        "where(x > -reach, 1 / square(1 + slope * abs(x)), 0)",
        "as fast_sigmoid_surrogate, but 0 far below the step: gradients are sparse",
        f"{_SNNTORCH}, SFS; Perez-Nieves and Goodman, Sparse Spiking Gradient Descent, 2021",
        positive("slope", 25.0, "how fast it falls; at 0 dx is dy"),
        positive("reach", 1.0, "how far below the step a gradient flows"),
    ),
)
