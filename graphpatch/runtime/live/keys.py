"""Patches as keys of `_gradient_op_type`, set on ops that stay where they are.

So `tf.Graph.gradient_override_map` sets keys. Here the key says what the op's gradient is composed
of, and is registered with TensorFlow in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from graphpatch import opdefs
from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.differentiation.override_keys import gradient_type, is_registered
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import (
    BUILT_IN,
    ComposedGradient,
    DefaultGradient,
    Gradient,
    GradientLayer,
    InlineFormula,
    PythonGradient,
    RegisteredKey,
    built_in_key,
    composed_gradient,
    python_key,
    surrogate_key,
)
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.match.spec import WHOLE
from graphpatch.patches import KINDS, Patch, at, carrier, op_args
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.override import OverrideGradient, never_fires
from graphpatch.patches.stop import StopGradient
from graphpatch.patches.straight_through import StraightThrough
from graphpatch.patches.surrogate import SurrogateGradient
from graphpatch.rules import Rule


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""


def override(
    patch: OverrideGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Return the op's own gradient is another one; filters stay around it."""
    if isinstance(patch.gradient, DefaultGradient):
        if now.own == node.op:
            raise PatchError(
                f"{node} has no override to take off; its gradient is TensorFlow's default"
            )
        return ComposedGradient(node.op, now.outputs, now.inputs)
    reason = never_fires(node)
    if reason:
        editor.skipped(reason)
        return None
    refuse_key_at_boundary(node)
    carrier.refuse_key(patch.gradient, patch.emit)
    return _composed(own_key(patch.gradient, node, patch.emit, editor), now)


def own_key(gradient: Gradient, node: Node, emit: str, editor: Editor) -> str:
    """Return the key of a gradient for an op: one of TensorFlow's own where that is exactly it.

    Raises PatchError where the gradient does not fit the op.
    """
    if isinstance(gradient, PythonGradient):
        return python_key(gradient)
    if isinstance(gradient, RegisteredKey):
        carrier.check_once(gradient, node, editor)
        return gradient.key
    assert not isinstance(gradient, DefaultGradient), "it takes off, and gives none"
    fitting = gradient.for_op(node.op)
    carrier.check_once(fitting, node, editor)
    exact = built_in_key(fitting, node.opdef) if emit == "auto" else None
    return exact or fitting.key


