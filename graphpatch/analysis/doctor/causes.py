"""Why no gradient comes back through an op: one entry a cause, the first that fits is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphpatch import opdefs
from graphpatch.analysis.doctor.path import PathStep
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.gradient_reach import OpGradientFlow, Refusal
from graphpatch.differentiation.hidden import is_swish
from graphpatch.differentiation.override_keys import (
    CARRIED,
    gradient_type,
    is_of_rule,
    override_key,
    rule_of,
)
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.gradients.op_gradients import SECOND
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.graph.provenance import op_type_in_model

RuleDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpOnPath:
    """An op that is left by one output and entered by one slot, and what it answers."""

    wiring: Wiring
    step: PathStep
    answer: OpGradientFlow

    @property
    def node(self) -> Node:
        """Return the op."""
        return Node(self.wiring.body, self.step.index)

    @property
    def op(self) -> str:
        """Its op type."""
        return self.node.op

    @property
    def refusal(self) -> Refusal | None:
        """Return what it raises, where it raises."""
        return self.answer.first

    @property
    def read(self) -> str:
        """Return the dtype of the tensor that the slot reads."""
        return self.wiring.dtype(self.wiring.inputs(self.step.index)[self.step.slot]) or "unknown"

    @property
    def given(self) -> str:
        """Return the dtype of the tensor by which it is left."""
        return self.wiring.dtype((self.step.index, self.step.output)) or "unknown"

    @property
    def given_to_slot(self) -> flow.Flow:
        """What comes to the slot from the output, by the op's own gradient or its override's."""
        return given_to_slot(self.wiring, self.step.index, self.step.output, self.step.slot)

    @property
    def is_blocked(self) -> bool:
        """Return whether a gradient ends here: an op that it flows through has nothing to fix."""
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
    """Return what comes to a slot of an op when a gradient comes to this output alone."""
    inputs, outputs = wiring.inputs(index), wiring.outputs(index)
    op = wiring.gradient_type(index)
    is_own = op == wiring.body.heads.ops[index]
    name = outputs[output].name if is_own and output < len(outputs) else None
    return flow.into(op, slot, len(inputs), wiring.dtype(inputs[slot]), name)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong at one op: in words, what TensorFlow does then, and what fixes it.

    `rules` are those that may fix it, the best first; `remedy` says what does where none can. Once
    they were tried, there is the one that does, or none.
    """

    kind: str
    node: Node
    slot: int | None
    what: str
    consequence: str
    remedy: str
    rules: Sequence[RuleDict] = ()
    is_tried: bool = False

    @property
    def op_type(self) -> str:
        """Return the op type that the op has in the model, whatever a rule put in its place."""
        return op_type_in_model(self.node)

    @property
    def is_of_tape(self) -> bool:
        """Return whether a GradientTape alone ends here, and a Session goes on."""
        return self.kind == CARRIED

    def document(self) -> dict[str, Any]:
        """Return the finding as `doctor --json` prints it."""
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
            "tried": self.is_tried,
        }


TRUE = "its true gradient"
"""The title of rules that are no stand-ins."""


def rule_for(node: Node, title: str, patch: Mapping[str, Any]) -> RuleDict:
    """Return a rule for one op, by its name and body."""
    match = {"name": node.name, "body": node.body.label}
    return {"name": f"{title}: {node.name}", "match": match, "patch": dict(patch), "expect": 1}


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
# Of these the true gradient; the others are stand-ins.
EXACT = frozenset({"AdjustContrastv2", "LinSpace", "TruncateMod"})
PYTHON_FUNCTIONS = frozenset({"PyFunc", "PyFuncStateless"})  # of which no shape is known


def fixes(at_op: OpOnPath) -> list[RuleDict]:
    """Return the rules that may fix an op that blocks, the best first."""
    if at_op.read not in DIFFERENTIABLE or at_op.given not in DIFFERENTIABLE:
        return []
    slot, rules = at_op.step.slot, []
    if at_op.op in SECOND:
        rules.append(rule_for(at_op.node, TRUE, _formula(*SECOND[at_op.op])))
    if at_op.op in OPS:
        title = TRUE if at_op.op in EXACT else "has a gradient"
        rules.append(rule_for(at_op.node, title, OPS[at_op.op]))
    if at_op.op in PYTHON_FUNCTIONS and len(at_op.node.data_inputs) == 1:
        rules.append(rule_for(at_op.node, "counts as the identity", {"surrogate_gradient": "x"}))
    if at_op.is_identity_in_shape and at_op.is_blocked:
        patch = {"straight_through": True if not slot else {"input": slot}}
        rules.append(rule_for(at_op.node, "passes gradients", patch))
    return rules


