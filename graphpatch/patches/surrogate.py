"""`surrogate_gradient` and `straight_through`: on the way back a target counts as something else.

As a formula of what it reads, or as the identity of one of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from graphpatch.differentiation.flow import carries, why_not
from graphpatch.errors import PatchError, RulesError
from graphpatch.gradients.formula import Call, Expression, Formula, Variable
from graphpatch.gradients.ops import Signature, Value
from graphpatch.gradients.program import formula_ops, node_defs
from graphpatch.gradients.spec import InlineFormula, RegisteredKey
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import FED
from graphpatch.names import op_of
from graphpatch.patches import Patch
from graphpatch.patches.backward_as import noise_notes
from graphpatch.patches.carrier import (
    BackwardTensor,
    carry,
    join,
    named_inputs,
    needs_function,
    put_beside,
)
from graphpatch.patches.editing import RuleEditor, numbered
from graphpatch.patches.fit import (
    JoinedShapes,
    has_shape_of_output,
    may_not_fit,
    naming,
    refuse_contradicted,
)
from graphpatch.patches.placement import UNKNOWN_TO_FUNCTIONS, check_together
from graphpatch.patches.target import MatchTarget, Target, dtypes_of, keeps_shape, signature
from graphpatch.shown import short

# Functions of the language through which TensorFlow lets nothing flow, and arguments that lend a
# shape or decide alone. It follows from the ops that a function is spelled with, several for some,
# and is written here as a rules file is read before dtypes and shapes are known;
# tests/patches/test_surrogate_flow.py asks the table of gradients about these ops. That `sign` is
# one is a decision: it passes NaN on, and what flows back is NaN there and 0 elsewhere.
FLAT = frozenset(
    "< <= > >= == != and or not sign floor round is_finite is_nan zeros_like ones_like stop".split()
)
LENT = {"where": 0, "reshape_like": 1, "broadcast_like": 1, "sum_like": 1, "cast_like": 1}


def surrogate_formula(text: str) -> Formula:
    """Return the formula g. Raises RulesError where it reads more than inputs, or nothing flows."""
    formula = Formula.parse(text)
    foreign = sorted(name for name in formula.variables if not name.startswith("x"))
    if foreign:
        raise RulesError(
            f"{foreign[0]} is not an input: a surrogate is a formula of x0, x1, ..., which "
            f"TensorFlow differentiates itself; override_gradient takes one of y and dy"
        )
    if not any(expression and gradient_flows(expression) for expression in formula.expressions):
        raise RulesError(f"nothing flows back through {text!r}; stop_gradient says that")
    return formula


def gradient_flows(expression: Expression) -> bool:
    """Return whether a gradient flows back through an expression to a variable."""
    if not isinstance(expression, Call):
        return isinstance(expression, Variable)
    if expression.function in FLAT:
        return False
    lent = LENT.get(expression.function)
    return any(gradient_flows(part) for n, part in enumerate(expression.arguments) if n != lent)


@dataclass(frozen=True, slots=True)
class SurrogateGradient(Patch):
    """Forward unchanged; backward, the op counts as `formula` of its inputs.

    The ops of the formula are put beside the op, and TensorFlow differentiates them. The forward
    pass does not depend on them: it is the op's bit for bit where g is infinite or NaN, too, and
    what flows back there is what TensorFlow makes of it. The op must give one tensor, to whose
    shape g is repeated where it is smaller. No gradient flows to tensors of the graph that g reads
    by name. When not to use it: where the gradient itself is known,
    `override_gradient` needs no forward pass of g.
    """

    takes_match: ClassVar[bool] = True
    formula: Formula
    emit: str = "auto"

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where the formula cannot have the shape of a target's output."""

        def joined(target: Target) -> JoinedShapes:
            return {"y0": self.check_target(target).shape.least}

        refuse_contradicted(targets, self.formula, joined, may_sum=False)

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Say of which ops a run may give the formula a shape that the output has not."""
        of_op = not self.formula.tensors  # of which other ops say the shapes
        if of_op and (unknown := may_not_fit(map(Target.of, nodes), self.check_target)):
            yield (
                f"the formula is not known to have the shape of what the op gives, at "
                f"{short(unknown)}: a run in which it cannot be repeated to that shape fails"
            )

    def check_target(self, target: Target) -> Value:
        """Return the formula of what a target reads, as ops, or raise PatchError."""
        node = target.last
        if node.op in FED:
            raise PatchError(f"{node}: its value comes from outside, and it reads nothing")
        output = target.one_output("surrogate_gradient")
        if not carries(output):
            raise PatchError(f"{node}: {output.name} {why_not(output)}")
        dtypes = dtypes_of(target, target.inputs)
        missing = sorted(self.formula.variables - {f"x{n}" for n in range(len(dtypes))})
        if missing:
            raise PatchError(f"{target} has no {missing[0]}; {target.reading()}")
        formula = self.formula.with_named_inputs(len(dtypes))
        inputs, dtype = [*dtypes, *(dtype for _, dtype in target.more)], output.dtype or ""
        with naming(target):
            op = Signature.of(inputs, [dtype], signature(node).attrs)
            return formula_ops(formula, op, dtype)

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Let a target count as the formula of what it reads."""
        target.refuse_open()
        node, name, scope = target.last, target.last.name, f"{target.last.name}/surrogate"
        named = named_inputs(InlineFormula(self.formula), target, editor)
        reads = [*target.reads, *(text for text, _ in named)]
        stopped = []
        for number, (text, dtype) in enumerate(named):
            stop = f"{scope}/stop{numbered(number)}"
            stopped.append((editor.put_op(stop, "StopGradient", [text], dtype, node), dtype))
        reading = msgspec.structs.replace(target, more=tuple(stopped))
        value = self.check_target(reading)
        formula = node_defs([value], not node.body.is_main)
        check_together(target, editor)
        is_carried = needs_function(node, editor, self.emit)
        unknown = sorted({added.op for added in formula.nodes} & UNKNOWN_TO_FUNCTIONS)
        if unknown and editor.is_differentiated_whole(node):
            raise PatchError(
                f"{node} is in a function that a Session differentiates as a whole, where "
                f"TensorFlow has no gradient of {', '.join(unknown)}, of which the formula is "
                f"made; write it with other functions, or inline the function "
                f'("body": "main" leaves functions out)'
            )
        anchor = list[str]()  # what constants wait for, to be in the op's v1 loop or branch
        if editor.is_in_control_flow(node):
            inside, read, arg = f"{scope}/in", node.data_inputs[:1], target.inputs[0]
            anchor = [f"^{op_of(editor.put_op(inside, 'Identity', read, arg.dtype, node))}"]
        tensors = {f"x{n}": text for n, text in enumerate(reading.reads)}
        tensor = put_beside(formula, node, tensors, editor, anchor, f"{scope}/")
        counted = BackwardTensor(tensor, not has_shape_of_output(value, target))
        join(target, {0: counted}, editor, self.emit)
        if named or is_carried:  # a function that carries it reads other tensors than the op does
            editor.set_reads(node.body.node(name), reads)

    def formulas(self, target: Target) -> str:
        """Return the one formula of all tensors."""
        return self.formula.texts[0] or ""


