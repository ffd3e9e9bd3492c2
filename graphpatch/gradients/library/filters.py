"""Gradients that look at each element of dy alone: for any op, or for a tensor on the way back."""

from __future__ import annotations

from graphpatch.gradients.library.entry import Entry, Parameter

_GRL = "Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, 2015"

FILTERS = (
    Entry(
        "zero",
        "0",
        purpose="nothing flows, as zeros: the gradient is there, so optimisers accept it",
        avoid="None is wanted, as for a tensor that was never used: stop_gradient gives that",
        source="definition",
        elementwise=False,
    ),
    Entry(
        "identity",
        "dy",
        purpose="the op counts as identity on the way back",
        avoid="the op changes the shape other than by broadcasting: dy does not fit then",
        source="definition",
    ),
    Entry(
        "scale",
        "factor * dy",
        purpose="a learning rate of its own for all that lies before the op",
        avoid="an optimiser like Adam follows, whose steps do not depend on the scale",
        source="definition",
        parameters=(Parameter("factor", "what dy is multiplied by", legal="is_finite(factor)"),),
    ),
    Entry(
        "reverse",
        "-strength * dy",
        purpose="gradient reversal: what lies before the op learns the contrary of what follows",
        avoid="the two parts are trained in turns anyway: minimise the negative loss there",
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
        purpose="no element of the gradient beyond bounds; infinities end at the bounds",
        avoid="the direction shall stay: clip_by_norm keeps it. NaN stays NaN: finite removes it",
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
        purpose="only the direction of each element counts: -1, 0 or 1",
        avoid="gradients are noisy around 0, where the sign is noise alone",
        source="Bernstein et al., signSGD, 2018",
    ),
    Entry(
        "finite",
        "where(is_finite(dy), dy, value)",
        purpose="NaN and infinities are replaced, so that one bad element does not spoil a step",
        avoid="the cause is not known yet: this hides it",
        source="definition",
        parameters=(Parameter("value", "what stands in their place", 0.0, "is_finite(value)"),),
    ),
)