AS_ONE = '{{"surrogate_gradient": "{}", "on": "match"}}'
BEHIND = "differentiate with respect to a tensor behind it"
LOSS_BEFORE = "take a tensor before it as the loss"
IN_BETWEEN = f"match the ops from what is still float to what is float again as one; or {BEHIND}"


def with_run(finding: Finding, wiring: Wiring, steps: Sequence[PathStep], place: int) -> Finding:
    """Give the finding at that place of a path the rule by which a run of ops counts as one op.

    The run leads from the last op that reads a float to the first that gives one again.
    """
    run = _steps_between_floats(wiring, steps, place)
    nodes = [Node(wiring.body, step.index) for step in run]
    is_left = finding.kind == "missing" and _dtype_given(wiring, steps[place]) not in DIFFERENTIABLE
    between = finding.remedy == IN_BETWEEN or is_left
    is_known = finding.node.opdef is not None
    if finding.rules or not is_known or not (between or (nodes and nodes[0].op in SURROGATES)):
        return finding
    if not run or len(run) == 1 or not _counts_as_one(wiring, run):
        if not between:
            return finding
        ends = (_dtype_given(wiring, step) in DIFFERENTIABLE for step in steps[place:])
        return replace(finding, remedy=BEHIND if any(ends) else NO_FLOAT_AGAIN)
    formula = _stand_in(wiring, run, nodes)
    links = (_link(node, step.slot) for node, step in zip(nodes, run, strict=True))
    remedy = (
        f"match the ops from {nodes[0].name} to {nodes[-1].name} as one pattern, "
        f'"{" -> ".join(["x:_", *links])}", and give it '
        f"{AS_ONE.format(formula) if formula else 'a surrogate_gradient that you know'}"
    )
    remedy = f"{remedy}{', a stand-in' if formula else ''}; or {BEHIND}"
    rules = [_rule_of_run(wiring, run, nodes, formula)] if formula else []
    return replace(finding, remedy=remedy if between else finding.remedy, rules=rules)


def _stand_in(wiring: Wiring, run: Sequence[PathStep], nodes: Sequence[Node]) -> str:
    """Return the formula that a run of ops counts as; nothing where an op of it computes more."""
    formula = SURROGATES.get(nodes[0].op, f"x{run[0].slot}")
    if nodes[0].op not in SURROGATES:
        formula = "x" if len(nodes[0].data_inputs) == 1 and run[0].slot == 0 else formula
    shapes = Shapes(wiring)
    for node, step in zip(nodes, run, strict=True):
        if node.op in SURROGATES and node == nodes[0]:
            continue
        if node.op not in COUNTS_AS or step.output or step.slot:
            return ""
        formula = COUNTS_AS[node.op].format(formula)
    start, end = wiring.inputs(run[0].index)[run[0].slot], (run[-1].index, 0)
    start_shape, end_shape = shapes.if_known(start), shapes.if_known(end)
    if start_shape is None or end_shape is None or nodes[0].op in SURROGATES:
        return formula
    alike = len(start_shape) == len(end_shape) and all(
        a is None or b is None or a == b for a, b in zip(start_shape, end_shape, strict=True)
    )
    return formula if alike else ""


def _rule_of_run(
    wiring: Wiring, run: Sequence[PathStep], nodes: Sequence[Node], formula: str
) -> RuleDict:
    names = [f"n{number}" for number in range(len(nodes))]
    edges = zip(names, names[1:], run[1:], strict=False)
    pattern = {
        "nodes": {
            name: {"op": node.op, "name": node.name}
            for name, node in zip(names, nodes, strict=True)
        },
        "edges": [[before, after, {"input": step.slot}] for before, after, step in edges],
    }
    return {
        "name": f"{nodes[0].op} to {nodes[-1].op} pass gradients: {nodes[-1].name}",
        "match": {"pattern": pattern, "body": wiring.body.label},
        "patch": {"surrogate_gradient": formula, "on": "match"},
        "expect": 1,
    }