@dataclass(frozen=True, slots=True)
class StraightThrough(Patch):
    """Forward unchanged; backward, the upstream gradient passes to input `input` as it is.

    The straight-through estimator (Bengio, Leonard and Courville 2013), for ops that round or
    step. The op must give one tensor, of the dtype and shape of that input. An op with one input
    takes TensorFlow's gradient of Identity; else its output is given on by a Select, as `join`
    says. In a function whose caller ignores keys, a function carries it.
    """

    takes_match: ClassVar[bool] = True
    input: int | str = 0

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Say that what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes)

    def check_target(self, target: Target) -> None:
        """Raise PatchError where a target is not the identity of that input in shape and dtype.

        The ops of a match may be of a shape that is not known: a run in which it has another one
        than the input is an error.
        """
        place = self.place_in(target)
        target.one_output("straight_through")
        target.check_counts_as(place)
        if target.is_match and keeps_shape(target, place) == "other":
            raise PatchError(
                f"{target} does not have the shape of x{place}, so it cannot count as the identity "
                f"of it; {target.reading()}"
            )
        op = target.last.opdef
        if not target.is_match and (op is None or place not in op.keeps_shape):
            raise PatchError(
                f"{target} is not known to keep the shape of x{place}, so it cannot count as the "
                f"identity of it; override_gradient takes a gradient of the right shape"
            )

    def place_in(self, target: Target) -> int:
        """Return which of the tensors that a target reads is meant."""
        if isinstance(self.input, int):
            return self.input
        if not isinstance(target, MatchTarget):
            raise PatchError(
                f'straight_through: {self.input!r} is a name of a pattern, for "on": "match"; of '
                f"one op give the number of the input"
            )
        tensor = target.captures.get(self.input)
        if tensor not in target.named:
            raise PatchError(f"{target} has no input {self.input!r}; {target.reading()}")
        return target.named.index(tensor)

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Let a target count as the identity of its input."""
        target.refuse_open()
        self.check_target(target)
        node, place = target.last, self.place_in(target)
        if not target.is_match and editor.bodies.place_of(node).ignoring is not None:
            formula = Formula.parse(self.formulas(target))
            carry(InlineFormula(formula), target, editor, "function")
            return
        if not target.is_match and len(target.inputs) == 1:
            carry(RegisteredKey("Identity", built_in=True), target, editor, "auto")
            return
        keeps = keeps_shape(target, place)
        if keeps == "unknown":
            editor.report.note(
                f"{node} is not known to have the shape of x{place} of its match: a run in which "
                f"it has another one fails"
            )
        check_together(target, editor)
        join(target, {0: BackwardTensor(target.reads[place], keeps != "same")}, editor, "auto")

    def formulas(self, target: Target) -> Sequence[str | None]:
        """Return the formula of the one tensor that it means."""
        place = self.place_in(target)
        return ["dy" if n == place else None for n in range(len(target.inputs))]