def straight_through_key(
    patch: StraightThrough, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Return the op counts as the identity of one of its inputs."""
    refuse_key_at_boundary(node)
    patch.check_op(node)
    count = len(op_args.known_inputs(node))
    if count == 1:
        return _composed("Identity", now)
    gradient = InlineFormula(
        Formula.parse(["dy" if n == patch.input else None for n in range(count)])
    )
    carrier.check_once(gradient, node, editor)
    return _composed(gradient.key, now)


def surrogate_or_key(
    patch: SurrogateGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Return the op counts as a formula of its inputs, which TensorFlow differentiates."""
    refuse_key_at_boundary(node)
    patch.check_op(node)
    return _composed(surrogate_key(patch.formula), now)


def refuse_key_at_boundary(node: Node) -> None:
    """Raise NoKeyError for an op that leads into or out of a v1 loop or branch.

    TensorFlow computes its gradient inside, and has what a filter reads outside, or the reverse.
    """
    if node.op in BOUNDARIES:
        raise NoKeyError(f"{node} leads into or out of a loop or branch")


def _composed(own: str, now: ComposedGradient) -> ComposedGradient:
    return ComposedGradient(own, now.outputs, now.inputs)


# Calls of functions: TensorFlow has their gradient under no key.
ALL_CALLS = CALLS | {"SymbolicGradient", "RemoteCall"}

# Gradients of TensorFlow that give zeros for zeros.
LINEAR_FILTERS = frozenset({"Identity", "Neg", "Sign"})


def filter_by_key(
    patch: FilterGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Return what flows back passes a gradient, before or behind the op's own."""
    carrier.refuse_key(patch.gradient, patch.emit)
    if not _lets_gradient_through(node, patch.at, editor):
        return None
    _check_filter(patch.gradient, node, editor)
    side, place = at.parsed(patch.at)
    if side == "output" and _has_several_outputs(node) and not keeps_zeros(patch.gradient, editor):
        raise NoKeyError(
            f"{node} has several outputs: TensorFlow gives its gradient zeros for those that "
            f"nothing flows back to, and this filter makes something else of zeros"
        )
    layer = GradientLayer(place, patch.gradient)
    return now.behind(layer) if side == "output" else now.before(layer)


def stop_all(
    patch: StopGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Nothing flows back."""
    if not _lets_gradient_through(node, patch.at, editor):
        return None
    side, place = at.parsed(patch.at)
    if side == "output" and place is not None and _has_several_outputs(node):
        raise NoKeyError(f"{node} has several outputs, and the gradient stops at one of them")
    layer = GradientLayer(place, None)
    return now.behind(layer) if side == "output" else now.before(layer)


def _lets_gradient_through(node: Node, where: str, editor: Editor) -> bool:
    """Return whether anything flows back there; the report says where nothing does.

    Raises NoKeyError where something does that no gradient function of this op sees.
    """
    reason = at.idle(node, where)
    if reason:
        editor.skipped(reason)
        return False
    if op_args.is_source(node):
        raise NoKeyError(f"{node} is a source: TensorFlow asks for no gradient of it")
    refuse_key_at_boundary(node)
    if node.op in ALL_CALLS or node.op in node.body.library.signatures:
        raise NoKeyError(f"{node} calls a function, whose gradient TensorFlow has under no key")
    return True


def _has_several_outputs(node: Node) -> bool:
    return sum(map(op_args.carries, op_args.known_outputs(node))) > 1


def _check_filter(gradient: Gradient, node: Node, editor: Editor) -> None:
    """Raise FormulaError or PatchError where the gradient is not a filter of one tensor."""
    if isinstance(gradient, RegisteredKey):
        if gradient.by_name:
            _check_unary(gradient)
        return
    if isinstance(gradient, PythonGradient | DefaultGradient):
        return
    args = (*op_args.known_inputs(node), *op_args.known_outputs(node))
    for dtype in {arg.dtype or "" for arg in args if op_args.carries(arg)}:
        tensor = Signature.of([("x0", dtype)], [("y0", dtype)], same_shape=True)
        editor.cached(
            ("filters", gradient.key, dtype), partial(gradient_ops, gradient.formula, tensor)
        )


def _check_unary(gradient: RegisteredKey) -> None:
    known = opdefs.lookup(gradient.key)
    if known is not None and (len(known.inputs), len(known.outputs)) != (1, 1):
        raise PatchError(
            f"the gradient of {gradient.key} is for {len(known.inputs)} inputs and "
            f"{len(known.outputs)} outputs; a filter is for one tensor"
        )


def keeps_zeros(gradient: Gradient, editor: Editor) -> bool:
    """Whether a filter lets zeros through as zeros, for numbers of every size in the tensor."""
    if isinstance(gradient, RegisteredKey):
        return gradient.key in LINEAR_FILTERS
    if isinstance(gradient, PythonGradient | DefaultGradient):
        return False
    return editor.cached(("zeros", gradient.key), lambda: _gives_zeros(gradient.formula))


def _gives_zeros(formula: Formula) -> bool:
    sizes = np.geomspace(1e-6, 1e6, 25, dtype="float32")
    tensor = np.concatenate([-sizes, [0.0], sizes]).astype("float32")
    dxs = interpreter.gradient(formula, [tensor], [tensor], [np.zeros_like(tensor)])
    return dxs[0] is not None and not np.any(dxs[0])


Compose = Callable[[Any, Node, ComposedGradient, Editor], ComposedGradient | None]

# How a patch changes what an op's gradient is composed of; None where it means nothing there.
COMPOSE: dict[type[Any], Compose] = {
    OverrideGradient: override,
    StraightThrough: straight_through_key,
    SurrogateGradient: surrogate_or_key,
    FilterGradient: filter_by_key,
    StopGradient: stop_all,
}


@dataclass(frozen=True, slots=True)
class NoKeyPatch(Patch):
    """A patch that no key can do, of a rule that may match nothing: an error where it matches."""

    takes_match: ClassVar[bool] = True
    reason: str

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise NoKeyError where there is an op."""
        if nodes:
            raise NoKeyError(self.reason)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Raise NoKeyError."""
        raise NoKeyError(self.reason)

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Raise NoKeyError."""
        raise NoKeyError(self.reason)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """Raise NoKeyError."""
        raise NoKeyError(self.reason)


@dataclass(frozen=True, slots=True)
class KeyedPatch(Patch):
    """A patch that is done by a key alone.

    `bodies`: ops in functions may have one, too. `keys` collects the keys that were set.
    """

    patch: Patch
    bodies: bool
    keys: dict[str, None]

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where it would do nothing for all of these ops together."""
        self.patch.check(nodes)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Return why it changes nothing at any of these ops; nothing where it does."""
        return self.patch.idle(nodes)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Set the key of one op. Raises NoKeyError where a key cannot do it."""
        if not (self.bodies or node.body.is_main):
            raise NoKeyError(f"{node} is in a function, which TensorFlow has a copy of already")
        now = current_gradient(node)
        try:
            new = COMPOSE[type(self.patch)](self.patch, node, now, editor)
        except FormulaError as error:
            raise PatchError(f"{node}: {error}") from error
        if new is None or new == now:
            return
        key = None if new.key == node.op else new.key
        editor.set_attr(node, attrs.OVERRIDE, None if key is None else attrs.text(key))
        needed = "" if key is None or is_registered(key) else key
        editor.used("attr" if needed else BUILT_IN, session=needed, tape=needed)
        if needed:
            self.keys[needed] = None


def current_gradient(node: Node) -> ComposedGradient:
    """What the gradient of an op is composed of: as its key says, else that of its op type."""
    return composed_gradient(gradient_type(node))


def by_key(rule: Rule, bodies: bool, keys: dict[str, None]) -> Rule:
    """Return the rule whose patch is done by keys.

    Raises NoKeyError where none can do it on any op; of a rule that may match nothing, as the rules
    of recipes may, not before it matches.
    """
    reason = _why_no_key(rule)
    if reason and not rule.expect.min:
        return replace(rule, patch=NoKeyPatch(reason))
    if reason:
        raise NoKeyError(f"rule {rule.author.rule!r}: {reason}")
    return replace(rule, patch=KeyedPatch(rule.patch, bodies, keys))


def _why_no_key(rule: Rule) -> str:
    if rule.on == (WHOLE,):
        return f'"on": "{WHOLE}" makes several ops one, and a key is of one op'
    if type(rule.patch) not in COMPOSE:
        kind = next(key for key in KINDS if key in rule.told)
        return f"{kind} adds ops to the graph, and a key adds none"
    emit = getattr(rule.patch, "emit", "auto")
    if emit not in ("auto", "attr"):
        return f"emit: {emit} asks for more than a key"
    return ""
