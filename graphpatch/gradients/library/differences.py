"""DeepLIFT and DeepSHAP with a reference for each unit.

The reference of `deeplift_rescale` is a number for all units, or a tensor. Entries whose name ends
in `_batch` take the second half of the batch as references of the first: example k is compared with
example k + n / 2. What arrives at the input is a multiplier: its product with the difference of the
two inputs is the attribution, and taken by whoever reads it.
"""

from __future__ import annotations

from graphpatch.gradients.library.entry import (
    ACTIVATIONS,
    DEEPLIFT,
    LAYERS,
    Entry,
    Parameter,
    positive,
)

_SHAP = "Lundberg and Lee, A Unified Approach to Interpreting Model Predictions, 2017; shap,"
_TWICE = "the batch is not examples followed by as many references: deeplift_rescale fits then"

_NEAR = "where x is nearer to the reference than this, the derivative is used"
TOLERANCE = positive("tolerance", 1e-6, _NEAR)


def _minus(tensor: str, name: str) -> str:
    """Write a `let`: the difference of the two halves, for both."""
    both = f"split({tensor}, 2, 0) - split({tensor}, 2, 1)"
    return f"let {name}h = {both}; let {name} = concat({name}h, {name}h); "


def _let_halves(name: str, tensor: str) -> str:
    """Write a `let`: both halves, each for both."""
    return "".join(
        f"let {name}{n} = concat(split({tensor}, 2, {n}), split({tensor}, 2, {n})); "
        for n in (0, 1)
    )


_SOFTMAX = (
    "let m = max(x, axes=-1, keepdims=true); let c = x - m; let e = exp(c);"
    " let s = sum(e, axes=-1, keepdims=true); "
    + _let_halves("e", "e")
    + _let_halves("s", "s")
    + _minus("x", "a")
    + _minus("c", "b")
    + "let f = where(abs(e0 - e1) < tolerance, dy / s, dy * (0.5 *"
    " (e0 / s0 - e1 / s0 + e0 / s1 - e1 / s1) / (e0 - e1))); "
    "let t = sum(where(abs(s0 - s1) < tolerance, -dy * e / square(s), dy * (0.5 *"
    " (e0 / s0 - e0 / s1 + e1 / s0 - e1 / s1) / (s0 - s1))), axes=-1, keepdims=true); "
    "let g = (f + t) * where(abs(b) < tolerance, e, (e0 - e1) / b); "
    "where(abs(a) < tolerance, g, g * (b / a))"
)


def _reveal(product: str, back: str) -> str:
    """Write RevealCancel of a layer with a ReLU: x0, x1, x2 are its input, weights and bias.

    `product` is the layer without its bias, of {a} and {w}; `back` its gradient of {s} by x0.
    """

    def of(a: str, w: str) -> str:
        return product.format(a=a, w=w)

    def by(s: str, w: str) -> str:
        return back.format(s=s, w=w)

    return (
        _minus("x0", "d") + "let r1 = concat(split(x0, 2, 1), split(x0, 2, 1));"
        " let w = relu(x1); let v = -relu(-x1); let p = relu(d); let n = -relu(-d);"
        f" let z = bias_add({of('r1', 'x1')}, x2); let a = {of('p', 'w')} + {of('n', 'v')};"
        f" let b = {of('p', 'v')} + {of('n', 'w')};"
        " let f = 0.5 * (relu(z + a) - relu(z) + relu(z + a + b) - relu(z + b));"
        " let g = 0.5 * (relu(z + b) - relu(z) + relu(z + a + b) - relu(z + a));"
        " let s = where(abs(a) > tolerance, dy * (f / a), 0);"
        " let t = where(abs(b) > tolerance, dy * (g / b), 0);"
        f" let up = {by('s', 'w')} + {by('t', 'v')};"
        f" let down = {by('s', 'v')} + {by('t', 'w')};"
        " where(d > 0, up, where(d < 0, down, 0.5 * (up + down)))"
    )


def _reveal_cancel(name: str, layer: str, product: str, back: str) -> Entry:
    return Entry(
        name,
        (_reveal(product, back), None, None),
        purpose=f"DeepLIFT's RevealCancel rule of `{layer} -> BiasAdd -> Relu` as one op",
        avoid=f"{_TWICE}; the MatMul has transpose_a or transpose_b",
        source=DEEPLIFT,
        parameters=(TOLERANCE,),
        differs="only for Relu: for other activations DeepLIFT's authors use the rescale rule",
    )


def one_active(x: str, slope: str = "0") -> str:
    """Return the rescale rule of an op of which the input `x` alone depends on the model's input.

    `slope` is the derivative where x is near the reference; an infinite one counts as 0.
    """
    near = f"where(is_finite({slope}), dy * ({slope}), 0)" if slope != "0" else slope
    quotient = f"where(abs(a) > 1e-6, dy * (b / a), {near})"
    return f"{_minus(x, 'a')}{_minus('y', 'b')}sum_like({quotient}, {x})"


