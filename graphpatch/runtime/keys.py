"""Patches as keys of `_gradient_op_type`, set on ops that stay where they are.

So `tf.Graph.gradient_override_map` sets keys. Here the key says what the op's gradient is composed
of, and is registered with TensorFlow in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphpatch import opdefs
from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.differentiation.override_keys import gradient_type, is_registered
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    BUILT_IN,
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
from graphpatch.graph.attrs import OUTPUT_SHAPES
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.match.spec import WHOLE
from graphpatch.patches import KINDS, Patch, at, carrier, op_args
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.freeze import Freeze, Updates, variable_of
from graphpatch.patches.named_tensors import check_named, named_tensors
from graphpatch.patches.override import OverrideGradient, never_fires
from graphpatch.patches.stop import StopGradient
from graphpatch.patches.straight_through import StraightThrough
from graphpatch.patches.surrogate import SurrogateGradient
from graphpatch.rules import Rule
from graphpatch.runtime.gradient_functions import check_filter
from graphpatch.runtime.register import register_key

# Calls of functions: TensorFlow has their gradient under no key.
ALL_CALLS = CALLS | {"SymbolicGradient", "RemoteCall"}

# Gradients of TensorFlow that give zeros for zeros.
LINEAR_FILTERS = frozenset({"Identity", "Neg", "Sign"})

WRITTEN_ATTRS = (attrs.OVERRIDE, provenance.PROVENANCE_ATTR)


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""


def _override(
    patch: OverrideGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Give the op another gradient, or its own again; filters stay around it."""
    gradient = patch.gradient
    if isinstance(gradient, DefaultGradient):
        if now.own == node.op:
            raise PatchError(
                f"{node} has no override to take off; its gradient is TensorFlow's default"
            )
        return _with_own(now, node.op)
    if reason := never_fires(node):
        editor.skipped(reason)
        return None
    _refuse_boundary(node)
    carrier.refuse_key(gradient, patch.emit)
    if isinstance(gradient, PythonGradient):
        return _with_own(now, gradient.key)
    exact = None
    if not isinstance(gradient, RegisteredKey):
        gradient = gradient.for_op(node.op)
        exact = built_in_key(gradient, node.opdef) if patch.emit == "auto" else None
    carrier.check_once(gradient, node, editor)
    return _with_own(now, exact or gradient.key)


def _with_own(now: ComposedGradient, key: str) -> ComposedGradient:
    """Return the same filters around another gradient."""
    return ComposedGradient(key, now.outputs, now.inputs)


