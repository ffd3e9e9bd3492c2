"""The patches that fix what blocks a gradient: of single ops by type, and of pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphpatch.analysis.doctor.finding import OpOnPath, RuleDict, rule_for
from graphpatch.dtypes import DIFFERENTIABLE

PatchJson = Mapping[str, Any]


def _formula(*dx: str | None) -> PatchJson:
    return {"override_gradient": {"formula": list(dx)}}


QUOTIENT: PatchJson = {"surrogate_gradient": "x0 / x1"}

# By op type what it counts as on the way back: what it steps around, its derivative where it has
# one that TensorFlow lacks, or that of its mean. For others, straight_through where it can be.
OPS: dict[str, PatchJson] = {
    "AdjustContrastv2": {
        "surrogate_gradient": "(x0 - mean(x0, axes=[-3, -2], keepdims=true)) * x1"
        " + mean(x0, axes=[-3, -2], keepdims=true)"
    },
    "FloorDiv": QUOTIENT,
    "LinSpace": _formula("dy * (x1 - y) / (x1 - x0)", "dy * (y - x0) / (x1 - x0)", None),
    "RandomPoissonV2": _formula(None, "dy"),
    "Sign": {"override_gradient": "fast_sigmoid_surrogate"},
    "TruncateDiv": QUOTIENT,
    "TruncateMod": _formula("dy", "-dy * (x0 - y) / x1"),
}
PYTHON_FUNCTIONS = frozenset({"PyFunc", "PyFuncStateless"})  # of which no shape is known


def fixes(look: OpOnPath) -> list[RuleDict]:
    """The rules that may fix an op that blocks, the best first."""
    if look.read not in DIFFERENTIABLE or look.given not in DIFFERENTIABLE:
        return []
    slot, found = look.step.slot, []
    if look.op in OPS:
        found.append(rule_for(look.node, "has a gradient", OPS[look.op]))
    if look.op in PYTHON_FUNCTIONS and len(look.node.data_inputs) == 1:
        found.append(rule_for(look.node, "counts as the identity", {"surrogate_gradient": "x"}))
    if look.is_identity_in_shape and look.is_blocked:
        patch = {"straight_through": True if not slot else {"input": slot}}
        found.append(rule_for(look.node, "passes gradients", patch))
    return found
