"""Ready patterns for what legacy models contain, by name: `{"pattern": "@swish"}`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.decoding import convert
from graphpatch.errors import PatternError, nearest
from graphpatch.graph.op_types import REF_VARIABLES
from graphpatch.match.keys import ACTIVATIONS, CONVOLUTIONS, RESHAPED
from graphpatch.match.pattern.syntax import parse_pattern
from graphpatch.match.spec import Match, Pattern

MatchJson = dict[str, Any]
OpMatches = Mapping[str, Mapping[str, Any]]


class ReadyPattern(msgspec.Struct, frozen=True):
    """A ready pattern: what it stands for, and the forms in which graphs have it.

    A form is a pattern's text, with what its ops must be besides, as a match says it. Matches of
    several forms that end in the same op count as one.
    """

    name: str
    purpose: str
    forms: Mapping[str, OpMatches]

    def patterns(self) -> list[Pattern]:
        """Return the forms as patterns."""
        return [form_pattern(text, where) for text, where in self.forms.items()]

    def captures(self) -> list[str]:
        """Return what `on` can name: the captures that are there in every match of every form."""
        patterns = self.patterns()
        return [
            name
            for name in patterns[0].nodes
            if name[0].islower()
            and all(name in pattern.nodes and name not in pattern.optional for pattern in patterns)
        ]


def form_pattern(text: str, where: OpMatches) -> Pattern:
    """Return a form as a pattern. Raises PatternError, RulesError or ValidationError for a slip."""
    parsed = parse_pattern(text)
    nodes = dict(parsed.nodes)
    for name, besides in where.items():
        nodes[name] = convert({**msgspec.to_builtins(nodes[name]), **besides}, Match)
    return replace(parsed, nodes=nodes)


def forms(*texts: str, **where: MatchJson) -> dict[str, OpMatches]:
    """Return forms in which these ops must also be what a match says, where they have them."""
    return {
        text: {name: match for name, match in where.items() if f"{name}:" in text} for text in texts
    }


_LEAF: MatchJson = {"op": ["Const", "ReadVariableOp", *REF_VARIABLES]}


def _through_reshapes(what: MatchJson) -> MatchJson:
    return {"op": list(RESHAPED), "inputs": {"0": what}}


# A variable or constant, read, reshaped or led into a loop: up to two such ops.
_PARAMETER = {"any": [_LEAF, _through_reshapes(_LEAF), _through_reshapes(_through_reshapes(_LEAF))]}
_READS_PARAMETER: MatchJson = {"inputs": {"any": _PARAMETER}}

# The op adds a parameter; the sum of two branches of a net is not a bias.
_ADDS_PARAMETER: MatchJson = {
    "any": [{"op": ["BiasAdd", "BiasAddV1"]}, {"op": ["Add", "AddV2"], **_READS_PARAMETER}]
}

# The op reduces over axes of which the first one, that of the batch, is none.
_BATCH_AXES = (0, [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3, 4])
_EACH_EXAMPLE: MatchJson = {
    "inputs": {"1": {"not": {"op": "Const", "any": [{"value": axes} for axes in _BATCH_AXES]}}}
}

# The op reads no variance of single examples, in the forms of tf.nn.moments.
_BY_SUMS = {"op": "Sub", "inputs": {"0": {"inputs": {"any": {"op": "Sum", **_EACH_EXAMPLE}}}}}
_OF_A_BATCH: MatchJson = {"inputs": {"none": {"any": [{"op": "Mean", **_EACH_EXAMPLE}, _BY_SUMS]}}}

_CONV = "|".join(CONVOLUTIONS)
_MATMUL = "MatMul|BatchMatMul|BatchMatMulV2|BatchMatMulV3|Einsum"
_ACTIVATION = "|".join(ACTIVATIONS)
_BIAS = "bias:BiasAdd|BiasAddV1|Add|AddV2 -> back:Reshape|Squeeze|Identity?"

LAYERS = (
    ReadyPattern(
        "conv_bias_activation",
        "a convolution, also depthwise or transposed, its bias and its activation",
        forms(
            f"conv:{_CONV} -> shape:Reshape|Squeeze|BatchToSpaceND? -> shape_2:BatchToSpaceND?"
            f" -> {_BIAS} -> activation:{_ACTIVATION}",
            bias=_ADDS_PARAMETER,
        ),
    ),
    ReadyPattern(
        "dense_bias_activation",
        "a matrix product, its bias and its activation",
        forms(
            f"matmul:{_MATMUL} -> shape:Reshape? -> {_BIAS} -> activation:{_ACTIVATION}|Softmax",
            bias=_ADDS_PARAMETER,
        ),
    ),
    ReadyPattern(
        "folded_batch_norm",
        "a batch norm whose constants were folded: a convolution or product, times a parameter, "
        "plus a parameter",
        forms(
            "scale:Mul -> shift:Add|AddV2|Sub|BiasAdd",
            scale={
                "all": [
                    {"inputs": {"any": {"op": [*CONVOLUTIONS, "MatMul", "BiasAdd"]}}},
                    _READS_PARAMETER,
                ]
            },
            shift=_READS_PARAMETER,
        ),
    ),
)

# As tf.nn.batch_normalization has it: x * scale + (beta - mean * scale).
_SCALED = (
    "epsilon:Add|AddV2 -> root:Rsqrt -> gamma:Mul? -> mul:Mul -> norm:Add|AddV2;"
    " x:_ -> mul; gamma -> shift:Mul"
)
_SHIFTS = ("shift -> beta:Sub:1 -> norm", "negative:Neg -> shift -> norm")
# As Keras has layer norm: x * scale + (-mean * scale + beta).
_KERAS_SHIFT = "negative:Neg -> shift -> beta:Add|AddV2? -> norm"

# As tf.nn.moments has them today, and up to TensorFlow 1.1.
_MOMENTS = (
    "x -> mean:Mean:0 -> stop:StopGradient? -> difference:SquaredDifference -> variance:Mean:0;"
    " x -> difference; variance -> epsilon"
)
_MOMENTS_BY_SUMS = (
    "x -> sum:Sum:0 -> mean:Mul -> square:Square -> variance:Sub:1 -> epsilon; count:_ -> mean;"
    " x -> power:Square -> squares:Sum:0 -> average:Mul -> variance:0; count -> average"
)

# By hand: (x - mean) / sqrt(variance + epsilon) * gamma + beta.
_CENTERED = "x:_ -> mean:Mean:0 -> centered:Sub:1; x -> centered:0"
_VARIANCES = (
    "mean -> stop:StopGradient? -> difference:SquaredDifference -> variance:Mean:0;"
    " x -> difference",
    "mean -> difference:Sub:1 -> square:Square -> variance:Mean:0; x -> difference:0",
    "centered -> square:Square -> variance:Mean:0",
)
_ROOTS = (
    "root:Rsqrt -> unit:Mul; centered -> unit",
    "root:Sqrt -> unit:RealDiv|Div:1; centered -> unit:0",
    "root:Pow:0; Const=0.5 -> root:1; root -> unit:RealDiv|Div:1; centered -> unit:0",
)

NORMS = (
    ReadyPattern(
        "batch_norm",
        "a batch norm of single ops, as tf.nn.batch_normalization builds it",
        forms(*(f"{_SCALED}; {shift}" for shift in _SHIFTS), epsilon=_OF_A_BATCH),
    ),
    ReadyPattern(
        "fused_batch_norm",
        "a batch norm that is one op",
        forms(
            "norm:FusedBatchNorm|FusedBatchNormV2|FusedBatchNormV3|BatchNormWithGlobalNormalization"
        ),
    ),
    ReadyPattern(
        "layer_norm",
        "a layer norm, or instance norm, of single ops: by the moments of each example",
        forms(
            f"{_SCALED}; {_SHIFTS[0]}; {_MOMENTS}; mean -> shift",
            f"{_SCALED}; {_KERAS_SHIFT}; {_MOMENTS}; mean -> negative",
            variance=_EACH_EXAMPLE,
        )
        | forms(
            f"{_SCALED}; {_SHIFTS[0]}; {_MOMENTS_BY_SUMS}; mean -> shift", squares=_EACH_EXAMPLE
        )
        | forms(
            *(
                f"{_CENTERED}; {variance}; variance -> epsilon:Add|AddV2 -> {root};"
                " unit -> gamma:Mul? -> beta:Add|AddV2?"
                for variance, root in product(_VARIANCES, _ROOTS)
            ),
            variance=_EACH_EXAMPLE,
            gamma=_READS_PARAMETER,
            beta=_READS_PARAMETER,
        ),
    ),
)

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

ACTIVATION_PATTERNS = (
    ReadyPattern(
        "leaky_relu",
        "max(x, slope * x) with a slope that is a constant from 0 to 1, or a variable",
        forms(
            "x:_ -> scaled:Mul -> largest:Maximum; x -> largest; slope:_ -> scaled",
            scaled=_LEAKY_SLOPE,
        ),
    ),
    ReadyPattern(
        "leaky_relu_by_abs",
        "a leaky ReLU as f1 * x + f2 * abs(x); as one op it reads x, f1 and f2",
        forms(
            "x:_ -> linear:Mul -> leaky:Add|AddV2; f1:_ -> linear;"
            " x -> size:Abs -> even:Mul -> leaky; f2:_ -> even"
        ),
    ),
    ReadyPattern(
        "prelu",
        "x where it is positive, slope * x elsewhere: by a choice, or as a sum of two parts; as one"
        " op it reads x and the slope",
        forms(
            "x:_ -> positive:Greater|GreaterEqual:0 -> prelu:Select|SelectV2:0;"
            " Const=0 -> positive:1; x -> prelu:1; x -> scaled:Mul -> prelu:2; slope:_ -> scaled",
            "x:_ -> negative:Less|LessEqual:0 -> prelu:Select|SelectV2:0; Const=0 -> negative:1;"
            " x -> scaled:Mul -> prelu:1; x -> prelu:2; slope:_ -> scaled",
            f"x:_ -> positive:Relu -> prelu:Sub:0; {_TURNED} -> scaled:Mul -> prelu:1;"
            " slope:_ -> scaled",
            "x:_ -> positive:Relu -> prelu:Sub:0; x -> scaled:Mul -> turned:Neg -> below:Relu"
            " -> prelu:1; slope:_ -> scaled",
            *(above + below for above, below in product(_ABOVE, _BELOW)),
            half=_HALVED,
        ),
    ),
    ReadyPattern(
        "prelu_of_negated_slope",
        "the same with a constant that is minus the slope: relu(x) + negated * relu(-x), as"
        " folding leaves a PReLU, or relu(x) - relu(negated * x)",
        forms(
            f"x:_ -> positive:Relu -> prelu:Add|AddV2; {_TURNED} -> scaled:Mul -> prelu;"
            " negated:_ -> scaled",
            "x:_ -> positive:Relu -> prelu:Sub:0; x -> scaled:Mul -> below:Relu -> prelu:1;"
            " negated:_ -> scaled",
            scaled=_NEGATED_SLOPE,
        ),
    ),
    ReadyPattern(
        "prelu_of_half_slope",
        "the same with a constant that is half the slope: relu(x) + half * (x - abs(x))",
        forms(
            *(
                f"{above}x -> below:Sub:0; x -> size:Abs -> below:1; below -> scaled:Mul -> prelu;"
                " half:_ -> scaled"
                for above in _ABOVE
            ),
            scaled={"inputs": {"any": {"op": "Const"}}},
        ),
    ),
    ReadyPattern(
        "masked_relu",
        "x times a mask of whether it is above or below a number: a ReLU, or a part of a leaky one",
        forms(
            "x:_ -> compared:Greater|GreaterEqual|Less|LessEqual:0 -> mask:Cast -> masked:Mul;"
            " x -> masked; threshold:Const -> compared:1"
        ),
    ),
    ReadyPattern(
        "swish",
        "x * sigmoid(x), or x * sigmoid(beta * x); where tf.custom_gradient put an IdentityN behind"
        " it, the gradient of that one counts",
        forms(
            "x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul",
            "x:_ -> scale:Mul -> sigmoid:Sigmoid -> mul:Mul; x -> mul",
            scale=_READS_PARAMETER,
        ),
    ),
    ReadyPattern(
        "hard_swish",
        "x * relu6(x + 3) / 6",
        forms(
            *(
                f"x:_ -> shift:Add|AddV2 -> {clip}; Const=3 -> shift; {sixth}"
                for clip, sixth in product(_CLIPS, _SIXTHS)
            )
        ),
    ),
    ReadyPattern(
        "gelu",
        "x * Phi(x) by erf, or its approximation by tanh",
        forms(
            *(
                f"{cdf}; cdf -> one:Add|AddV2; Const=1 -> one; {half}"
                for cdf, half in product((*_ERFS, *_TANHS), _HALVES)
            ),
            _ERFC,
        ),
    ),
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

_NOISE = (
    "noise:RandomUniform|StatelessRandomUniform|StatelessRandomUniformV2"
    " -> range:Mul? -> random:Add|AddV2?"
)
# By a constant or by 1 / (1 - rate): in a training graph gradients are multiplied by masks too.
_DROPOUT_SCALE = {
    "any": [
        {"op": "Mul", "inputs": {"any": {"op": ["Const", "RealDiv", "Div"]}}},
        {"op": ["RealDiv", "Div"], "inputs": {"1": {"op": "Sub"}}},
    ]
}

_LOGS = (
    "logits:_ -> softmax:Softmax -> share:RealDiv|Div?:0"
    " -> guard:Add|AddV2|Minimum|Maximum|ClipByValue? -> guard_2:Minimum|Maximum? -> log:Log",
    "logits:_ -> log:LogSoftmax",
)
_CROSS_ENTROPY_SUMS = (
    "log -> picked:Mul -> sum:Sum|Mean:0 -> mean:Sum|Mean?:0 -> loss:Neg",
    "log -> picked:Mul -> negative:Neg -> loss:Sum|Mean:0",
    "log -> negative:Neg -> picked:Mul -> loss:Sum|Mean:0",
    "log -> picked:Mul -> loss:Sum|Mean:0; labels:Neg -> picked",
)

TRAINING = (
    ReadyPattern(
        "dropout",
        "dropout as in training: x / keep * mask, where the mask is drawn in every run",
        forms(
            f"x:_ -> scaled:RealDiv|Div:0 -> drop:Mul; {_NOISE} -> sum:Add|AddV2"
            " -> mask:Floor -> drop; keep:_ -> sum; keep -> scaled:1"
        )
        | forms(
            f"x:_ -> scaled:Mul|RealDiv|Div:0 -> drop:Mul; {_NOISE} -> kept:GreaterEqual:0"
            " -> mask:Cast -> drop",
            f"x:_ -> scaled:Mul|RealDiv|Div:0 -> drop:Select|SelectV2:1;"
            f" {_NOISE} -> mask:GreaterEqual:0 -> drop:0; Const=0 -> drop:2",
            scaled=_DROPOUT_SCALE,
        ),
    ),
    ReadyPattern(
        "fake_quantization",
        "values rounded as a quantized net will have them, in floats",
        forms(
            "quantize:FakeQuantWithMinMaxArgs|FakeQuantWithMinMaxVars"
            "|FakeQuantWithMinMaxVarsPerChannel|QuantizeAndDequantize"
            "|QuantizeAndDequantizeV2|QuantizeAndDequantizeV3|QuantizeAndDequantizeV4"
        ),
    ),
    ReadyPattern(
        "softmax_cross_entropy",
        "the loss of a classifier: one op, or labels times the log of a softmax, summed",
        forms(
            "loss:SoftmaxCrossEntropyWithLogits|SparseSoftmaxCrossEntropyWithLogits",
            *(f"{log}; {sums}" for log, sums in product(_LOGS, _CROSS_ENTROPY_SUMS)),
        ),
    ),
)

READY: Mapping[str, ReadyPattern] = MappingProxyType(
    {entry.name: entry for entry in (*LAYERS, *NORMS, *ACTIVATION_PATTERNS, *TRAINING)}
)


def ready_pattern(name: str) -> ReadyPattern:
    """Return the ready pattern of this name. Raises PatternError, which names the nearest ones."""
    if name not in READY:
        near = nearest(name, READY)
        listed = ", ".join(f"@{entry}" for entry in near or READY)
        near_names = f"; {'nearest' if near else 'legal'}: {listed}"
        raise PatternError(f"pattern: no ready pattern is called {'@' + name!r}{near_names}")
    return READY[name]


def pattern_document(entry: ReadyPattern) -> dict[str, Any]:
    """Return a ready pattern as `patterns --json` prints it: forms as a rules file has them."""
    return {
        "name": f"@{entry.name}",
        "for": entry.purpose,
        "on": entry.captures(),
        "forms": [
            {"text": text, "pattern": msgspec.to_builtins(form_pattern(text, where))}
            for text, where in entry.forms.items()
        ],
    }


def patterns_table() -> str:
    """Return the ready patterns as the table of the README."""
    lines = ["| pattern | for | `on` |", "|---|---|---|"]
    for entry in READY.values():
        names = ", ".join(f"`{name}`" for name in entry.captures())
        lines.append(f"| `@{entry.name}` | {entry.purpose} | {names} |")
    return "\n".join(lines)
