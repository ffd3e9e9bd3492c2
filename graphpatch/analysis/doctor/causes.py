"""Why no gradient comes back through an op: one entry a cause, the first that fits is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from graphpatch import opdefs
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import (
    CARRIED,
    gradient_type,
    is_of_rule,
    override_key,
    rule_of,
)
from graphpatch.differentiation.hidden import is_swish
from graphpatch.differentiation.replay import OpGradientFlow, Refusal
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.gradients.op_gradients import NO_SECOND, SECOND
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.shown import Document

# What may hand on the flow of a TensorArray, which is a float and no value.
OF_LOOPS = re.compile("(Ref)?Exit|TensorArray(V\\d|Write|Scatter|Split).*")

RuleDict = dict[str, Any]
PatchJson = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PathStep:
    """One op of a path: the output by which it is left, the slot by which it is entered."""

    index: int
    output: int
    slot: int

    @property
    def tensor(self) -> Tensor:
        """Return the tensor by which the op is left."""
        return self.index, self.output


class OpOnPath:
    """An op that is left by one output and entered by one slot, and what it answers.

    `read` is the dtype that the slot reads, `given` that of the output. `slot` is what is said of
    it: None of an op beside the path. Where the whole path is known, `path` has its steps from the
    source on, and `place` is the op's.
    """

    def __init__(
        self,
        wiring: Wiring,
        step: PathStep,
        answer: OpGradientFlow,
        path: Sequence[PathStep] = (),
        place: int = 0,
    ) -> None:
        self.wiring, self.step, self.answer = wiring, step, answer
        self.slot: int | None = step.slot
        self.path, self.place = path, place
        self.node = Node(wiring.body, step.index)
        self.op = self.node.op
        read = wiring.inputs(step.index)[step.slot : step.slot + 1]  # of a broken op, nothing
        self.read, self.given = (
            (wiring.dtype(tensor) if tensor is not None else None) or "unknown"
            for tensor in (next(iter(read), None), step.tensor)
        )

    @classmethod
    def beside(cls, wiring: Wiring, refusal: Refusal) -> OpOnPath:
        """Return an op that raises, by none of its inputs: no path through it is known.

        Its rules are for the first float that it reads, if possible one whose shape it keeps.
        """
        index, known = refusal.node.index, refusal.node.opdef
        dtypes = [wiring.dtype(tensor) for tensor in wiring.inputs(index)]
        carrying = [slot for slot, dtype in enumerate(dtypes) if dtype in flow.TRAINABLE]
        floats = [slot for slot in carrying if dtypes[slot] in DIFFERENTIABLE]
        alike = [slot for slot in floats if known is not None and slot in known.keeps_shape]
        step = PathStep(index, 0, next(chain(alike, floats, carrying), 0))
        at_op = cls(wiring, step, OpGradientFlow(raised=(refusal,)))
        at_op.slot = None
        return at_op

    @property
    def gets_zeros(self) -> bool:
        """Return whether the gradient of the slot is always zero, whatever comes to the op."""
        return self.answer.nonzero_from.get(self.step.slot, {0}) == frozenset()

    @property
    def is_blocked(self) -> bool:
        """Return whether a gradient ends here: an op that it flows through has nothing to fix."""
        if self.answer.raises or self.step.slot not in self.answer.slots:
            return True
        return given_to_slot(self.wiring, self.step) == "zero"

    def _read_by(self, step: PathStep) -> Tensor:
        return self.wiring.inputs(step.index)[step.slot]

    def _is_float(self, tensor: Tensor) -> bool:
        return self.wiring.dtype(tensor) in DIFFERENTIABLE

    @property
    def run(self) -> Sequence[PathStep]:
        """Return the ops from the last that reads a float to the first that gives a float again.

        Nothing where there is none, or where something outside reads what lies inside: a match that
        is one op has one output.
        """
        steps, wiring = self.path, self.wiring
        starts = (n for n in range(self.place, -1, -1) if self._is_float(self._read_by(steps[n])))
        ends = (n for n in range(self.place, len(steps)) if self._is_float(steps[n].tensor))
        start, end = next(starts, None), next(ends, None)
        run = () if start is None or end is None else steps[start : end + 1]
        inside, returned = {step.index for step in run}, {index for index, _ in wiring.returned}
        nodes = [Node(wiring.body, step.index) for step in run]
        # A TensorArray reads a float, its flow, also where its elements are none.
        is_known = all(node.opdef and not node.op.startswith("TensorArray") for node in nodes)
        is_closed = not any(
            step.index in returned
            or any(reader not in inside for _, reader in wiring.readers(step.index))
            for step in run[:-1]
        )
        return run if is_known and is_closed else ()

    @property
    def behind(self) -> str:
        """Return the float next behind what blocks, by which one can differentiate instead."""
        return self._first_float(step.tensor for step in self.path[self.place :])

    @property
    def before(self) -> str:
        """Return the last float before what blocks, which can be the loss instead."""
        return self._first_float(map(self._read_by, reversed(self.path[: self.place + 1])))

    def _first_float(self, tensors: Iterable[Tensor]) -> str:
        """Return the first float, if possible one that a Session fetches."""
        first = ""
        for tensor in filter(self._is_float, tensors):
            if is_fetchable(self.wiring, tensor):
                return self.wiring.spelled(tensor)
            first = first or self.wiring.spelled(tensor)
        return first


def is_fetchable(wiring: Wiring, tensor: Tensor) -> bool:
    """Return whether a tensor is outside v1 loops and branches, and not a TensorArray's flow."""
    node = wiring.node(tensor[0])
    return tensor[0] not in wiring.in_control_flow and not (node and OF_LOOPS.fullmatch(node.op))