def name_tensors(
    finding: Finding, wiring: Wiring, source: Tensor, steps: Sequence[PathStep]
) -> Finding:
    """Name the tensors that a remedy speaks of: those of the path next to what blocks it."""
    if BEHIND not in finding.remedy and LOSS_BEFORE not in finding.remedy:
        return finding
    tensors = [source, *((step.index, step.output) for step in steps)]
    blamed = finding.node.index if finding.node.body is wiring.body else None
    places = [n for n, (index, _) in enumerate(tensors) if index == blamed and n]
    place = places[0] if places else len(tensors)
    floats = [n for n, tensor in enumerate(tensors) if wiring.dtype(tensor) in DIFFERENTIABLE]
    behind = next((wiring.spelled(tensors[n]) for n in floats if n >= place), "")
    before = next((wiring.spelled(tensors[n]) for n in reversed(floats) if n < place), "")
    remedy = finding.remedy
    if behind:
        remedy = remedy.replace(BEHIND, f"differentiate with respect to {behind}, behind it")
    if before:
        remedy = remedy.replace(LOSS_BEFORE, f"take {before}, before it, as the loss")
    return replace(finding, remedy=remedy)


def _steps_between_floats(
    wiring: Wiring, steps: Sequence[PathStep], place: int
) -> Sequence[PathStep]:
    """The steps from the last one that reads a float to the first one that gives a float again."""

    def reads(step: PathStep) -> str | None:
        return wiring.dtype(wiring.inputs(step.index)[step.slot])

    before = (n for n in range(place, -1, -1) if reads(steps[n]) in DIFFERENTIABLE)
    ends = (n for n in range(place, len(steps)) if _dtype_given(wiring, steps[n]) in DIFFERENTIABLE)
    start, end = next(before, None), next(ends, None)
    return () if start is None or end is None else steps[start : end + 1]


def _dtype_given(wiring: Wiring, step: PathStep) -> str | None:
    return wiring.dtype((step.index, step.output))


def _counts_as_one(wiring: Wiring, run: Sequence[PathStep]) -> bool:
    """Whether nothing outside reads what lies inside: a match that is one op has one output."""
    inside = {step.index for step in run}
    returned = {tensor[0] for tensor in wiring.returned}
    return all(Node(wiring.body, step.index).opdef is not None for step in run) and not any(
        step.index in returned
        or any(reader not in inside for _, reader, _ in wiring.readers(step.index))
        for step in run[:-1]
    )


def _link(node: Node, slot: int) -> str:
    return f"{node.op}:{slot}" if slot else node.op


NO_FLOAT_AGAIN = f"{LOSS_BEFORE}: nothing behind it is float again"

# What ops that pass numbers on in another form count as on the way back, inside a run of such ops;
# a run with any other op gets no formula.
COUNTS_AS = {
    **dict.fromkeys(
        "Cast Identity QuantizeV2 Dequantize Requantize QuantizeDownAndShrinkRange EncodeJpeg"
        " DecodeJpeg EncodePng DecodePng DecodeImage DecodeBmp DecodeRaw AsString StringToNumber"
        " EncodeBase64 DecodeBase64 Bucketize".split(),
        "{}",
    ),
    "QuantizedRelu": "relu({})",
    "QuantizedRelu6": "relu6({})",
}
ABOVE = "(x0 - x1) / (1 + abs(x0 - x1))"  # a fast sigmoid: nowhere is its gradient exactly 0
BELOW = "(x1 - x0) / (1 + abs(x1 - x0))"
SURROGATES = {"Greater": ABOVE, "GreaterEqual": ABOVE, "Less": BELOW, "LessEqual": BELOW}

COMPARISONS = frozenset(
    "Equal NotEqual Less LessEqual Greater GreaterEqual ApproximateEqual LogicalAnd LogicalOr"
    " LogicalNot IsNan IsInf IsFinite".split()
)
NONE = "None: tf.gradients returns None, without an error"
ZEROS = "zeros: the gradient is there, and every element of it is 0"

STRAIGHT = "let it count as the identity on the way back (straight_through), a stand-in"
OUTSIDE = f"no gradient can be given to it; {BEHIND}"


def _to_default(at_op: OpOnPath) -> list[RuleDict]:
    known = at_op.node.opdef
    if known is None or known.gradient != "registered":
        return []
    return [rule_for(at_op.node, "its own gradient", {"override_gradient": "default"})]


