"""Gradients that look at dy alone, by element or by norm, for any op; learned quantization."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter, positive

_PASCANU = "Pascanu, Mikolov and Bengio, On the difficulty of training recurrent networks, 2013"
_NOT_FINITE = "An infinite norm (or, in float16, one above 65504) makes all elements NaN"

NORM_GRADIENTS = (
    Entry(
        "clip_by_norm",
        "where(is_finite(norm(dy)), dy * (norm / maximum(norm(dy), norm)), nan)",
        purpose="a gradient with a larger norm is scaled down to this norm; its direction stays",
        avoid=f"you want to bound single elements: clip does that. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_norm",
        parameters=(positive("norm", None, "the largest norm"),),
        by_element=False,
    ),
    Entry(
        "clip_by_global_norm",
        "where(is_finite(norm(dy)), dy * (norm * minimum(1 / norm(dy), 1 / norm)), nan)",
        purpose="what tf.clip_by_global_norm gives for this one tensor",
        avoid=f"you want the norm of several gradients: an op sees only its own. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_global_norm",
        parameters=(positive("norm", None, "the largest norm"),),
        by_element=False,
        differs="tf.clip_by_global_norm takes several tensors; the gradient of an op sees one",
    ),
    Entry(
        "normalize",
        "where(norm(dy) == 0, 0, where(is_finite(norm(dy)), dy / norm(dy), nan))",
        purpose="the gradient has norm 1, whatever its length was; zeros stay zeros",
        avoid=f"small gradients must stay small: this scales them up. {_NOT_FINITE}",
        source="Hazan, Levy and Shalev-Shwartz, Beyond Convexity: Stochastic Quasi-Convex"
        " Optimization, 2015",
        by_element=False,
    ),
)


_GRL = "Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, 2015"

FILTERS = (
    Entry(
        "zero",
        "0",
        purpose="the gradient is zeros, not None, so optimizers accept it",
        avoid="you want None: the patch stop_gradient gives that",
        source="definition",
        by_element=False,
    ),
    Entry(
        "identity",
        "dy",
        purpose="the op counts as identity on the way back",
        avoid="the op changes the shape (other than by broadcasting): dy does not fit the input",
        source="definition",
    ),
    Entry(
        "scale",
        "factor * dy",
        purpose="the gradient times a number: another learning rate for everything before the op",
        avoid="an optimizer such as Adam follows: its steps do not depend on the scale",
        source="definition",
        parameters=(Parameter("factor", "what dy is multiplied by", legal="is_finite(factor)"),),
    ),
    Entry(
        "reverse",
        "-strength * dy",
        purpose="gradient reversal: what is before the op learns the opposite of what is after it",
        avoid="you train the two parts in turns: minimize the negative loss instead",
        source=_GRL,
        parameters=(
            Parameter(
                "strength",
                "what dy is multiplied by, besides -1 (lambda in the paper)",
                1.0,
                "strength >= 0 and is_finite(strength)",
            ),
        ),
    ),
    Entry(
        "clip",
        "clip(dy, min, max)",
        purpose="each element of the gradient is kept within bounds, infinities too",
        avoid="the direction must stay: clip_by_norm keeps it. NaN stays NaN: finite replaces it",
        source="Mikolov, Statistical Language Models Based on Neural Networks, 2012",
        parameters=(Parameter("min", "the lower bound"), Parameter("max", "the upper bound")),
        legal="min <= max",
    ),
    Entry(
        "sign",
        "sign(dy)",
        purpose="the sign of each element: -1, 0 or 1",
        avoid="gradients are noisy around 0: there the sign is only noise",
        source="Bernstein et al., signSGD, 2018",
    ),
    Entry(
        "finite",
        "where(is_finite(dy), dy, value)",
        purpose="NaN and infinities are replaced, so that one bad element does not spoil a step",
        avoid="the cause is not known yet: this hides it",
        source="definition",
        parameters=(Parameter("value", "the value in their place", 0.0, "is_finite(value)"),),
    ),
)


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
        differs="in the paper the deviation decays with the global step; a file has none",
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