def given_to_slot(wiring: Wiring, step: PathStep) -> flow.Flow:
    """Return what comes to a slot of an op when a gradient comes to this output alone."""
    inputs, outputs = wiring.inputs(step.index), wiring.form(step.index).outputs
    op = wiring.form(step.index).gradient_type
    is_own = op == wiring.body.heads.ops[step.index]
    name = outputs[step.output].name if is_own and step.output < len(outputs) else None
    return flow.into(op, step.slot, len(inputs), wiring.dtype(inputs[step.slot]), name)


@dataclass(frozen=True, slots=True)
class Finding(Document):
    """What is wrong at one op: in words, what TensorFlow does then, and what fixes it.

    `rules` are those that may fix it, the best first; `remedy` says what does where none can. Once
    they were tried, there is the one that does, or none.
    """

    keys = (
        "kind op=node.name type=op_type body=node.body.label slot tape_only=is_of_tape what "
        "consequence remedy rule tried=is_tried"
    )
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
    def rule(self) -> RuleDict | None:
        """Return the best of its rules."""
        return next(iter(self.rules), None)

    @property
    def is_of_tape(self) -> bool:
        """Return whether a GradientTape alone ends here, and a Session goes on."""
        return self.kind == CARRIED


TRUE = "its true gradient"
"""The title of rules that are no stand-ins."""


def rule_for(node: Node, title: str, patch: PatchJson) -> RuleDict:
    """Return a rule for one op, by its name and body."""
    match = {"name": node.name, "body": node.body.label}
    name = node.name if node.body.is_main else f"{node.name} in {node.body.label}"
    return {"name": f"{title}: {name}", "match": match, "patch": dict(patch), "expect": 1}


def _formula(*dx: str | None) -> PatchJson:
    return {"override_gradient": {"formula": list(dx)}}


TO_DEFAULT: PatchJson = {"override_gradient": "default"}
QUOTIENT: PatchJson = {"surrogate_gradient": "x0 / x1"}

# By op type the derivative that TensorFlow lacks.
TRUE_GRADIENTS: dict[str, PatchJson] = {
    "AdjustContrastv2": {
        "surrogate_gradient": "(x0 - mean(x0, axes=[-3, -2], keepdims=true)) * x1"
        " + mean(x0, axes=[-3, -2], keepdims=true)"
    },
    "LinSpace": _formula(  # from 0 to 1 it gives how much of x1 is in each number
        "dy * (1 - forward(zeros_like(x0), ones_like(x1)))",
        "dy * forward(zeros_like(x0), ones_like(x1))",
        None,
    ),
    "TruncateMod": _formula("dy", "-dy * (x0 - y) / x1"),
}
# By op type what it counts as on the way back: what it steps around, or the derivative of its mean.
# Others count as the identity, where they can (straight_through).
STAND_INS: dict[str, PatchJson] = {
    "FloorDiv": QUOTIENT,
    "RandomPoissonV2": _formula(None, "dy"),
    "Sign": {"override_gradient": "fast_sigmoid_surrogate"},
    "TruncateDiv": QUOTIENT,
}
# The key that tf.contrib.quantize gives a batch norm whose mean and variance alone are used.
FOLDED = "FoldFusedBatchNormGrad"
OF_FOLDED = "let n = sum_like(ones_like(x0), y1); dy1 / n + 2 * dy2 * (x0 - y1) / (n - 1)"
PYTHON_FUNCTIONS = frozenset({"PyFunc", "PyFuncStateless"})  # of which no shape is known