def _no_rules(at_op: OpOnPath) -> list[RuleDict]:
    return []


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of findings: when it applies, what it says of an op, what fixes it."""

    kind: str
    applies: Callable[[OpOnPath], bool]
    what: str
    consequence: str
    remedy: str
    rules: Callable[[OpOnPath], list[RuleDict]] = _no_rules

    def finding(self, at_op: OpOnPath) -> Finding:
        """Return what is found at this op."""
        node, refusal = at_op.node, at_op.refusal
        words = {
            "op": node.op,
            "slot": at_op.step.slot,
            "output": f"output {at_op.step.output}",
            "read": at_op.read,
            "given": at_op.given,
            "key": override_key(node) or "",
            "rule": rule_of(node),
            "in_between": IN_BETWEEN,
            "says": refusal.says if refusal is not None else "",
        }
        what, consequence, remedy = (
            text.format(**words) for text in (self.what, self.consequence, self.remedy)
        )
        return Finding(
            self.kind, node, at_op.step.slot, what, consequence, remedy, self.rules(at_op)
        )


def _raises(kind: str) -> Callable[[OpOnPath], bool]:
    return lambda at_op: at_op.refusal is not None and at_op.refusal.kind == kind


def _op_is_one_of(ops: frozenset[str]) -> Callable[[OpOnPath], bool]:
    return lambda at_op: at_op.op in ops


def _gradient_is(state: str) -> Callable[[OpOnPath], bool]:
    return lambda at_op: (opdefs.lookup(at_op.op) or opdefs.OpDef("")).gradient == state


def _is_our_key(at_op: OpOnPath) -> bool:
    return _raises("key")(at_op) and bool(rule_of(at_op.node))


def _calls_functions(at_op: OpOnPath) -> bool:
    return at_op.op in OP_BY_OP | CALLS or at_op.op in at_op.node.body.library.signatures


# fmt: off
CAUSES = (
    Cause(CARRIED, _raises(CARRIED),
          "rule '{rule}' carries its gradient in a function, which a tape drops",
          "{says}, by design: the tape must not take another gradient silently",
          "graphpatch.register_gradients(FILE) first; or write a SavedModel (--inputs, --outputs)"),
    Cause("our_key", _is_our_key,
          "override key {key}, which rule '{rule}' gave it and no program registers",
          "{says}; TensorFlow names {op}, not the missing key",
          "register it first: graphpatch.register_gradients(FILE), where the key is graphpatch's"),
    Cause("our_rule", lambda look: is_of_rule(look.node),
          "rule '{rule}' stops it here", NONE,
          "take the rule off: graphpatch revert FILE --rule '{rule}' -o OUT"),
    Cause("swish", lambda look: _raises("custom_gradient")(look) and is_swish(look.node),
          "key {key}, which tf.nn.swish left: only the process that built it knows it",
          "{says}; TensorFlow names {op}, not the missing key",
          'take the key off ("default"): the gradient of x * sigmoid(x) is the true one, no '
          "stand-in",
          lambda look: [rule_for(look.node, TRUE, {"override_gradient": "default"})]),
    Cause("custom_gradient", _raises("custom_gradient"),
          "key {key}, which tf.custom_gradient left: only the process that built it knows it",
          "{says}; TensorFlow names {op}, not the missing key",
          "what it was is not known, so give it: register it under the key where the file is "
          "loaded (tf.RegisterGradient), or by a formula, null for each result and dy0 for what "
          'comes back (override_gradient); "default" is the gradient of the ops before it, which '
          "may be another one"),
    Cause("key", _raises("key"),
          "override key {key}, which no program registers",
          "{says}; TensorFlow names {op}, not the missing key",
          'register the key where the file is loaded; "default" takes it off: a stand-in',
          _to_default),
    Cause("prevent", _raises("prevent"),
          "PreventGradient: it was put there to refuse a gradient",
          "{says}", STRAIGHT, fixes),
    Cause("missing", lambda look: _raises("missing")(look) and look.read not in flow.TRAINABLE,
          "{op} has no gradient registered, and none can flow to input {slot}, which is {read}",
          "{says}", "{in_between}"),
    Cause("second", lambda look: look.op in SECOND and look.is_blocked,
          "{op}: TensorFlow has no second derivative of it", "{says}",
          "give it its true gradient: graphpatch apply @second_derivatives", fixes),
    Cause("missing", lambda look: _raises("missing")(look) and look.node.opdef is None,
          "{op} is not an op type of TensorFlow: it has no gradient here",
          "where its library is loaded: {says}",
          "register one where its library is loaded (tf.RegisterGradient), give it one by a "
          f"formula (override_gradient), or {BEHIND}"),
    Cause("missing", _raises("missing"),
          "{op} has no gradient registered", "{says}",
          "give it one (override_gradient); stop_gradient there is partial: what comes through it "
          "is lost", fixes),
    Cause("refuses", _raises("refuses"),
          "{op}: TensorFlow's gradient of it raises", "{says}",
          "give it another one (override_gradient); stop_gradient there is partial: what comes "
          "through it is lost", fixes),
    Cause("tensor_array", _raises("tensor_array"),
          "{op}, of a TensorArray of TensorFlow 1, while control flow v2 is on",
          "{says}, without a text",
          "call tf.compat.v1.disable_control_flow_v2() before the graph is imported"),
    Cause("handle", _raises("handle"),
          "{op}: its function is given a table, an iterator or another handle of no variable",
          "{says}; a GradientTape gives it",
          "use a tape (tf.saved_model.load); or take both ends on one side of the call"),
    Cause("loop_inside", _raises("loop_inside"),
          "{op} of a v1 loop from which no Exit leads to the target: no loop of gradients is made",
          "{says}", "take a target behind the loop: what an Exit of it gives"),
    Cause("stop_gradient", _op_is_one_of(frozenset({"StopGradient"})),
          "StopGradient: somebody stopped the gradient here", NONE, STRAIGHT, fixes),
    Cause("step", lambda look: flow.is_step(gradient_type(look.node)),
          "{op}, a step function: TensorFlow's gradient of it is None", NONE, STRAIGHT, fixes),
    Cause("zero", lambda look: flow.gives(gradient_type(look.node)) == "zero",
          "{op}, a step function: TensorFlow's gradient of it is zero", ZEROS,
          "let it count as something smooth (fast_sigmoid_surrogate), or as the identity", fixes),
    Cause("zero_slot", lambda look: look.given_to_slot == "zero",
          "{op}: TensorFlow's gradient of {output} by input {slot} is zero", ZEROS,
          "give it one by a formula (override_gradient)", fixes),
    Cause("argmax", _op_is_one_of(frozenset({"ArgMax", "ArgMin"})),
          "{op}: where the largest element is, as an {given}", NONE,
          "take the value itself (Max, or a softmax) as the loss"),
    Cause("comparison", _op_is_one_of(COMPARISONS),
          "{op}, a comparison: it gives {given}", NONE,
          f"let it and a Cast behind it count as something smooth; or {LOSS_BEFORE}"),
    Cause("cast", lambda look: look.op == "Cast" and look.given not in DIFFERENTIABLE,
          "a cast from {read} to {given}: {given} carries no gradient", NONE,
          "{in_between}"),
    Cause("cast", lambda look: look.op == "Cast",
          "a cast of {read} to {given}: nothing comes back through {read}", NONE, OUTSIDE),
    Cause("shape", lambda look: flow.reads_shape_alone(look.op),
          "{op}: it reads a shape, not the values", NONE,
          "the loss does not depend on the values here; there is no gradient"),
    Cause("inside", _calls_functions,
          "{op}: inside its function nothing comes back from this output to input {slot}", NONE,
          "fix what blocks inside the function"),
    Cause("write", lambda look: look.op.startswith(("Assign", "Resource", "Scatter"))
          and not look.op.startswith("ResourceGather"),
          "{op}: what is written to a variable has no gradient", NONE, OUTSIDE),
    Cause("dtype", lambda look: look.read not in flow.TRAINABLE,
          "input {slot} is {read}, which carries no gradient", NONE, OUTSIDE),
    Cause("dtype", lambda look: look.given not in flow.TRAINABLE,
          "{op} gives {given}, which carries no gradient", NONE, "{in_between}"),
    Cause("not_differentiable", _gradient_is("none"),
          "{op} is registered as not differentiable", NONE,
          "give it a gradient (override_gradient), or let it count as the identity, a stand-in",
          fixes),
    Cause("slot", lambda look: True,
          "{op} has a gradient, but none for input {slot}", NONE,
          "give it one by a formula (override_gradient)", fixes),
)
# fmt: on


def finding_of(at_op: OpOnPath) -> Finding:
    """Return why no gradient comes back through this op."""
    return next(cause for cause in CAUSES if cause.applies(at_op)).finding(at_op)
