"""Activations that a graph has as several ops."""

from __future__ import annotations

from itertools import product

from graphpatch.graph.op_types import REF_VARIABLES
from graphpatch.match.ready.entry import READS_PARAMETER, PatternForm, ReadyPattern

_CLIPS = (
    "clip:Relu6",
    "low:Minimum -> clip:Maximum; Const=6 -> low; Const=0 -> clip",
    "clip:ClipByValue:0; Const=0 -> clip:1; Const=6 -> clip:2",
)
_SIXTHS = (
    "clip -> mul:Mul -> scale:RealDiv|Div:0; x -> mul; Const=6 -> scale:1",
    "clip -> mul:Mul -> scale:Mul; x -> mul; Const=0.1666667~1e-3 -> scale",
    "clip -> scale:RealDiv|Div:0 -> mul:Mul; x -> mul; Const=6 -> scale:1",
    "clip -> scale:Mul -> mul:Mul; x -> mul; Const=0.1666667~1e-3 -> scale",
)

# x / sqrt(2), and sqrt(2 / pi) * (x + 0.044715 * x ** 3).
_ERFS = (
    "x:_ -> scaled:RealDiv|Div:0 -> cdf:Erf; Const=1.4142136~1e-3 -> scaled:1",
    "x:_ -> scaled:RealDiv|Div:0 -> cdf:Erf; Const=2 -> sqrt:Sqrt -> scaled:1",
    "x:_ -> scaled:Mul -> cdf:Erf; Const=0.7071068~1e-3 -> scaled",
)
_CUBES = (
    "x:_ -> cube:Pow:0; Const=3 -> cube:1",
    "x:_ -> square:Mul -> cube:Mul; x -> square; x -> cube",
    "x:_ -> square:Square -> cube:Mul; x -> cube",
)
_TANHS = tuple(
    f"{cube}; cube -> term:Mul -> sum:Add|AddV2 -> scaled:Mul -> cdf:Tanh; x -> sum;"
    " Const=0.044715~1e-4 -> term; Const=0.7978846~1e-3 -> scaled"
    for cube in _CUBES
)
# 0.5 * x * (1 + cdf), in the order in which it is multiplied.
_HALVES = (
    "one -> half:Mul -> mul:Mul; Const=0.5 -> half; x -> mul",
    "one -> mul:Mul; x -> half:Mul -> mul; Const=0.5 -> half",
    "one -> mul:Mul -> half:Mul; x -> mul; Const=0.5 -> half",
)
_ERFC = (
    "x:_ -> negative:Neg -> scaled:Mul -> cdf:Erfc; Const=0.7071068~1e-3 -> scaled;"
    " x -> half:Mul -> mul:Mul; Const=0.5 -> half; cdf -> mul"
)

_READ_VARIABLE = {
    "any": [{"op": "ReadVariableOp"}, {"op": "Identity", "inputs": {"0": {"op": [*REF_VARIABLES]}}}]
}
_LEAKY_SLOPE = {
    "inputs": {"any": {"any": [{"op": "Const", "value": {">=": 0, "<": 1}}, _READ_VARIABLE]}}
}
_NEGATED_SLOPE = {"inputs": {"any": {"op": "Const", "value": {"<=": 0}}}}
_HALVED = {
    "any": [
        {"op": "Mul", "inputs": {"any": {"op": "Const", "value": 0.5}}},
        {"op": ["RealDiv", "Div"], "inputs": {"1": {"op": "Const", "value": 2}}},
    ]
}
_ABOVE = (
    "x:_ -> positive:Relu -> prelu:Add|AddV2; ",
    "x:_ -> positive:Maximum -> prelu:Add|AddV2; Const=0 -> positive; ",
)
_TURNED = "x -> turned:Neg -> below:Relu"
_DOUBLE = "x -> below:Sub:0; x -> size:Abs -> below:1; half_:Const -> half:Mul|RealDiv|Div; "
_BELOW = (
    "x -> below:Minimum -> scaled:Mul -> prelu; Const=0 -> below; slope:_ -> scaled",
    "x -> scaled:Mul -> below:Minimum -> prelu; Const=0 -> below; slope:_ -> scaled",
    f"{_TURNED} -> scaled:Mul -> prelu; slope:_ -> negative:Neg -> scaled",
    f"{_TURNED} -> negative:Neg -> scaled:Mul -> prelu; slope:_ -> scaled",
    f"{_TURNED} -> scaled:Mul -> negative:Neg -> prelu; slope:_ -> scaled",
    f"{_DOUBLE}below -> scaled:Mul -> half -> prelu; slope:_ -> scaled",
    f"{_DOUBLE}below -> half -> scaled:Mul -> prelu; slope:_ -> scaled",
    f"{_DOUBLE}below -> scaled:Mul -> prelu; slope:_ -> half -> scaled",
)
_PRELUS = (
    "x:_ -> positive:Greater|GreaterEqual:0 -> prelu:Select|SelectV2:0; Const=0 -> positive:1;"
    " x -> prelu:1; x -> scaled:Mul -> prelu:2; slope:_ -> scaled",
    "x:_ -> negative:Less|LessEqual:0 -> prelu:Select|SelectV2:0; Const=0 -> negative:1;"
    " x -> scaled:Mul -> prelu:1; x -> prelu:2; slope:_ -> scaled",
    f"x:_ -> positive:Relu -> prelu:Sub:0; {_TURNED} -> scaled:Mul -> prelu:1; slope:_ -> scaled",
    "x:_ -> positive:Relu -> prelu:Sub:0; x -> scaled:Mul -> turned:Neg -> below:Relu -> prelu:1;"
    " slope:_ -> scaled",
    *(above + below for above, below in product(_ABOVE, _BELOW)),
)

