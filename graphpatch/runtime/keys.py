"""Patches as keys of `_gradient_op_type`, set on ops that stay where they are; a match takes two.

So `tf.Graph.gradient_override_map` sets keys. Here the key says what the op's gradient is composed
of, and is registered with TensorFlow in this process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.differentiation.flow import carries
from graphpatch.differentiation.override_keys import gradient_type, is_registered
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.spec import (
    BUILT_IN,
    FILTER,
    ComposedGradient,
    DefaultGradient,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    built_in_key,
    composed_gradient,
    surrogate_key,
)
from graphpatch.graph import attrs, provenance
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import graph_of
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.opdefs import HANDLES
from graphpatch.patches import KINDS, Patch
from graphpatch.patches.carrier import check_named, check_once, named_tensors, refuse_key
from graphpatch.patches.filter import FilterGradient, SidePatch, StopGradient
from graphpatch.patches.freeze import Freeze, Updates, variable_read
from graphpatch.patches.inline import parsed, why_idle
from graphpatch.patches.override import OverrideGradient, never_fires
from graphpatch.patches.reach import all_in_control_flow, shadow_behind
from graphpatch.patches.straight_through import StraightThrough
from graphpatch.patches.surrogate import SurrogateGradient
from graphpatch.patches.target import Target, is_source, known_inputs, known_outputs
from graphpatch.protos import GraphDef
from graphpatch.rules import Rule

BY_KEY = (OverrideGradient, StraightThrough, SurrogateGradient, SidePatch, Freeze)
"""The patches that a key of the op alone can store."""

OF_MATCH = (OverrideGradient, StraightThrough)
"""Those that two keys can store where a match counts as one op."""

VARIABLE = re.compile(r"\b(x|dy)(\d*)\b")

# Calls of functions: TensorFlow has their gradient under no key.
ALL_CALLS = CALLS | {"SymbolicGradient", "RemoteCall"}

# Gradients of TensorFlow that give zeros for zeros.
LINEAR_FILTERS = frozenset({"Identity", "Neg", "Sign"})


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""


@dataclass(frozen=True, slots=True)
class KeyedPatch(Patch):
    """A patch that is done by a key alone.

    `bodies`: ops in functions may have one, too. `why_not` is set where no key can do it, which is
    an error where the rule matches.
    """

    patch: Patch
    bodies: bool
    why_not: str = ""

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where it would do nothing for all of these ops together."""
        if self.why_not and targets:
            raise NoKeyError(self.why_not)
        self.patch.check(targets)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Return why it changes nothing at any of these ops; nothing where it does."""
        return self.patch.idle(nodes)

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return what flows back to each tensor that a match reads, or one text for all."""
        return self.patch.formulas(target)

    def rewrite(self, target: Target, editor: Editor) -> None:
        """Set the key of an op, or those of a match. Raises NoKeyError where no key can do it."""
        node = target.last
        if self.why_not:
            raise NoKeyError(self.why_not)
        if not (self.bodies or node.body.is_main):
            raise NoKeyError(f"{node} is in a function, which TensorFlow has a copy of already")
        if any(map(_ends_match, target.nodes)):
            raise NoKeyError(f"{node} ends or follows a match that a rule before patched as one op")
        if target.is_match:
            _override_match(self.patch, target, editor)
            return
        if isinstance(self.patch, OverrideGradient | FilterGradient) and not self.bodies:
            check_named(self.patch.gradient, target, editor)  # an op is alone while it is made
        now = composed_gradient(gradient_type(node))
        try:
            new = composed(self.patch, target, now, editor)
        except FormulaError as error:
            raise PatchError(f"{node}: {error}") from error
        if new == now:
            return
        is_default, is_ours = new.key == node.op, not is_registered(new.key)
        editor.set_attr(node, attrs.OVERRIDE, None if is_default else attrs.text(new.key))
        needed = new.key if is_ours and not is_default else ""
        editor.used("attr" if needed else BUILT_IN, session=needed, tape=needed)


def keyed(rule: Rule, bodies: bool) -> Rule:
    """Return the rule whose patch is done by keys.

    Raises NoKeyError where none can do it on any op; of a rule that may match nothing, as the rules
    of recipes may, not before it matches.
    """
    reason, emit = "", getattr(rule.patch, "emit", "auto")
    kind = next(key for key in KINDS if key in rule.written_patch)
    if not isinstance(rule.patch, OF_MATCH if rule.as_one else BY_KEY):
        what = f"{kind} of a match as one op" if rule.as_one else kind
        reason = f"{what} adds ops to the graph, and a key adds none"
    elif emit not in ("auto", "attr"):
        reason = f"emit: {emit} asks for more than a key"
    if reason and rule.expect.min:
        raise NoKeyError(f"rule {rule.author.rule!r}: {reason}")
    on = () if reason else rule.on
    return replace(rule, patch=KeyedPatch(rule.patch, bodies, reason), on=on)


