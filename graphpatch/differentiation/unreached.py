"""Function bodies to which a Session's gradient never comes, whatever is patched in them.

Measured on 1.15.5 and 2.21. A Session differentiates a function that is called by PartitionedCall,
or as an op of its own, as a whole (SymbolicGradient). That gives zeros for a loop and an error for
a branch, be they functions (While, If) or ops (Enter, Switch), and an error for a PartitionedCall
that Grappler does not inline; and where the library holds a GradientDef for the function, its body
is not looked at. What calls a function otherwise, as MapDataset does, has no gradient.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation.bodies import OP_BY_OP, Bodies
from graphpatch.graph.body import Body, Node
from graphpatch.graph.op_types import CALLS

T = TypeVar("T")

SYMBOLIC_GRADIENT = "SymbolicGradient"  # names the function that it is the gradient of


class Unreached(msgspec.Struct, eq=False, dict=True):
    """Which bodies no gradient reaches, and why; of the graph as it is when first asked."""

    bodies: Bodies
    _inside: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)

    def in_control_flow(self, body: Body) -> frozenset[int]:
        """The ops of a body that lie in v1 loops and branches."""
        if body.label not in self._inside:
            self._inside[body.label] = inside_control_flow(body)
        return self._inside[body.label]

    def why(self, node: Node) -> str:
        """Why no gradient of a Session comes to an op; or nothing."""
        if node.body.is_main or self.bodies.place_of(node).ignoring is None:
            return ""
        if node.index in self.in_control_flow(node.body):
            return _in_loop(f"a v1 loop or branch in function {node.body.label}")
        return self._reasons.get(node.body.label, "")

    @cached_property
    def called_as_ops(self) -> dict[str, Node]:
        """For each function: the op whose type it is, or is a function that it is called by."""
        found = {
            label: call
            for label, calls in self.bodies.callers.items()
            for call in calls
            if call.op == label
        }
        return self._spread(found)

    @cached_property
    def _reasons(self) -> dict[str, str]:
        """Why no gradient comes to functions, at one of the calls by which each is reached."""
        found = {label: self._stopped(label, calls) for label, calls in self.bodies.callers.items()}
        unasked = {
            label: f"TensorFlow has no gradient of {call}, by which function {label} is called"
            for label, call in self._without_gradients.items()
        }
        return self._spread({label: reason for label, reason in found.items() if reason}) | unasked

    @cached_property
    def _without_gradients(self) -> dict[str, Node]:
        """The functions that only ops without a gradient reach, each with one that calls it."""
        callers, below = self.bodies.callers, dict[str, list[str]]()
        live = {
            label: [one for one in calls if not _has_no_gradient(one)]
            for label, calls in callers.items()
        }
        for label, calls in live.items():
            for one in calls:
                below.setdefault(one.body.label, []).append(label)
        left = {label: len(calls) for label, calls in live.items()}
        found = {label: callers[label][0] for label, count in left.items() if not count}
        todo = deque(found)
        while todo:
            above = todo.popleft()
            for label in below.get(above, ()):
                left[label] -= 1
                if not left[label] and label not in found:
                    found[label] = found[above]
                    todo.append(label)
        return found

    def _stopped(self, label: str, calls: Sequence[Node]) -> str:
        """Why no gradient comes to a function at one of these calls of it."""
        gradients = self.bodies.graph.library.gradients
        for call in calls:
            if _has_no_gradient(call) or call.body.label in self._without_gradients:
                continue
            by_op, ignored = call.op in OP_BY_OP, self.bodies.place_of(call).ignoring is not None
            if not by_op and label in gradients:
                return f"the model declares {gradients[label]} as the gradient of function {label}"
            if by_op and ignored:
                return _in_loop(str(call))
            if call.body.is_main or not ignored:
                continue
            if call.op in CALLS and not self.bodies.is_inlined(call):
                return _in_loop(str(call))
            if call.index in self.in_control_flow(call.body):
                return _in_loop(f"a v1 loop or branch in function {call.body.label}")
        return ""

    def _spread(self, found: Mapping[str, T]) -> dict[str, T]:
        """What is so of functions, as far as it is so of all that they call, and these call.

        Functions may call themselves, and each other; what is found of one itself goes first.
        """
        below: dict[str, list[str]] = {}
        for label, calls in self.bodies.callers.items():
            for node in calls:
                if not node.body.is_main:
                    below.setdefault(node.body.label, []).append(label)
        spread_to, todo = dict(found), deque(found)
        while todo:
            above = todo.popleft()
            for label in below.get(above, ()):
                if label not in spread_to:
                    spread_to[label] = spread_to[above]
                    todo.append(label)
        return spread_to


def _has_no_gradient(call: Node) -> bool:
    """Whether what calls a function has no gradient, as the map of a dataset has none."""
    known = call.opdef
    if call.op in CALLS | OP_BY_OP | {SYMBOLIC_GRADIENT} or known is None:
        return False
    return known.gradient != "registered" and call.op not in call.body.library.signatures


def _in_loop(which: str) -> str:
    return (
        f"a Session gives no gradient through {which}, as it differentiates that function as a "
        f"whole; inline the function into the main graph first"
    )
