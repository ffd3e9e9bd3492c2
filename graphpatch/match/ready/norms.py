"""Normalisations: by the moments of a batch, and by those of each example."""

from __future__ import annotations

from itertools import product

from graphpatch.match.ready.entry import (
    EACH_EXAMPLE,
    OF_A_BATCH,
    READS_PARAMETER,
    PatternForm,
    ReadyPattern,
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


def _by_hand(variance: str, root: str) -> PatternForm:
    return PatternForm(
        f"{_CENTERED}; {variance}; variance -> epsilon:Add|AddV2 -> {root};"
        " unit -> gamma:Mul? -> beta:Add|AddV2?",
        {"variance": EACH_EXAMPLE, "gamma": READS_PARAMETER, "beta": READS_PARAMETER},
    )


NORM_PATTERNS = (
    ReadyPattern(
        "batch_norm",
        "a batch norm of single ops, as tf.nn.batch_normalization builds it",
        tuple(PatternForm(f"{_SCALED}; {shift}", {"epsilon": OF_A_BATCH}) for shift in _SHIFTS),
    ),
    ReadyPattern(
        "fused_batch_norm",
        "a batch norm that is one op",
        (
            PatternForm(
                "norm:FusedBatchNorm|FusedBatchNormV2|FusedBatchNormV3"
                "|BatchNormWithGlobalNormalization"
            ),
        ),
    ),
    ReadyPattern(
        "layer_norm",
        "a layer norm, or instance norm, of single ops: by the moments of each example",
        (
            PatternForm(
                f"{_SCALED}; {_SHIFTS[0]}; {_MOMENTS}; mean -> shift", {"variance": EACH_EXAMPLE}
            ),
            PatternForm(
                f"{_SCALED}; {_KERAS_SHIFT}; {_MOMENTS}; mean -> negative",
                {"variance": EACH_EXAMPLE},
            ),
            PatternForm(
                f"{_SCALED}; {_SHIFTS[0]}; {_MOMENTS_BY_SUMS}; mean -> shift",
                {"squares": EACH_EXAMPLE},
            ),
            *(_by_hand(variance, root) for variance, root in product(_VARIANCES, _ROOTS)),
        ),
    ),
)