def fixes(at_op: OpOnPath) -> list[RuleDict]:
    """Return the rules that may fix an op that blocks, the best first."""
    node, op, slot, known = at_op.node, at_op.op, at_op.step.slot, at_op.node.opdef
    if at_op.read not in DIFFERENTIABLE or at_op.given not in DIFFERENTIABLE:
        return []
    rules = []
    if op in SECOND and NO_SECOND not in node.name:
        rules.append(rule_for(node, TRUE, _formula(*SECOND[op])))
    for title, patches in ((TRUE, TRUE_GRADIENTS), ("has a gradient", STAND_INS)):
        rules += [rule_for(node, title, patches[op])] if op in patches else []
    if op in PYTHON_FUNCTIONS and len(node.data_inputs) == 1:
        rules.append(rule_for(node, "counts as the identity", {"surrogate_gradient": "x"}))
    keeps_shape = known.keeps_shape if known is not None else ()
    gives_one = len(at_op.wiring.form(node.index).outputs) == 1
    if slot in keeps_shape and gives_one and at_op.read == at_op.given and at_op.is_blocked:
        patch = {"straight_through": {"input": slot} if slot else True}
        to_input = f" to input {slot}" if len(keeps_shape) > 1 else ""
        rules.append(rule_for(node, f"passes gradients{to_input}", patch))
    return rules


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

BEHIND = "differentiate with respect to {behind}"
LOSS_BEFORE = "take {before} as the loss"
IN_BETWEEN = f"match the ops from what is still float to what is float again as one; or {BEHIND}"
NO_FLOAT_AGAIN = f"{LOSS_BEFORE}: nothing downstream of it is float again"


def _as_one(finding: Finding, at_op: OpOnPath, is_between: bool) -> Finding:
    """Give a finding the rule by which the run of ops from a float to a float counts as one op.

    `is_between`: what blocks is no float, so that no rule for this op alone can help.
    """
    run, wiring = at_op.run, at_op.wiring
    nodes = [Node(wiring.body, step.index) for step in run]
    if len(run) < 2 or not (is_between or nodes[0].op in SURROGATES):
        remedy = BEHIND if at_op.behind else NO_FLOAT_AGAIN
        is_apart = is_between or finding.kind == "comparison"
        return replace(finding, remedy=_named(remedy, at_op)) if is_apart else finding
    formula = _stand_in(run, nodes)
    links = [f" -> {node.op}:{step.slot}" for node, step in zip(nodes[1:], run[1:], strict=True)]
    pattern = "".join([nodes[0].op, *links])
    patch = {"surrogate_gradient": formula, "on": "match"}
    given = f"{json.dumps(patch)}, a stand-in" if formula else "a surrogate_gradient that you know"
    remedy = (
        f"match the ops from {nodes[0].name} to {nodes[-1].name} as one pattern, "
        f'"{pattern}", and give it {given}; or {_named(BEHIND, at_op)}'
    )
    finding = replace(finding, remedy=remedy) if is_between else finding
    if not formula:
        return finding
    rule = {
        "name": f"{nodes[0].op} to {nodes[-1].op} pass gradients: {nodes[-1].name}",
        "match": {"pattern": pattern, "name": nodes[-1].name, "body": wiring.body.label},
        "patch": patch,
        "expect": 1,
    }
    return replace(finding, rules=[rule])


