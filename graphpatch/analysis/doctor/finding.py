"""One op on the path, as the causes are asked about it; and what they find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.doctor.path import PathStep
from graphpatch.differentiation import flow
from graphpatch.differentiation.gradient_reach import OpGradientFlow, Refusal
from graphpatch.differentiation.patched_ops import CARRIED
from graphpatch.differentiation.wiring import Wiring
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.graph.body import Node
from graphpatch.graph.model_body import op_type_in_model

RuleDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpOnPath:
    """An op that is left by one output and entered by one slot, and what it answers."""

    wiring: Wiring
    step: PathStep
    answer: OpGradientFlow

    @property
    def node(self) -> Node:
        """The op."""
        return Node(self.wiring.body, self.step.index)

    @property
    def op(self) -> str:
        """Its op type."""
        return self.node.op

    @property
    def refusal(self) -> Refusal | None:
        """What it raises, where it raises."""
        return self.answer.first

    @property
    def read(self) -> str:
        """The dtype of the tensor that the slot reads."""
        return self.wiring.dtype(self.wiring.inputs(self.step.index)[self.step.slot]) or "unknown"

    @property
    def given(self) -> str:
        """The dtype of the tensor by which it is left."""
        return self.wiring.dtype((self.step.index, self.step.output)) or "unknown"

    @property
    def given_to_slot(self) -> flow.Flow:
        """What comes to the slot from the output, by the op's own gradient or its override's."""
        return given_to_slot(self.wiring, self.step.index, self.step.output, self.step.slot)

    @property
    def is_blocked(self) -> bool:
        """Whether a gradient ends here: an op that it flows through has nothing to fix."""
        flows = self.step.slot in self.answer.slots and self.given_to_slot != "zero"
        return self.answer.raises or not flows

    @property
    def is_identity_in_shape(self) -> bool:
        """Whether it can count as the identity of this input: one output, same dtype and shape."""
        known = self.node.opdef
        return (
            self.read == self.given
            and self.given in DIFFERENTIABLE
            and len(self.wiring.outputs(self.step.index)) == 1
            and known is not None
            and self.step.slot in known.keeps_shape
        )


def given_to_slot(wiring: Wiring, index: int, output: int, slot: int) -> flow.Flow:
    """What comes to a slot of an op when a gradient comes to this output alone."""
    inputs, outputs = wiring.inputs(index), wiring.outputs(index)
    op = wiring.gradient_type(index)
    is_own = op == wiring.body.heads.ops[index]
    name = outputs[output].name if is_own and output < len(outputs) else None
    return flow.into(op, slot, len(inputs), wiring.dtype(inputs[slot]), name)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong at one op: in words, what TensorFlow does then, and what fixes it.

    `rules` are those that may fix it, the best first; `remedy` says what does where none can.
    """

    kind: str
    node: Node
    slot: int | None
    what: str
    consequence: str
    remedy: str
    rules: Sequence[RuleDict] = ()

    @property
    def op_type(self) -> str:
        """The op type that the op has in the model, whatever a rule put in its place."""
        return op_type_in_model(self.node)

    @property
    def is_of_tape(self) -> bool:
        """Whether a GradientTape alone ends here, and a Session goes on."""
        return self.kind == CARRIED

    def document(self) -> dict[str, Any]:
        """The finding as `doctor --json` prints it."""
        return {
            "kind": self.kind,
            "op": self.node.name,
            "type": self.op_type,
            "body": self.node.body.label,
            "slot": self.slot,
            "tape_only": self.is_of_tape,
            "what": self.what,
            "consequence": self.consequence,
            "remedy": self.remedy,
            "rule": self.rules[0] if self.rules else None,
        }


def rule_for(node: Node, title: str, patch: Mapping[str, Any]) -> RuleDict:
    """A rule for one op, by its name and body."""
    match = {"name": node.name, "body": node.body.label}
    return {"name": f"{title}: {node.name}", "match": match, "patch": dict(patch), "expect": 1}
