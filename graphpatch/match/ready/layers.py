"""Layers with weights: a convolution or product, its bias, its activation."""

from __future__ import annotations

from graphpatch.match.op_classes import ACTIVATIONS, CONVOLUTIONS
from graphpatch.match.ready.entry import BIAS, READS_PARAMETER, PatternForm, ReadyPattern

CONV = "|".join(CONVOLUTIONS)
MATMUL = "MatMul|BatchMatMul|BatchMatMulV2|BatchMatMulV3|Einsum"
ACTIVATION = "|".join(ACTIVATIONS)
_BIAS = "bias:BiasAdd|BiasAddV1|Add|AddV2 -> back:Reshape|Squeeze|Identity?"

LAYER_PATTERNS = (
    ReadyPattern(
        "conv_bias_activation",
        "a convolution, also depthwise or transposed, its bias and its activation",
        (
            PatternForm(
                f"conv:{CONV} -> shape:Reshape|Squeeze|BatchToSpaceND?"
                f" -> shape_2:BatchToSpaceND? -> {_BIAS} -> activation:{ACTIVATION}",
                {"bias": BIAS},
            ),
        ),
    ),
    ReadyPattern(
        "dense_bias_activation",
        "a matrix product, its bias and its activation",
        (
            PatternForm(
                f"matmul:{MATMUL} -> shape:Reshape? -> {_BIAS} -> activation:{ACTIVATION}|Softmax",
                {"bias": BIAS},
            ),
        ),
    ),
    ReadyPattern(
        "folded_batch_norm",
        "a batch norm whose constants were folded: a convolution or product, times a parameter, "
        "plus a parameter",
        (
            PatternForm(
                "scale:Mul -> shift:Add|AddV2|Sub|BiasAdd",
                {
                    "scale": {
                        "all": [
                            {"inputs": {"any": {"op": [*CONV.split("|"), "MatMul", "BiasAdd"]}}},
                            READS_PARAMETER,
                        ]
                    },
                    "shift": READS_PARAMETER,
                },
            ),
        ),
    ),
)
