"""Gradients that look at dy alone, element by element or by its norm: for any op or tensor."""

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
        reach="tf.clip_by_global_norm takes several tensors; the gradient of an op sees one",
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
        parameters=(
            Parameter("min", "the lower bound"),
            Parameter("max", "the upper bound"),
        ),
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
