"""`surrogate_gradient`: the op forward, the gradient of a formula of its inputs backward."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.errors import FormulaError, PatchError, RulesError
from graphpatch.gradients.fits import signature
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.lowering import FormulaNodes, formula_nodes
from graphpatch.gradients.ops import BroadcastShape
from graphpatch.gradients.syntax import Call, Expression, Variable
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import FED
from graphpatch.opdefs import FlatArg
from graphpatch.patches import Patch, op_args
from graphpatch.patches.construction import BackwardTensor, by_function, join, put_beside
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.known_shapes import (
    JoinedShapes,
    refuse_contradicted,
    refuse_contradicted_match,
)
from graphpatch.patches.reach import UNKNOWN_TO_FUNCTIONS, in_control_flow
from graphpatch.patches.whole_shape import refuse_behind, shadow_behind

# Functions of the language through which TensorFlow lets nothing flow, and arguments that lend a
# shape or decide alone. It follows from the ops that a function is spelled with, several for some,
# and is written here as a rules file is read before dtypes and shapes are known;
# tests/patches/test_surrogate.py asks the table of gradients about these ops. That `sign` is one is
# a decision: it passes NaN on, and what flows back is NaN there and 0 elsewhere.
FLAT = frozenset(
    "< <= > >= == != and or not sign floor round is_finite is_nan zeros_like ones_like stop".split()
)
LENT = {"where": 0, "reshape_like": 1, "broadcast_like": 1, "sum_like": 1, "cast_like": 1}


def surrogate_formula(text: str) -> Formula:
    """The formula g. Raises RulesError where it is none of inputs alone, or nothing flows back."""
    formula = Formula.parse(text)
    foreign = sorted(name for name in formula.variables if not name.startswith("x"))
    if foreign:
        raise RulesError(
            f"{foreign[0]} is not an input: a surrogate is a formula of x0, x1, ..., which "
            f"TensorFlow differentiates itself; override_gradient takes one of y and dy"
        )
    if formula.tensors:
        raise RulesError(
            f"tensor({formula.tensors[0]!r}) stands in formulas of dy alone; write the derivative "
            f"of the surrogate by x, times dy, as an override_gradient"
        )
    if not any(expression and _gradient_flows(expression) for expression in formula.expressions):
        raise RulesError(f"nothing flows back through {text!r}; stop_gradient says that")
    return formula


def _gradient_flows(expression: Expression) -> bool:
    if not isinstance(expression, Call):
        return isinstance(expression, Variable)
    if expression.function in FLAT:
        return False
    lent = LENT.get(expression.function)
    return any(_gradient_flows(part) for n, part in enumerate(expression.arguments) if n != lent)


@dataclass(frozen=True, slots=True)
class SurrogateGradient(Patch):
    """Forward unchanged; backward, the op counts as `formula` of its inputs.

    The ops of the formula are put beside the op, and TensorFlow differentiates them. The forward
    pass does not depend on them: it is the op's bit for bit where g is infinite or NaN, too, and
    what flows back there is what TensorFlow makes of it. The op must give one tensor, to whose
    shape g is repeated where it is smaller. When not to use it: where the gradient itself is known,
    `override_gradient` needs no forward pass of g.
    """

    takes_match: ClassVar[bool] = True
    formula: Formula
    emit: str = "auto"

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where the formula cannot have the shape of an op's output.

        What has no such inputs is refused by `rewrite`.
        """
        refuse_contradicted(nodes, _surrogate_form, self._joined, may_sum=False)

    def _joined(self, node: Node) -> JoinedShapes:
        try:
            formula = self._nodes(
                node, node.data_inputs, op_args.known_inputs(node), _output_of(node)
            )
        except PatchError:  # which is said as the op is patched
            return {}
        return {"y0": formula.shapes[0].least}

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Let one op count as the formula."""
        if node.op in FED:
            raise PatchError(f"{node}: its value comes from outside, and it reads nothing")
        reads = node.data_inputs
        formula = self._nodes(node, reads, op_args.known_inputs(node), _output_of(node))
        self._put(node, reads, formula, [node], editor)

    def check_op(self, node: Node) -> None:
        """Raise PatchError where the op cannot count as the formula of its inputs."""
        if node.op in FED:
            raise PatchError(f"{node}: its value comes from outside, and it reads nothing")
        self._nodes(node, node.data_inputs, op_args.known_inputs(node), _output_of(node))

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Let a match count as the formula of what it reads."""
        group.refuse_open()
        missing = sorted(self.formula.variables - {f"x{n}" for n in range(len(group.args))})
        if missing:
            raise PatchError(
                f"the match that ends in {group.last} has no {missing[0]}; {group.reading()}"
            )
        reads = group.reads
        formula = self._nodes(group.last, reads, group.args, _output_of(group.last))
        joined = {"y0": formula.shapes[0].least}
        refuse_contradicted_match(group, joined, editor, may_sum=False)
        self._put(group.last, reads, formula, group.nodes, editor, noted=reads)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """One formula of all tensors."""
        return ByInput(self.formula.texts)

    def _put(
        self,
        node: Node,
        reads: Sequence[str],
        formula: FormulaNodes,
        behind: Sequence[Node],
        editor: Editor,
        noted: Sequence[str] = (),
    ) -> None:
        refuse_behind(behind, node, editor)
        carried = by_function(node, editor, self.emit)
        _refuse_ops_without_gradient(node, formula, carried and by_function(node, editor, "auto"))
        shadow_behind(behind, node, editor)
        known = len(behind) == 1 and _has_shape_of(node, formula.shapes[0])
        tensor = put_beside(formula, node, {}, editor, _anchor(node, editor))
        # What stands before the op may be another tensor, where a function carries it.
        noted = reads if carried else noted
        join(node, {0: BackwardTensor(tensor, not known)}, editor, self.emit, behind, noted)

    def _nodes(
        self, node: Node, reads: Sequence[str], args: Sequence[FlatArg], dtype: str
    ) -> FormulaNodes:
        """Return the ops of the formula on these tensors."""
        for place, arg in enumerate(args):
            if arg.dtype is None:
                raise PatchError(f"{node}: input {place} ({arg.name}) {op_args.why_not(arg)}")
        legal = {f"x{place}" for place in range(len(args))}
        missing = sorted(self.formula.variables - legal)
        if missing:
            raise PatchError(f"{node} has no {missing[0]}; {op_args.counted_inputs(args, 'x')}")
        inputs = [(text, arg.dtype or "") for text, arg in zip(reads, args, strict=True)]
        body, name = node.body, f"{node.name}/surrogate"
        try:
            values = signature(node).attrs
            return formula_nodes(self.formula, inputs, dtype, name, not body.is_main, values)
        except (FormulaError, ValueError) as error:
            raise PatchError(f"{node}: {error}") from error


