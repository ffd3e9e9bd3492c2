"""Layer-wise relevance propagation (LRP) through linear ops, as gradients.

What flows is a multiplier m: the relevance of a tensor t is t * m. So the gradient of a linear op
by its input is the rule "epsilon" with an epsilon of 0, ops without a rule pass relevance on in
proportion, and input * gradient at the end is the attribution.

Relevance of an output y is y * dy. A rule shares it among the inputs by their contributions x * w:

|            | contributions                                 | biases                            |
|------------|-----------------------------------------------|-----------------------------------|
| epsilon    | x * w                                         | keep their share                  |
| z-plus     | the positive ones                             | get none (lrp_pass at BiasAdd)    |
| alpha-beta | alpha times the positive, -beta the negative  | the same                          |
| gamma      | x * w, positive w enlarged by gamma           | keep their share                  |
| w2         | w * w, whatever x is                          | for the first layer               |
| flat       | equal ones                                    | for the first layer               |

As alpha-beta was published, biases get a share, by their sign: `lrp_alpha_beta_bias` and its kin.
In hidden layers flat and w2 give units that are 0 relevance too, of which no multiplier can tell:
with `OF_RELEVANCE` relevance itself flows.
"""

from __future__ import annotations

from typing import Any

from graphpatch.gradients.library.entry import (
    ACTIVATIONS,
    ANCONA,
    LAYERS,
    LRP,
    Entry,
    Parameter,
    positive,
)

_PURPOSE = "the op's own gradient as a formula: a start for your own"
_SAME_AS_TENSORFLOW = "you do not change it: TensorFlow's own gradient is faster"


def _matmul_gradients(name: str, a: str, b: str, *ops: str) -> Entry:
    """Return the gradients of y = A B, where attrs `a` and `b` transpose A and B."""
    of_first = (
        f"where({a}, matmul(x1, dy, transpose_a={b}, transpose_b=true),"
        f" matmul(dy, x1, transpose_b=not {b}))"
    )
    of_second = (
        f"where({b}, matmul(dy, x0, transpose_a=true, transpose_b={a}),"
        f" matmul(x0, dy, transpose_a=not {a}))"
    )
    source = "Giles, Collected Matrix Derivative Results for Algorithmic Differentiation, 2008"
    texts = (of_first, of_second)
    return Entry(name, texts, _PURPOSE, _SAME_AS_TENSORFLOW, source, ops=ops)


PRODUCT_GRADIENTS = (
    Entry(
        "mul", ("dy * x1", "dy * x0"), _PURPOSE, _SAME_AS_TENSORFLOW, "product rule", ops=("Mul",)
    ),
    _matmul_gradients("matmul", "attr.transpose_a", "attr.transpose_b", "MatMul"),
    _matmul_gradients("batch_matmul", "attr.adj_x", "attr.adj_y", "BatchMatMul", "BatchMatMulV2"),
)


LINEAR_OPS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative")
BATCH_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")

MONTAVON = "Montavon et al., Layer-Wise Relevance Propagation: An Overview, 2019"
DEEP_TAYLOR = "Montavon et al., Explaining NonLinear Classification Decisions with Deep Taylor"
BASTINGS = "Bach et al., Controlling Explanatory Heatmap Resolution and Semantics, 2016"

EPSILON = positive("epsilon", 1e-4, "keeps the quotient finite at 0")
SMALLER_EPSILON = positive("epsilon", 1e-9, EPSILON.does)

STABLE = "own(dy * (y / where(y < 0, y - epsilon, y + epsilon)))"
PASSED = "dy * (y / where(x < 0, x - epsilon, x + epsilon))"

_SIGNS = "let p = relu(x0); let n = -relu(-x0); let w = relu(x1); let v = -relu(-x1);"
_SUM = f"{_SIGNS} let z = forward(p, w) + forward(n, v); "
_POSITIVE = _SUM + "let s = where(z > 0, dy * (y / z), 0); "
_PLUS = "where(x0 > 0, own(s, x0, w), own(s, x0, v))"
_NEGATIVE = "let u = forward(p, v) + forward(n, w); let t = where(u < 0, dy * (y / u), 0); "
_MINUS = "where(x0 > 0, own(t, x0, v), own(t, x0, w))"


_WEIGHED = "LRP's alpha-beta rule: positive contributions weigh alpha, negative ones -beta"
_ALPHA_BETA = (
    Parameter("alpha", "the weight of positive contributions", 2.0, "alpha >= 1"),
    Parameter("beta", "the weight of negative contributions", 1.0, "beta >= 0"),
)
_ALPHA_IS_ONE_MORE = "alpha - beta == 1"


