"""A patch as one key of `_gradient_op_type`, set on an op that stays where it is.

So `tf.Graph.gradient_override_map` sets keys. Here the key says what the op's gradient is composed
of, and is registered with TensorFlow in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphpatch.differentiation.override_keys import gradient_type, is_registered
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.composed import ComposedGradient, composed_gradient
from graphpatch.gradients.spec import BUILT_IN
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.match.spec import WHOLE
from graphpatch.patches import KINDS, IdlePatch, Patch
from graphpatch.patches.filter import FilterGradient
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.override import OverrideGradient
from graphpatch.patches.stop import StopGradient
from graphpatch.patches.straight_through import StraightThrough
from graphpatch.patches.surrogate import SurrogateGradient
from graphpatch.rules import Rule
from graphpatch.runtime.live import filter_keys, gradient_keys
from graphpatch.runtime.live.gradient_keys import NoKeyError

Compose = Callable[[Any, Node, ComposedGradient, Editor], ComposedGradient | None]

# How a patch changes what an op's gradient is composed of; None where it means nothing there.
COMPOSE: dict[type[Any], Compose] = {
    OverrideGradient: gradient_keys.override,
    StraightThrough: gradient_keys.straight_through_key,
    SurrogateGradient: gradient_keys.surrogate_or_key,
    FilterGradient: filter_keys.filter_by_key,
    StopGradient: filter_keys.stop_all,
}


@dataclass(frozen=True, slots=True)
class NoKeyPatch:
    """A patch that no key can do, of a rule that may match nothing: an error where it matches."""

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
class KeyedPatch:
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
        """Why it changes nothing at any of these ops; nothing where it does."""
        return self.patch.idle(nodes) if isinstance(self.patch, IdlePatch) else ""

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
    """The rule whose patch is done by keys.

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
