"""What the text of a pattern cannot say, as matches: what a parameter is, and over which axes."""

from __future__ import annotations

from typing import Any

from graphpatch.match.classes import RESHAPED

MatchJson = dict[str, Any]

_LEAF: MatchJson = {"op": ["Const", "ReadVariableOp", "VariableV2", "Variable"]}


def _passed_on(what: MatchJson) -> MatchJson:
    return {"op": list(RESHAPED), "inputs": {"0": what}}


PARAMETER: MatchJson = {"any": [_LEAF, _passed_on(_LEAF), _passed_on(_passed_on(_LEAF))]}
"""A variable or constant, read, reshaped or led into a loop: up to two such ops."""

READS_PARAMETER: MatchJson = {"inputs": {"any": PARAMETER}}

BIAS: MatchJson = {
    "any": [{"op": ["BiasAdd", "BiasAddV1"]}, {"op": ["Add", "AddV2"], **READS_PARAMETER}],
}
"""The op adds a parameter; the sum of two branches of a net is not a bias."""

_WITHOUT_BATCH: MatchJson = {
    "not": {
        "op": "Const",
        "any": [
            {"value": value}
            for value in (0, [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3, 4])
        ],
    }
}

EACH_EXAMPLE: MatchJson = {"inputs": {"1": _WITHOUT_BATCH}}
"""The op reduces over axes of which the first one, that of the batch, is none."""

OF_A_BATCH: MatchJson = {
    "inputs": {
        "none": {
            "any": [
                {"op": "Mean", **EACH_EXAMPLE},
                {"op": "Sub", "inputs": {"0": {"inputs": {"any": {"op": "Sum", **EACH_EXAMPLE}}}}},
            ]
        }
    }
}
"""The op reads no variance of single examples, in the forms of tf.nn.moments."""