def composed(patch: Any, target: Target, now: ComposedGradient, editor: Editor) -> ComposedGradient:
    """Return what the gradient of an op is composed of after a patch, and is `now` before it."""
    node = target.last
    if isinstance(patch, Freeze):
        variable = variable_read(node)
        if variable is not None and variable.name in Updates(node.body).of:
            raise NoKeyError(f"an optimizer changes {variable}, and a key takes out no update")
        patch = StopGradient()
    is_side = isinstance(patch, SidePatch)
    if isinstance(patch, OverrideGradient | FilterGradient):
        refuse_key(patch.gradient, patch.emit)
    if isinstance(patch, OverrideGradient) and isinstance(patch.gradient, DefaultGradient):
        if now.own == node.op:
            raise PatchError(
                f"{node} has no override to take off; its gradient is TensorFlow's default"
            )
        return msgspec.structs.replace(now, own=node.op)
    reason = why_idle(target, patch.at) if is_side else ""
    if isinstance(patch, OverrideGradient):
        reason = never_fires(node)
    if reason:
        editor.skipped(reason)
        return now
    if is_side and is_source(node):
        raise NoKeyError(f"{node} is a source: TensorFlow asks for no gradient of it")
    if node.op in BOUNDARIES:
        # TensorFlow computes its gradient inside, and has what a filter reads outside, or the
        # reverse.
        raise NoKeyError(f"{node} leads into or out of a loop or branch")
    if is_side:
        return _filtered(patch, node, now, editor)
    return msgspec.structs.replace(now, own=_own_key(patch, target, editor))


def _override_match(patch: Any, target: Target, editor: Editor) -> None:
    """Give a match as one op its gradient by two keys.

    What flows back to its last op passes one of that op's inputs as it is, to an IdentityN of this
    input and of all that the match reads. The key of the IdentityN gives these their gradient.
    """
    node, (slot, formula) = target.last, _passing(patch, target, editor)

    def numbered(variable: re.Match[str]) -> str:
        return "dy0" if variable[1] == "dy" else f"x{int(variable[2] or 0) + 1}"

    texts = [
        (formula.texts[0] if carries(arg) else None) if formula.alike else formula.texts[place]
        for place, arg in enumerate(target.args)
    ]
    moved = [None if text is None else VARIABLE.sub(numbered, text) for text in texts]
    gradient = InlineFormula(Formula.parse([None, *moved], dict(formula.values)))
    passed = InlineFormula(
        Formula.parse(["dy" if place == slot else None for place in range(len(node.data_inputs))])
    )
    args = [known_inputs(node)[slot], *target.args]
    typed = {
        "T": attrs.dtypes([arg.dtype or "" for arg in args]),
        attrs.OVERRIDE: attrs.text(gradient.key),
    }
    reads, name = [node.data_inputs[slot], *target.reads], f"{node.name}/match"
    added = editor.add(name, "IdentityN", reads, typed, node, before=True)
    editor.set_input(node, slot, added.tensor(0))
    shadow_behind(target, editor)
    now = composed_gradient(gradient_type(node))
    if now.inputs:
        raise NoKeyError(f"a rule before filters what flows back from {node}, where dy would pass")
    own = msgspec.structs.replace(now, own=passed.key)
    editor.set_attr(node, attrs.OVERRIDE, attrs.text(own.key))
    for key in (own.key, gradient.key):
        editor.used("attr", session=key, tape=key)


def _ends_match(node: Node) -> bool:
    """Return whether an op reads the IdentityN that `_override_match` adds."""
    producers = (node.body.producer(text) for text in node.data_inputs)
    return any(p is not None and p.op == "IdentityN" and provenance.is_added(p) for p in producers)