def _stand_in(run: Sequence[PathStep], nodes: Sequence[Node]) -> str:
    """Return the formula that a run of ops counts as; nothing where an op of it computes more."""
    formula = SURROGATES.get(nodes[0].op, "")
    rest = list(zip(nodes, run, strict=True))[bool(formula) :]
    formula = formula or ("x" if len(nodes[0].data_inputs) == 1 else f"x{run[0].slot}")
    for node, step in rest:
        if node.op not in COUNTS_AS or step.output or step.slot:
            return ""
        formula = COUNTS_AS[node.op].format(formula)
    return formula


COMPARISONS = frozenset(
    "Equal NotEqual Less LessEqual Greater GreaterEqual ApproximateEqual LogicalAnd LogicalOr"
    " LogicalNot IsNan IsInf IsFinite".split()
)
CELLS = ("BlockLSTMGrad", "GRUBlockCellGrad", "LSTMBlockCellGrad", "CudnnRNNBackprop")
NONE = "None: tf.gradients returns None, without an error"
ZEROS = "zeros: the gradient is there, and every element of it is 0"
STRAIGHT = "let it count as the identity on the way back (straight_through), a stand-in"
REGISTER = "register the key where the file is loaded"
KEY_MISSING = "{says}; TensorFlow names {op}, not the missing key"
TAKE_OFF = "take the rule off: graphpatch revert FILE --rule '{rule}' -o OUT"
OUTSIDE = f"no gradient can be given to it; {BEHIND}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of findings: what it says of an op, what fixes it, when it applies."""

    kind: str
    what: str
    consequence: str
    remedy: str
    rules: Callable[[OpOnPath], list[RuleDict]] = lambda at_op: []
    applies: Callable[[OpOnPath], bool] = lambda at_op: True


def _is_stopped_by_rule(at_op: OpOnPath) -> bool:
    refusal = at_op.answer.first
    is_let_through = refusal is not None and refusal.kind in (CARRIED, "key")
    return is_of_rule(at_op.node) and (at_op.gets_zeros or not is_let_through)


def _calls_functions(at_op: OpOnPath) -> bool:
    return at_op.op in OP_BY_OP | CALLS or at_op.op in at_op.node.body.library.signatures


# fmt: off
OF_RULE = Cause("our_rule", "rule '{rule}' stops it here", "{none}", TAKE_OFF,
                applies=_is_stopped_by_rule)

SECOND_DERIVATIVE = Cause(
    "second", "{op}: TensorFlow has no second derivative of it", "{says}",
    "give it its true gradient: graphpatch apply @second_derivatives", fixes,
    lambda at_op: at_op.op in SECOND and at_op.is_blocked)