def _of_two(x: str, difference: str, *points: str) -> str:
    """Return Shapley's part of an input of two: the op moves between these points, two by two."""
    s = "forward({}) - forward({}) + forward({}) - forward({})".format(*points)
    return (
        f"{_let_halves('a', 'x0')}{_let_halves('b', 'x1')}let d = {difference}; let s = {s}; "
        f"sum_like(where(abs(d) > tolerance, dy * (0.5 * s / d), 0), {x})"
    )


DIFFERENCES = (
    *(
        Entry(
            f"deeplift_rescale{word}",
            "where(abs(x - reference) > tolerance,"
            " dy * ((y - forward(zeros_like(x) + reference)) / (x - reference)), own(dy))",
            purpose="DeepLIFT's rescale rule: the slope from the reference to x",
            avoid="units have different inputs on the reference image: give a tensor",
            source=f"{DEEPLIFT}; as a gradient: Ancona et al., 2018",
            parameters=(
                Parameter(
                    "reference", "the input of each unit on the reference image", 0, is_tensor=True
                ),
                positive("tolerance", 1e-5, _NEAR),
            ),
            ops=ACTIVATIONS,
            differs="a number is the reference of all units; a tensor has one for each unit, as"
            " `graphpatch references` measures them on a reference input; deeplift_batch takes them"
            " from the batch",
        )
        for word in ("", "_sigmoid", "_tanh", "_other")  # the last three are earlier names
    ),
    *(_reveal_cancel(f"reveal_cancel{word}_batch", *layer) for word, *layer in LAYERS),
    Entry(
        "deeplift_batch",
        _minus("x", "a") + _minus("y", "b") + "where(abs(a) > tolerance, dy * (b / a), own(dy))",
        purpose="DeepLIFT's rescale rule, with the references in the second half of the batch",
        avoid=_TWICE,
        source=DEEPLIFT,
        parameters=(TOLERANCE,),
        ops=ACTIVATIONS,
        by_op_type={"MaxPool": "shap_max_pool_batch", "Softmax": "shap_softmax_batch"},
        by_element=False,
    ),
    Entry(
        "shap_max_pool_batch",
        "let t = split(y, 2, 0); let r = split(y, 2, 1); let m = maximum(t, r);"
        " let g = own(dy * concat(m - r, t - m)); let s = split(g, 2, 0) + split(g, 2, 1);"
        " let d = split(x, 2, 0) - split(x, 2, 1);"
        " let q = where(abs(d) < tolerance, 0, s / d); concat(q, q)",
        purpose="DeepSHAP's rule of max pooling: the difference goes to the inputs that made it",
        avoid=_TWICE,
        source=f"{_SHAP} deep_tf.py, maxpool",
        parameters=(positive("tolerance", 1e-7, _NEAR),),
        ops=("MaxPool",),
        by_element=False,
    ),
    Entry(
        "deeplift_product_batch",
        f"{_let_halves('a', 'x0')}{_let_halves('b', 'x1')}"
        "own(dy, 0.5 * (a0 + a1), 0.5 * (b0 + b1))",
        purpose="DeepSHAP's rule of a product of two tensors that both depend on the input",
        avoid=f"{_TWICE}; a factor is a weight, which is not in the batch",
        source=f"{_SHAP} deep_tf.py, nonlinearity_2d",
        ops=("Mul", "BatchMatMul", "BatchMatMulV2"),
        by_element=False,
    ),
    Entry(
        "deeplift_pair_batch",
        (
            _of_two("x0", "a0 - a1", "a0, b0", "a1, b0", "a0, b1", "a1, b1"),
            _of_two("x1", "b0 - b1", "a0, b0", "a0, b1", "a1, b0", "a1, b1"),
        ),
        purpose="DeepSHAP's rule of an op of two tensors that both depend on the input",
        avoid=f"{_TWICE}; an input is a weight, which is not in the batch",
        source=f"{_SHAP} deep_tf.py, nonlinearity_2d",
        parameters=(TOLERANCE,),
        ops=("RealDiv", "Pow", "SquaredDifference", "Maximum", "Minimum"),
        differs="each gets Shapley's part of the difference, and 0 where it has none itself",
    ),
    Entry(
        "shap_softmax_batch",
        _SOFTMAX,
        purpose="DeepSHAP's rule of softmax: exp by the rescale rule, the quotient by Shapley's",
        avoid=f"{_TWICE}; the classes are not on the last axis",
        source=f"{_SHAP} deep_tf.py, softmax",
        parameters=(TOLERANCE,),
        ops=("Softmax",),
        by_element=False,
    ),
)