def _surrogate_form(node: Node) -> Hashable:
    """Return all that the formula's shape depends on, but for the shapes of what it reads."""
    flat = tuple(arg.dtype for arg in node.arguments or ())
    return node.op, flat, *(str(value) for _, value in sorted(node.attrs().items()))


def _output_of(node: Node) -> str:
    """Return the dtype of the op's one output."""
    outputs = op_args.known_outputs(node)
    if len(outputs) != 1:
        raise PatchError(f"{node} has {len(outputs)} outputs; surrogate_gradient needs one")
    if not op_args.carries(outputs[0]):
        raise PatchError(f"{node}: {outputs[0].name} {op_args.why_not(outputs[0])}")
    return outputs[0].dtype or ""


def _refuse_ops_without_gradient(node: Node, formula: FormulaNodes, whole: bool) -> None:
    unknown = sorted({added.op for added in formula.nodes} & UNKNOWN_TO_FUNCTIONS) if whole else []
    if unknown:
        raise PatchError(
            f"{node} is in a function that a Session differentiates as a whole, where TensorFlow "
            f"has no gradient of {', '.join(unknown)}, of which the formula is made; write it with "
            f'other functions, or inline the function ("body": "main" leaves functions out)'
        )


def _has_shape_of(node: Node, shape: BroadcastShape) -> bool:
    """Return whether the formula is known to have the shape of the op's output, in every run."""
    op, exact = node.opdef, shape.exactly
    if op is None or not exact:
        return False
    keeping = {f"x{place}" for place in op.keeps_shape}
    return exact == keeping if op.broadcasts else exact <= keeping


def _anchor(node: Node, editor: Editor) -> list[str]:
    """What a constant must wait for, so as to be in the v1 loop or branch that the op is in."""
    if not in_control_flow(node, editor):
        return []
    typed = {"T": attrs.dtype(op_args.known_inputs(node)[0].dtype or "")}
    anchor = editor.add(f"{node.name}/surrogate/in", "Identity", [node.data_inputs[0]], typed, node)
    return [f"^{anchor.name}"]
