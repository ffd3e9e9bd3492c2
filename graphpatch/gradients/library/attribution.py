"""Attribution rules, as far as the gradient of one op can hold them.

These rules change what flows back through activations; that of linear ops stays as it is. What
arrives at the input is a multiplier: its product with the input (for deeplift_rescale, with the
input's difference from its reference) is the attribution, and taken by whoever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphpatch.gradients.library import papers
from graphpatch.gradients.library.entry import Entry, Parameter
from graphpatch.gradients.library.relevance import BATCH_NORMS, LINEAR_OPS

_DEEPLIFT_REACH = (
    "a number is the reference of all units; a tensor has one for each unit, as `graphpatch"
    " references` measures them on a reference input; deeplift_batch takes them from the batch"
)
_OTHERS = ("Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign")
_ACTIVATIONS = ("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softsign")


def _rescale(
    name: str, activation: str, derivative: str, ops: tuple[str, ...], by_op_type: Mapping[str, str]
) -> Entry:
    """Return the difference quotient to the reference, and the derivative close to it."""
    near = "abs(x - reference) > tolerance"
    quotient = f"dy * ((y - {activation}) / (x - reference))"
    return Entry(
        name,
        f"where({near}, {quotient}, {derivative})",
        purpose="DeepLIFT's rescale rule: the slope from the reference to x, not the slope at x",
        avoid="units have different inputs on the reference image: give a tensor",
        source=f"{papers.DEEPLIFT}; as a gradient: Ancona et al., 2018",
        parameters=(
            Parameter(
                "reference", "the input of each unit on the reference image", 0.0, is_tensor=True
            ),
            Parameter(
                "tolerance",
                "where x is nearer to the reference than this, the derivative is used",
                1e-5,
                "tolerance > 0 and is_finite(tolerance)",
            ),
        ),
        ops=ops,
        by_op_type=by_op_type,
        reach=_DEEPLIFT_REACH,
    )


ATTRIBUTION = (
    Entry(
        "lrp_epsilon",
        "dy * (y / where(x < 0, x - epsilon, x + epsilon))",
        purpose="layer-wise relevance propagation by the epsilon rule, through an activation",
        avoid="the activation is not 0 at 0 (Sigmoid, Softplus): relevance would come from nothing",
        source=f"{papers.LRP}; as a gradient: {papers.ANCONA}",
        parameters=(
            Parameter(
                "epsilon",
                "keeps the quotient y / x finite at 0",
                1e-4,
                "epsilon > 0 and is_finite(epsilon)",
            ),
        ),
        ops=_ACTIVATIONS,
        by_op_type={
            **dict.fromkeys((*LINEAR_OPS, "BiasAdd", "Mean", "Sum"), "lrp_epsilon_linear"),
            **dict.fromkeys(BATCH_NORMS, "lrp_epsilon_batch_norm"),
            "AvgPool": "lrp_epsilon_pool",
        },
        reach="x is the output of the linear op before, with its bias",
    ),
    _rescale(
        "deeplift_rescale",
        "relu(reference)",
        "where(x > 0, dy, 0)",
        ("Relu",),
        {
            "Sigmoid": "deeplift_rescale_sigmoid",
            "Tanh": "deeplift_rescale_tanh",
            **dict.fromkeys(_OTHERS, "deeplift_rescale_other"),
        },
    ),
    _rescale(
        "deeplift_rescale_sigmoid", "sigmoid(reference)", "dy * (y * (1 - y))", ("Sigmoid",), {}
    ),
    _rescale("deeplift_rescale_tanh", "tanh(reference)", "dy * (1 - square(y))", ("Tanh",), {}),
    _rescale(
        "deeplift_rescale_other", "forward(zeros_like(x) + reference)", "own(dy)", _OTHERS, {}
    ),
)
