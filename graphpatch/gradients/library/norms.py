"""Gradients that look at the norm of dy. It is taken over all elements, in double precision."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter

_PASCANU = "Pascanu, Mikolov and Bengio, On the difficulty of training recurrent networks, 2013"
_NOT_FINITE = "An infinite norm (or, in float16, one above 65504) makes all elements NaN"

NORM_GRADIENTS = (
    Entry(
        "clip_by_norm",
        "where(is_finite(norm(dy)), dy * (norm / maximum(norm(dy), norm)), nan)",
        purpose="a gradient with a larger norm is scaled down to this norm; its direction stays",
        avoid=f"you want to bound single elements: clip does that. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_norm",
        parameters=(Parameter("norm", "the largest norm", legal="norm > 0 and is_finite(norm)"),),
        elementwise=False,
    ),
    Entry(
        "clip_by_global_norm",
        "where(is_finite(norm(dy)), dy * (norm * minimum(1 / norm(dy), 1 / norm)), nan)",
        purpose="what tf.clip_by_global_norm gives for this one tensor",
        avoid=f"you want the norm of several gradients: an op sees only its own. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_global_norm",
        parameters=(Parameter("norm", "the largest norm", legal="norm > 0 and is_finite(norm)"),),
        elementwise=False,
        reach="tf.clip_by_global_norm takes several tensors; the gradient of an op sees one",
    ),
    Entry(
        "normalize",
        "where(norm(dy) == 0, 0, where(is_finite(norm(dy)), dy / norm(dy), nan))",
        purpose="the gradient has norm 1, whatever its length was; zeros stay zeros",
        avoid=f"small gradients must stay small: this scales them up. {_NOT_FINITE}",
        source="Hazan, Levy and Shalev-Shwartz, Beyond Convexity: Stochastic Quasi-Convex"
        " Optimization, 2015",
        elementwise=False,
    ),
)
