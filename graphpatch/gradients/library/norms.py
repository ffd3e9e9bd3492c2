"""Gradients that look at the norm of dy. It is taken over all elements, in double precision."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter

_PASCANU = "Pascanu, Mikolov and Bengio, On the difficulty of training recurrent networks, 2013"
_NOT_FINITE = "An infinite norm (or, in float16, one above 65504) makes all elements NaN"

NORMS = (
    Entry(
        "clip_by_norm",
        "where(is_finite(norm(dy)), dy * (norm / maximum(norm(dy), norm)), nan)",
        purpose="a gradient that is too long is shortened, in its direction, to a given norm",
        avoid=f"single elements are to be bounded: clip does that. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_norm",
        parameters=(Parameter("norm", "the largest norm", legal="norm > 0 and is_finite(norm)"),),
        elementwise=False,
    ),
    Entry(
        "clip_by_global_norm",
        "where(is_finite(norm(dy)), dy * (norm * minimum(1 / norm(dy), 1 / norm)), nan)",
        purpose="tf.clip_by_global_norm of a list that holds this one tensor",
        avoid=f"the norm is to be that of several gradients: an op sees one. {_NOT_FINITE}",
        source=f"{_PASCANU}; tf.clip_by_global_norm",
        parameters=(Parameter("norm", "the largest norm", legal="norm > 0 and is_finite(norm)"),),
        elementwise=False,
        reach="one tensor: a norm over the gradients of several ops is no gradient of one of them",
    ),
    Entry(
        "normalize",
        "where(norm(dy) == 0, 0, where(is_finite(norm(dy)), dy / norm(dy), nan))",
        purpose="the gradient has norm 1, whatever its length was; zeros stay zeros",
        avoid=f"a small gradient means little to do: it is blown up. {_NOT_FINITE}",
        source="Hazan, Levy and Shalev-Shwartz, Beyond Convexity: Stochastic Quasi-Convex"
        " Optimization, 2015",
        elementwise=False,
    ),
)