# By the kind of what is raised, the last one for all that the others do not apply to.
RAISED: dict[str, Sequence[Cause]] = {
    CARRIED: [Cause(
        CARRIED, "rule '{rule}' carries its gradient in a function, which a tape drops",
        "{says}, by design: the tape must not take another gradient silently",
        "graphpatch.register_gradients(FILE) first; or write a SavedModel (--inputs, --outputs)")],
    "key": [
        Cause("our_key", "override key {key}, which rule '{rule}' gave it and no program registers",
              KEY_MISSING,
              "register it first: graphpatch.register_gradients(FILE), where the key is "
              "graphpatch's", applies=lambda at_op: bool(rule_of(at_op.node))),
        Cause("key", "override key {key}, which tf.contrib.quantize of TensorFlow 1 registers",
              KEY_MISSING, "write the gradient of that key as a formula: the true one, no stand-in",
              lambda at_op: [rule_for(at_op.node, TRUE, _formula(OF_FOLDED, *[None] * 4))],
              lambda at_op: override_key(at_op.node) == FOLDED),
        Cause("key", "override key {key}, which TensorFlow does not register", KEY_MISSING,
              f'{REGISTER}; "default" takes it off: a stand-in',
              lambda at_op: [rule_for(at_op.node, "its own gradient", TO_DEFAULT)]
              if (known := at_op.node.opdef) and known.gradient == "registered" else [])],
    "custom_gradient": [
        Cause("swish", "key {key}, which tf.nn.swish left: only the process that built it knows it",
              KEY_MISSING,
              'take the key off ("default"): the gradient of x * sigmoid(x) is the true one, no '
              "stand-in",
              lambda at_op: [rule_for(at_op.node, TRUE, TO_DEFAULT)],
              lambda at_op: is_swish(at_op.node)),
        Cause("custom_gradient",
              "key {key}, which tf.custom_gradient left: only the process that built it knows it",
              KEY_MISSING,
              'no file tells whose it was. Of tf.recompute_grad, "default" is true: the gradient '
              "of the ops before it. Of tf.grad_pass_through, it is the formula "
              '[null, "dy0"]. An author\'s, register under the key where the file is loaded '
              "(tf.RegisterGradient), or give it by a formula, null for each result and dy0 for "
              "what comes back (override_gradient)")],
    "prevent": [Cause("prevent", "PreventGradient: it was put there to refuse a gradient", "{says}",
                      STRAIGHT, fixes)],
    "missing": [
        Cause("missing",
              "{op} has no gradient registered, and none can flow to {input}, which is {read}",
              "{says}", IN_BETWEEN, applies=lambda at_op: at_op.read not in flow.TRAINABLE
              and any(map(flow.is_asked_for, at_op.node.outputs or ()))),
        Cause("missing", "{op} reads {read} and gives {given}, which carry no gradient", NONE,
              IN_BETWEEN, applies=lambda at_op: at_op.read not in flow.TRAINABLE),
        Cause("construction", "{op} of a construction, which has no second derivative", "{says}",
              'store the gradient as a function ("emit": "function"), and call '
              "graphpatch.register_gradients(FILE) before the first gradients are built",
              applies=lambda at_op: NO_SECOND in at_op.node.name),
        SECOND_DERIVATIVE,
        replace(SECOND_DERIVATIVE, rules=lambda at_op: [],
                remedy="build the cell of smaller ops, as tf.compat.v1.nn.rnn_cell.LSTMCell does",
                applies=lambda at_op: at_op.op.startswith(CELLS)),
        Cause("missing", "{op} is not an op type of TensorFlow: it has no gradient here",
              "where its library is loaded: {says}",
              "register one where its library is loaded (tf.RegisterGradient), give it one by a "
              f"formula (override_gradient), or {BEHIND}",
              applies=lambda at_op: at_op.node.opdef is None),
        Cause("missing", "{op} has no gradient registered", "{says}",
              "give it one (override_gradient); stop_gradient there is partial: what comes through "
              "it is lost", fixes)],
    "refuses": [Cause(
        "refuses", "{op}: TensorFlow's gradient of it raises", "{says}",
        "give it another one (override_gradient); stop_gradient there is partial: what comes "
        "through it is lost", fixes)],
    "tensor_array": [Cause(
        "tensor_array", "an op of a TensorArray of TensorFlow 1, while control flow v2 is on",
        "{says}, without a text",
        "call tf.compat.v1.disable_control_flow_v2() before the graph is imported")],
    "handle": [Cause(
        "handle",
        "{op}: its function is given a table, an iterator or another handle of no variable",
        "{says}; a GradientTape gives it",
        "use a tape (tf.saved_model.load); or take both ends on one side of the call")],
    "loop_inside": [Cause(
        "loop_inside",
        "{op} of a v1 loop from which no Exit leads to the target: no loop of gradients is made",
        "{says}", "take a target behind the loop: what an Exit of it gives")],
}

# By op type, where nothing is raised.
OF_OP_TYPES: dict[str, Cause] = {
    **dict.fromkeys(SECOND, SECOND_DERIVATIVE),
    "StopGradient": Cause("stop_gradient", "StopGradient: somebody stopped the gradient here", NONE,
                          STRAIGHT, fixes),
    **dict.fromkeys(("ArgMax", "ArgMin"), Cause(
        "argmax", "{op}: where the largest element is, as an {given}", NONE,
        "take the value itself (Max, or a softmax) as the loss")),
    **dict.fromkeys(COMPARISONS, Cause(
        "comparison", "{op}, a comparison: it gives {given}", NONE,
        f"let it and what makes it float again count as something smooth; or {LOSS_BEFORE}")),
}

