"""What training adds: dropout, fake quantization, the cross entropy at the end."""

from __future__ import annotations

from itertools import product

from graphpatch.match.ready.entry import PatternForm, ReadyPattern

_NOISE = (
    "noise:RandomUniform|StatelessRandomUniform|StatelessRandomUniformV2"
    " -> range:Mul? -> random:Add|AddV2?"
)
# By a constant or by 1 / (1 - rate): in a training graph gradients are multiplied by masks too.
_DROPOUT_SCALE = {
    "scaled": {
        "any": [
            {"op": "Mul", "inputs": {"any": {"op": ["Const", "RealDiv", "Div"]}}},
            {"op": ["RealDiv", "Div"], "inputs": {"1": {"op": "Sub"}}},
        ]
    }
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
        (
            PatternForm(
                f"x:_ -> scaled:RealDiv|Div:0 -> drop:Mul; {_NOISE} -> sum:Add|AddV2"
                " -> mask:Floor -> drop; keep:_ -> sum; keep -> scaled:1"
            ),
            PatternForm(
                f"x:_ -> scaled:Mul|RealDiv|Div:0 -> drop:Mul; {_NOISE} -> kept:GreaterEqual:0"
                " -> mask:Cast -> drop",
                _DROPOUT_SCALE,
            ),
            PatternForm(
                f"x:_ -> scaled:Mul|RealDiv|Div:0 -> drop:Select|SelectV2:1;"
                f" {_NOISE} -> mask:GreaterEqual:0 -> drop:0; Const=0 -> drop:2",
                _DROPOUT_SCALE,
            ),
        ),
    ),
    ReadyPattern(
        "fake_quantization",
        "values rounded as a quantized net will have them, in floats",
        (
            PatternForm(
                "quantize:FakeQuantWithMinMaxArgs|FakeQuantWithMinMaxVars"
                "|FakeQuantWithMinMaxVarsPerChannel|QuantizeAndDequantize"
                "|QuantizeAndDequantizeV2|QuantizeAndDequantizeV3|QuantizeAndDequantizeV4"
            ),
        ),
    ),
    ReadyPattern(
        "softmax_cross_entropy",
        "the loss of a classifier: one op, or labels times the log of a softmax, summed",
        (
            PatternForm("loss:SoftmaxCrossEntropyWithLogits|SparseSoftmaxCrossEntropyWithLogits"),
            *(PatternForm(f"{log}; {sums}") for log, sums in product(_LOGS, _CROSS_ENTROPY_SUMS)),
        ),
    ),
)