def _straight_through(
    patch: StraightThrough, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient:
    """Let the op count as the identity of one of its inputs."""
    _refuse_boundary(node)
    patch.check_op(node)
    count = len(op_args.known_inputs(node))
    if count == 1:
        return _with_own(now, "Identity")
    texts = ["dy" if place == patch.input else None for place in range(count)]
    gradient = InlineFormula(Formula.parse(texts))
    carrier.check_once(gradient, node, editor)
    return _with_own(now, gradient.key)


def _surrogate(
    patch: SurrogateGradient, node: Node, now: ComposedGradient, _: Editor
) -> ComposedGradient:
    """Let the op count as a formula of its inputs, which TensorFlow differentiates."""
    _refuse_boundary(node)
    patch.check_op(node)
    return _with_own(now, surrogate_key(patch.formula))


def _refuse_boundary(node: Node) -> None:
    """Raise NoKeyError for an op that leads into or out of a v1 loop or branch.

    TensorFlow computes its gradient inside, and has what a filter reads outside, or the reverse.
    """
    if node.op in BOUNDARIES:
        raise NoKeyError(f"{node} leads into or out of a loop or branch")


def _filter(
    patch: FilterGradient | StopGradient, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Put what flows back through a gradient, or stop it, before or behind the op's own."""
    gradient = patch.gradient if isinstance(patch, FilterGradient) else None
    if isinstance(patch, FilterGradient):
        carrier.refuse_key(patch.gradient, patch.emit)
    if reason := at.idle(node, patch.at):
        editor.skipped(reason)
        return None
    if op_args.is_source(node):
        raise NoKeyError(f"{node} is a source: TensorFlow asks for no gradient of it")
    _refuse_boundary(node)
    if node.op in ALL_CALLS or node.op in node.body.library.signatures:
        raise NoKeyError(f"{node} calls a function, whose gradient TensorFlow has under no key")
    side, place = at.parsed(patch.at)
    several = side == "output" and sum(map(op_args.carries, op_args.known_outputs(node))) > 1
    if gradient is None:
        if several and place is not None:
            raise NoKeyError(f"{node} has several outputs, and the gradient stops at one of them")
        return now.with_layer(side, (place, None))
    assert not isinstance(gradient, DefaultGradient), "it is not a filter"
    _check_filter(gradient, node)
    if several and not keeps_zeros(gradient, editor):
        raise NoKeyError(
            f"{node} has several outputs: TensorFlow gives its gradient zeros for those that "
            f"nothing flows back to, and this filter makes something else of zeros"
        )
    return now.with_layer(side, (place, gradient.key))


def _check_filter(gradient: Gradient, node: Node) -> None:
    """Raise FormulaError or PatchError where the gradient is not a filter of one tensor."""
    if isinstance(gradient, RegisteredKey):
        known = opdefs.lookup(gradient.key) if gradient.by_name else None
        if known is not None and (len(known.inputs), len(known.outputs)) != (1, 1):
            raise PatchError(
                f"the gradient of {gradient.key} is for {len(known.inputs)} inputs and "
                f"{len(known.outputs)} outputs; a filter is for one tensor"
            )
    elif isinstance(gradient, LibraryGradient | InlineFormula) and not named_tensors(gradient):
        args = (*op_args.known_inputs(node), *op_args.known_outputs(node))
        for dtype in {arg.dtype or "" for arg in args if op_args.carries(arg)}:
            check_filter(gradient.formula, dtype)


def keeps_zeros(gradient: Gradient, editor: Editor) -> bool:
    """Return whether a filter lets zeros through as zeros, for tensors of numbers of every size."""
    if isinstance(gradient, RegisteredKey):
        return gradient.key in LINEAR_FILTERS
    if isinstance(gradient, PythonGradient | DefaultGradient) or named_tensors(gradient):
        return False
    formula = gradient.formula

    def gives_zeros() -> bool:
        sizes = np.geomspace(1e-6, 1e6, 25, dtype="float32")
        tensor = np.concatenate([-sizes, [0.0], sizes]).astype("float32")
        dx = interpreter.gradient(formula, [tensor], [tensor], [np.zeros_like(tensor)])[0]
        return dx is not None and not np.any(dx)

    return editor.cached(("zeros", gradient.key), gives_zeros)


def _freeze(
    patch: Freeze, node: Node, now: ComposedGradient, editor: Editor
) -> ComposedGradient | None:
    """Stop the gradient of a variable that no optimizer changes yet."""
    variable = variable_of(node.body, next(iter(node.data_inputs), ""))
    if variable is not None and variable.name in Updates(node.body).of:
        raise NoKeyError(f"an optimizer changes {variable}, and a key takes out no update")
    return _filter(StopGradient(), node, now, editor)


Compose = Callable[[Any, Node, ComposedGradient, Editor], ComposedGradient | None]

# How a patch changes what an op's gradient is composed of; None where it means nothing there.
COMPOSE: dict[type[Any], Compose] = {
    OverrideGradient: _override,
    StraightThrough: _straight_through,
    SurrogateGradient: _surrogate,
    FilterGradient: _filter,
    StopGradient: _filter,
    Freeze: _freeze,
}


@dataclass(frozen=True, slots=True)
class KeyedPatch(Patch):
    """A patch that is done by a key alone.

    `bodies`: ops in functions may have one, too. `keys` collects the keys that were set. `why_not`
    is set where no key can do it, which is an error where the rule matches.
    """

    patch: Patch
    bodies: bool
    keys: dict[str, None]
    why_not: str = ""

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where it would do nothing for all of these ops together."""
        if self.why_not and nodes:
            raise NoKeyError(self.why_not)
        self.patch.check(nodes)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Return why it changes nothing at any of these ops; nothing where it does."""
        return self.patch.idle(nodes)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Set the key of one op. Raises NoKeyError where a key cannot do it."""
        if not (self.bodies or node.body.is_main):
            raise NoKeyError(f"{node} is in a function, which TensorFlow has a copy of already")
        if isinstance(self.patch, OverrideGradient | FilterGradient) and not self.bodies:
            check_named(self.patch.gradient, [node], editor)  # an op is alone while it is made
        now = composed_gradient(gradient_type(node))
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


def keyed(rule: Rule, bodies: bool, keys: dict[str, None]) -> Rule:
    """Return the rule whose patch is done by keys.

    Raises NoKeyError where none can do it on any op; of a rule that may match nothing, as the rules
    of recipes may, not before it matches.
    """
    reason, emit = "", getattr(rule.patch, "emit", "auto")
    if rule.on == (WHOLE,):
        reason = f'"on": "{WHOLE}" makes several ops one, and a key is of one op'
    elif type(rule.patch) not in COMPOSE:
        kind = next(key for key in KINDS if key in rule.told)
        reason = f"{kind} adds ops to the graph, and a key adds none"
    elif emit not in ("auto", "attr"):
        reason = f"emit: {emit} asks for more than a key"
    if reason and rule.expect.min:
        raise NoKeyError(f"rule {rule.author.rule!r}: {reason}")
    on = () if reason else rule.on
    return replace(rule, patch=KeyedPatch(rule.patch, bodies, keys, reason), on=on)


def register_all(keys: Iterable[str]) -> None:
    """Register keys of ours with TensorFlow in this process; others are left to their owners."""
    for key in keys:
        register_key(key, allow_python=True)


def write_key(node: Node, op: Any) -> None:
    """Give a live op the gradient key, and what is written down of it, that its node has."""
    import tensorflow as tf

    written = node.attrs()
    for key in WRITTEN_ATTRS:
        if key in written:
            value = tf.compat.v1.AttrValue()
            value.ParseFromString(written[key].SerializeToString(deterministic=True))
            # The record and the node in one piece: the export noted shapes, which the op has not.
            if len(value.list.s) == 2:
                was = tf.compat.v1.NodeDef.FromString(value.list.s[1])
                was.attr.pop(OUTPUT_SHAPES, None)
                value.list.s[1] = was.SerializeToString(deterministic=True)
            op._set_attr(key, value)
        elif key in op.node_def.attr:
            op._clear_attr(key)