# Of all other ops, the first that applies.
REST = (
    Cause("step", "{op}, a step function: TensorFlow's gradient of it is None", NONE, STRAIGHT,
          fixes, lambda at_op: flow.is_step(gradient_type(at_op.node))),
    Cause("zero", "{op}, a step function: TensorFlow's gradient of it is zero", ZEROS,
          "let it count as something smooth (fast_sigmoid_surrogate), or as the identity", fixes,
          lambda at_op: flow.gives(gradient_type(at_op.node)) == "zero"),
    Cause("zero_slot", "{op}: TensorFlow's gradient of {output} with respect to {input} is "
          "zero", ZEROS, "give it one by a formula (override_gradient)", fixes,
          lambda at_op: given_to_slot(at_op.wiring, at_op.step) == "zero"),
    Cause("cast", "a cast from {read} to {given}: {given} carries no gradient", NONE, IN_BETWEEN,
          applies=lambda at_op: at_op.op == "Cast" and at_op.given not in DIFFERENTIABLE),
    Cause("cast", "a cast of {read} to {given}: nothing comes back through {read}", NONE, OUTSIDE,
          applies=lambda at_op: at_op.op == "Cast"),
    Cause("shape", "{op}: it reads a shape, not the values", NONE,
          "the loss does not depend on the values here; there is no gradient",
          applies=lambda at_op: flow.reads_shape_alone(at_op.op)),
    Cause("dtype", "{input} is {read}, which carries no gradient", NONE, OUTSIDE,
          applies=lambda at_op: at_op.read not in flow.TRAINABLE),
    Cause("inside", "{op}: inside its function nothing comes back from this output to {input}",
          NONE, "fix what blocks inside the function", applies=_calls_functions),
    Cause("write", "{op}: what is written to a variable has no gradient", NONE, OUTSIDE,
          applies=lambda at_op: at_op.op.startswith(("Assign", "Resource", "Scatter"))
          and not at_op.op.startswith("ResourceGather")),
    Cause("dtype", "{op} gives {given}, which carries no gradient", NONE, IN_BETWEEN,
          applies=lambda at_op: at_op.given not in flow.TRAINABLE),
    Cause("not_differentiable", "{op} is registered as not differentiable", NONE,
          "give it a gradient (override_gradient), or let it count as the identity, a stand-in",
          fixes, lambda at_op: (opdefs.lookup(at_op.op) or opdefs.OpDef("")).gradient == "none"),
    Cause("slot", "{op} has a gradient, but none for {input}", NONE,
          "give it one by a formula (override_gradient)", fixes),
)
# fmt: on


def _named(text: str, at_op: OpOnPath) -> str:
    """Fill in what a text says of an op and of its path."""
    refusal, behind, before = at_op.answer.first, at_op.behind, at_op.before
    is_main = at_op.node.body.is_main  # no tensor in a function can be fetched
    it = "it" if is_main else "the call of its function"
    return text.format(
        op=at_op.op,
        input="what it reads" if at_op.slot is None else f"input {at_op.slot}",
        output=f"output {at_op.step.output}",
        read=at_op.read,
        given=at_op.given,
        key=override_key(at_op.node) or "",
        rule=rule_of(at_op.node),
        none=ZEROS if at_op.gets_zeros else NONE,
        says=NONE if refusal is None else refusal.says,
        behind=f"{behind}, downstream of it"
        if behind and is_main
        else f"a tensor downstream of {it}",
        before=f"{before}, before it," if before and is_main else f"a tensor before {it}",
    )


def finding_of(at_op: OpOnPath) -> Finding:
    """Return why no gradient comes back through this op: a rule, what is raised, or its op type."""
    refusal, by_type = at_op.answer.first, OF_OP_TYPES.get(at_op.op)
    of_op = [by_type] if by_type is not None else []
    causes = chain([OF_RULE], of_op if refusal is None else RAISED[refusal.kind], REST)
    cause = next(cause for cause in causes if cause.applies(at_op))
    texts = (cause.what, cause.consequence, cause.remedy)
    what, consequence, remedy = (_named(text, at_op) for text in texts)
    finding = Finding(
        cause.kind, at_op.node, at_op.slot, what, consequence, remedy, cause.rules(at_op)
    )
    if not at_op.path or finding.rules or at_op.node.opdef is None:
        return finding
    is_left = cause.kind == "missing" and at_op.given not in DIFFERENTIABLE
    return _as_one(finding, at_op, cause.remedy == IN_BETWEEN or is_left)