def _passing(patch: Any, target: Target, editor: Editor) -> tuple[int, Formula]:
    """Return the input of the last op of a match that dy can pass, and what flows back.

    Raises NoKeyError where there is no such input, or the formula reads what is not there.
    """
    node, gradient = target.last, getattr(patch, "gradient", None)
    if isinstance(patch, StraightThrough):
        target.refuse_open()
        patch.check_target(target)
        gradient = InlineFormula(Formula.parse(patch.formulas(target)))
    if not isinstance(gradient, InlineFormula | LibraryGradient):
        raise NoKeyError(f"{target} has no key: one holds a formula alone")
    formula, outputs = gradient.formula, known_outputs(node)
    try:
        gradient_ops(formula, target.signature)
    except (FormulaError, ValueError) as error:
        raise PatchError(f"{target}: {error}; {target.reading()}") from error
    if formula.reads_op or formula.attrs or formula.tensors or formula.variables & {"y", "y0"}:
        raise NoKeyError(f"{target} has no key: the formula reads more than x0, x1, ... and dy")
    if all_in_control_flow(node.body, editor) & {op.index for op in target.nodes}:
        raise NoKeyError(f"{target} has no key: it is in a v1 loop or branch")
    if any(arg.dtype in HANDLES for arg in target.args):
        raise NoKeyError(f"{target} has no key: it reads the handle of a variable")
    shapes = Shapes(Wiring(node.body))
    y = shapes.of((node.index, 0))
    for slot, text in enumerate(node.data_inputs):
        arg = known_inputs(node)[slot]
        same_dtype = carries(arg) and arg.dtype == outputs[0].dtype
        if same_dtype and len(outputs) == 1 and shapes.of(shapes.wiring.tensor(text)) == y:
            return slot, formula
    raise NoKeyError(f"{target} has no key: {node} has no input of its shape, which dy could pass")


def _own_key(patch: Any, target: Target, editor: Editor) -> str:
    """Return the key of the gradient that a patch gives an op in the place of its own."""
    if isinstance(patch, SurrogateGradient) and patch.formula.tensors:
        raise NoKeyError(f"{target.last}: the key of a surrogate reads no tensor by name")
    if isinstance(patch, SurrogateGradient | StraightThrough):
        patch.check_target(target)
    if isinstance(patch, SurrogateGradient):
        return surrogate_key(patch.formula)
    if isinstance(patch, StraightThrough):
        if len(target.inputs) == 1:
            return FILTER
        patch = OverrideGradient(InlineFormula(Formula.parse(patch.formulas(target))), "attr")
    gradient: Gradient = patch.gradient
    assert not isinstance(gradient, DefaultGradient), "it is taken off"
    if isinstance(gradient, PythonGradient):
        return gradient.key
    node, exact = target.last, None
    if not isinstance(gradient, RegisteredKey):
        gradient = gradient.for_op(node.op)
        exact = built_in_key(gradient, node.opdef) if patch.emit == "auto" else None
    check_once(gradient, node, editor)
    return exact or gradient.key


def _filtered(
    patch: FilterGradient | StopGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient:
    """Put what flows back through a gradient, or stop it, before or behind the op's own."""
    if node.op in ALL_CALLS or node.op in node.body.library.signatures:
        raise NoKeyError(f"{node} calls a function, whose gradient TensorFlow has under no key")
    side, place = parsed(patch.at)
    several = side == "output" and sum(map(carries, known_outputs(node))) > 1
    if isinstance(patch, StopGradient):
        if several and place is not None:
            raise NoKeyError(f"{node} has several outputs, and the gradient stops at one of them")
        return now.with_layer(side, (place, None))
    gradient = patch.gradient
    assert not isinstance(gradient, DefaultGradient), "it is not a filter"
    if not isinstance(gradient, PythonGradient):
        args = (*known_inputs(node), *known_outputs(node))
        for dtype in {arg.dtype or "" for arg in args if carries(arg)}:
            check_once(gradient, _identity(node.name, dtype), editor)
    if several and not editor.cached(("zeros", gradient.key), lambda: keeps_zeros(gradient)):
        raise NoKeyError(
            f"{node} has several outputs: TensorFlow gives its gradient zeros for those that "
            f"nothing flows back to, and this filter makes something else of zeros"
        )
    return now.with_layer(side, (place, gradient.key))


def _identity(name: str, dtype: str) -> Node:
    """Return the op that a filter in a file is the gradient of, in a graph of its own."""
    message = GraphDef()
    message.node.add(name=name, op=FILTER, input=["x"]).attr["T"].CopyFrom(attrs.dtype(dtype))
    return graph_of(message.SerializeToString()).main.node(name)


def keeps_zeros(gradient: Gradient) -> bool:
    """Return whether a filter lets zeros through as zeros, for tensors of numbers of every size."""
    if isinstance(gradient, RegisteredKey):
        return gradient.key in LINEAR_FILTERS
    if isinstance(gradient, PythonGradient | DefaultGradient) or named_tensors(gradient):
        return False
    sizes = np.geomspace(1e-6, 1e6, 25, dtype="float32")
    tensor = np.concatenate([-sizes, [0.0], sizes]).astype("float32")
    try:
        dx = interpreter.gradient(gradient.formula, [tensor], [tensor], [np.zeros_like(tensor)])[0]
    except FormulaError:  # noise, or a formula that does not fit one axis
        return False
    return dx is not None and not np.any(dx)