def _by_weights(weights: str, relevance: str) -> str:
    """Write `let r`: the relevance of y, shared in proportion to these weights."""
    shared = f"own(where(z > 0, {relevance}, 0), x0, w)"
    return f"let w = {weights}; let z = forward(ones_like(x0), w); let r = {shared}; "


def _first_layer(weights: str) -> str:
    """Return the same divided by x, which whoever reads it multiplies."""
    return _by_weights(weights, "dy * (y / z)") + "where(x0 == 0, 0, r / x0)"


OF_RELEVANCE = {
    "lrp_flat": _by_weights("ones_like(x1)", "dy / z") + "r",
    "lrp_w2": _by_weights("square(x1)", "dy / z") + "r",
    "deep_taylor": f"{_SUM}let s = where(z > 0, dy / z, 0); x0 * {_PLUS}",
}
"""By recipe, a linear op where relevance itself flows, not a multiplier."""


def _of_layer(product: str, back: str) -> str:
    """Return alpha-beta of a layer as one op, with the parts of its bias in the sums.

    x0, x1, x2 are its input, weights and bias; `product` is that of {a} and {w}, `back` its
    gradient of {s}.
    """
    pw, nv, pv, nw = (product.format(a=a, w=w) for a, w in ("pw", "nv", "pv", "nw"))
    sw, sv, tv, tw = (back.format(s=s, w=w) for s, w in ("sw", "sv", "tv", "tw"))
    return (
        f"{_SIGNS} let b = relu(x2); let c = -relu(-x2);"
        f" let z = bias_add({pw} + {nv}, b + whole * c); let s = where(z == 0, 0, dy * (y / z));"
        f" let u = bias_add({pv} + {nw}, c + whole * b); let t = where(u == 0, 0, dy * (y / u));"
        f" alpha * where(x0 > 0, {sw}, {sv}) - beta * where(x0 > 0, {tv}, {tw})"
    )


def _linear(name: str, text: str, purpose: str, avoid: str, source: str, **rest: Any) -> Entry:
    differs = "the weights get no gradient: relevance belongs to the inputs"
    fields = (name, (text, None), purpose, avoid, source)
    return Entry(*fields, ops=LINEAR_OPS, differs=differs, **rest)


def _epsilon(name: str, ops: tuple[str, ...], inputs: int, **rest: Any) -> Entry:
    """Return the epsilon rule for ops with this many inputs, of which the first gets relevance."""
    text = STABLE if inputs == 1 else (STABLE, *[None] * (inputs - 1))
    purpose = "LRP's epsilon rule at the op itself: small outputs pass less relevance on"
    avoid = "lrp_epsilon is at the activation that follows: use one of the two"
    fields = (name, text, purpose, avoid, LRP, (EPSILON,), ops)
    return Entry(*fields, by_element=False, **rest)


_BY_MEAN = dict.fromkeys(("AvgPool",), "lrp_epsilon_pool")
_FIRST = "the op is not in the first layer: the rule does not look at the values of x"

