"""The patches that fix what blocks a gradient: of single ops by type, and of pairs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphpatch.analysis.doctor.finding import Finding, OpOnPath, RuleDict, rule_for
from graphpatch.analysis.doctor.path import PathStep
from graphpatch.differentiation.wiring import Wiring
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.graph.body import Node

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

# A float, something that carries no gradient, a float again: as one op it can count as these. The
# fast sigmoid has no region in which its gradient is exactly 0.
ABOVE = "(x0 - x1) / (1 + abs(x0 - x1))"
BELOW = "(x1 - x0) / (1 + abs(x1 - x0))"
SURROGATES = {"Greater": ABOVE, "GreaterEqual": ABOVE, "Less": BELOW, "LessEqual": BELOW}
PAIRS: dict[tuple[str, str], PatchJson] = {
    ("Cast", "Cast"): {"override_gradient": {"formula": "dy"}},
    **{(op, "Cast"): {"surrogate_gradient": text} for op, text in SURROGATES.items()},
}


def fixes(look: OpOnPath) -> list[RuleDict]:
    """The rules that may fix an op that blocks, the best first."""
    if look.read not in DIFFERENTIABLE or look.given not in DIFFERENTIABLE:
        return []
    found = []
    if look.op in OPS:
        found.append(rule_for(look.node, "has a gradient", OPS[look.op]))
    if look.is_identity_in_shape:
        slot = look.step.slot
        patch = {"straight_through": True if not slot else {"input": slot}}
        found.append(rule_for(look.node, "passes gradients", patch))
    return found


def with_way_back(finding: Finding, wiring: Wiring, behind: Sequence[PathStep]) -> Finding:
    """The finding of an op whose result is cast to a float at once: the two fixed as one."""
    if finding.rules or not behind:
        return finding
    first, last = finding.node, Node(wiring.body, behind[0].index)
    patch = PAIRS.get((first.op, last.op))
    floats = wiring.dtype((last.index, 0)), wiring.dtype(wiring.inputs(first.index)[0])
    if patch is None or not set(floats) <= DIFFERENTIABLE:
        return finding
    pattern = {
        "nodes": {
            "first": {"op": first.op, "name": first.name},
            "last": {"op": last.op, "name": last.name},
        },
        "edges": [["first", "last", {"input": 0}]],
    }
    rule = {
        "name": f"{first.op} and cast pass gradients: {last.name}",
        "match": {"pattern": pattern, "body": wiring.body.label},
        "patch": {**patch, "on": "match"},
        "expect": 1,
    }
    return replace(finding, rules=[rule])