NEEDED = {
    "leaky_relu": frozenset({"Maximum"}),
    "leaky_relu_by_abs": frozenset({"Abs"}),
    "prelu": frozenset({"Relu", "Maximum", "Greater", "GreaterEqual", "Less", "LessEqual"}),
    "prelu_of_negated_slope": frozenset({"Relu"}),
    "prelu_of_half_slope": frozenset({"Abs"}),
    "masked_relu": frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"}),
    "swish": frozenset({"Sigmoid"}),
    "hard_swish": frozenset({"Relu6", "Minimum", "ClipByValue"}),
    "gelu": frozenset({"Erf", "Erfc", "Tanh"}),
}
"""For each of them op types of which one is there, where it is."""

ACTIVATION_PATTERNS = (
    ReadyPattern(
        "leaky_relu",
        "max(x, slope * x) with a slope that is a constant from 0 to 1, or a variable",
        (
            PatternForm(
                "x:_ -> scaled:Mul -> largest:Maximum; x -> largest; slope:_ -> scaled",
                {"scaled": _LEAKY_SLOPE},
            ),
        ),
    ),
    ReadyPattern(
        "leaky_relu_by_abs",
        "a leaky ReLU as f1 * x + f2 * abs(x); as one op it reads x, f1 and f2",
        (
            PatternForm(
                "x:_ -> linear:Mul -> leaky:Add|AddV2; f1:_ -> linear;"
                " x -> size:Abs -> even:Mul -> leaky; f2:_ -> even"
            ),
        ),
    ),
    ReadyPattern(
        "prelu",
        "x where it is positive, slope * x elsewhere: by a choice, or as a sum of two parts; as one"
        " op it reads x and the slope",
        tuple(PatternForm(text, {"half": _HALVED} if "half:" in text else {}) for text in _PRELUS),
    ),
    ReadyPattern(
        "prelu_of_negated_slope",
        "the same with a constant that is minus the slope: relu(x) + negated * relu(-x), as"
        " folding leaves a PReLU, or relu(x) - relu(negated * x)",
        (
            PatternForm(
                f"x:_ -> positive:Relu -> prelu:Add|AddV2; {_TURNED} -> scaled:Mul -> prelu;"
                " negated:_ -> scaled",
                {"scaled": _NEGATED_SLOPE},
            ),
            PatternForm(
                "x:_ -> positive:Relu -> prelu:Sub:0; x -> scaled:Mul -> below:Relu -> prelu:1;"
                " negated:_ -> scaled",
                {"scaled": _NEGATED_SLOPE},
            ),
        ),
    ),
    ReadyPattern(
        "prelu_of_half_slope",
        "the same with a constant that is half the slope: relu(x) + half * (x - abs(x))",
        tuple(
            PatternForm(
                f"{above}x -> below:Sub:0; x -> size:Abs -> below:1; below -> scaled:Mul -> prelu;"
                " half:_ -> scaled",
                {"scaled": {"inputs": {"any": {"op": "Const"}}}},
            )
            for above in _ABOVE
        ),
    ),
    ReadyPattern(
        "masked_relu",
        "x times a mask of whether it is above or below a number: a ReLU, or a part of a leaky one",
        (
            PatternForm(
                "x:_ -> compared:Greater|GreaterEqual|Less|LessEqual:0 -> mask:Cast"
                " -> masked:Mul; x -> masked; threshold:Const -> compared:1"
            ),
        ),
    ),
    ReadyPattern(
        "swish",
        "x * sigmoid(x), or x * sigmoid(beta * x); where tf.custom_gradient put an IdentityN behind"
        " it, the gradient of that one counts",
        (
            PatternForm("x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul"),
            PatternForm(
                "x:_ -> scale:Mul -> sigmoid:Sigmoid -> mul:Mul; x -> mul",
                {"scale": READS_PARAMETER},
            ),
        ),
    ),
    ReadyPattern(
        "hard_swish",
        "x * relu6(x + 3) / 6",
        tuple(
            PatternForm(f"x:_ -> shift:Add|AddV2 -> {clip}; Const=3 -> shift; {sixth}")
            for clip, sixth in product(_CLIPS, _SIXTHS)
        ),
    ),
    ReadyPattern(
        "gelu",
        "x * Phi(x) by erf, or its approximation by tanh",
        (
            *(
                PatternForm(f"{cdf}; cdf -> one:Add|AddV2; Const=1 -> one; {half}")
                for cdf, half in product((*_ERFS, *_TANHS), _HALVES)
            ),
            PatternForm(_ERFC),
        ),
    ),
)