RELEVANCE = (
    Entry(
        "lrp_epsilon",
        "dy * (y / where(x < 0, x - epsilon, x + epsilon))",
        purpose="layer-wise relevance propagation by the epsilon rule, through an activation",
        avoid="the activation is not 0 at 0 (Sigmoid, Softplus): relevance would come from nothing",
        source=f"{LRP}; as a gradient: {ANCONA}",
        parameters=(positive("epsilon", 1e-4, "keeps the quotient y / x finite at 0"),),
        ops=ACTIVATIONS,
        by_op_type={
            **dict.fromkeys((*LINEAR_OPS, "BiasAdd", "Mean", "Sum"), "lrp_epsilon_linear"),
            **dict.fromkeys(BATCH_NORMS, "lrp_epsilon_batch_norm"),
            "AvgPool": "lrp_epsilon_pool",
        },
        differs="x is the output of the linear op before, with its bias",
    ),
    _epsilon(
        "lrp_epsilon_linear",
        (*LINEAR_OPS, "BiasAdd", "Mean", "Sum"),
        2,
        by_op_type=_BY_MEAN | dict.fromkeys(BATCH_NORMS, "lrp_epsilon_batch_norm"),
    ),
    _epsilon(
        "lrp_epsilon_pool",
        ("AvgPool",),
        1,
        differs="MaxPool needs no rule: its own gradient gives the largest input all relevance",
    ),
    _epsilon("lrp_epsilon_batch_norm", BATCH_NORMS, 5, differs="batch norm for inference, in NHWC"),
    _linear(
        "lrp_zplus",
        _POSITIVE + _PLUS,
        "LRP's z-plus rule (alpha 1, beta 0): only positive contributions get relevance",
        "a whole layer has no positive contribution",
        f"{LRP}; {DEEP_TAYLOR}",
        by_op_type={"AvgPool": "lrp_zplus_pool"},
    ),
    Entry(
        "lrp_zplus_pool",
        "let z = forward(relu(x)); where(x > 0, own(where(z > 0, dy * (y / z), 0)), 0)",
        purpose="LRP's z-plus rule through a mean: only positive inputs get relevance",
        avoid="negative inputs matter: they get nothing",
        source=LRP,
        ops=("AvgPool",),
        by_element=False,
    ),
    _linear(
        "lrp_alpha_beta",
        f"{_POSITIVE}{_NEGATIVE}alpha * {_PLUS} - beta * {_MINUS}",
        _WEIGHED,
        "beta is 0: lrp_zplus does half the work",
        LRP,
        parameters=_ALPHA_BETA,
        legal=_ALPHA_IS_ONE_MORE,
        by_op_type={"AvgPool": "lrp_alpha_beta_pool"},
    ),
    Entry(
        "lrp_alpha_beta_pool",
        "let p = forward(relu(x)); let n = forward(-relu(-x));"
        " let s = where(p > 0, dy * (y / p), 0); let t = where(n < 0, dy * (y / n), 0);"
        " alpha * where(x > 0, own(s), 0) - beta * where(x < 0, own(t), 0)",
        purpose=_WEIGHED,
        avoid="inputs are never below 0: lrp_zplus is the rule then",
        source=LRP,
        parameters=_ALPHA_BETA,
        ops=("AvgPool",),
        by_element=False,
        legal=_ALPHA_IS_ONE_MORE,
    ),
    *(
        Entry(
            f"lrp_alpha_beta_bias{word}",
            (_of_layer(product, back), None, None),
            purpose=f"LRP's alpha-beta rule, a share for biases: `{layer} -> BiasAdd` as one op",
            avoid="the bias must get nothing, or the MatMul has transpose_a or transpose_b",
            source=LRP,
            parameters=(
                *_ALPHA_BETA,
                Parameter(
                    "whole", "1: the whole bias in both sums", 0.0, "whole == 0 or whole == 1"
                ),
            ),
            differs="iNNvestigate's alpha_2_beta_1 is whole = 1: it adds the whole bias to both "
            "sums",
            legal=_ALPHA_IS_ONE_MORE,
        )
        for word, layer, product, back in LAYERS
    ),
    _linear(
        "lrp_gamma",
        "let w = x1 + gamma * relu(x1); let z = forward(x0, w);"
        " own(dy * (y / where(z < 0, z - epsilon, z + epsilon)), x0, w)",
        "LRP's gamma rule: positive weights count 1 + gamma times",
        "inputs are negative: gamma then favours what speaks against the output",
        MONTAVON,
        parameters=(
            Parameter("gamma", "by how much positive weights count more", 0.25, "gamma >= 0"),
            SMALLER_EPSILON,
        ),
    ),
    _linear(
        "lrp_w2",
        _first_layer("square(x1)"),
        "LRP's w-square rule, for a first layer: relevance in proportion to the squared weights",
        _FIRST,
        DEEP_TAYLOR,
    ),
    _linear(
        "lrp_flat",
        _first_layer("ones_like(x1)"),
        "LRP's flat rule, for a first layer: equal relevance for all inputs of a unit",
        _FIRST,
        BASTINGS,
    ),
    Entry(
        "lrp_pass",
        (PASSED, None),
        purpose="the bias gets no relevance: all relevance of y goes to x",
        avoid="the bias must keep its share, as in the epsilon rule: write no rule then",
        source=MONTAVON,
        parameters=(SMALLER_EPSILON,),
        ops=("BiasAdd", "Add", "AddV2", "Sub"),
        by_op_type=dict.fromkeys(BATCH_NORMS, "lrp_pass_batch_norm"),
    ),
    Entry(
        "lrp_pass_batch_norm",
        (PASSED, None, None, None, None),
        purpose="batch norm gets no relevance: all relevance of y goes to x",
        avoid="its offset must keep its share: write no rule then",
        source=MONTAVON,
        parameters=(SMALLER_EPSILON,),
        ops=BATCH_NORMS,
    ),
)
