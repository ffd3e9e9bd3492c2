"""How TensorFlow differentiates each body of a graph: op by op, or as a whole.

Measured on 1.15.5 and 2.21: the main graph, and the bodies of While, If and Case, are
differentiated op by op in Python, which honours `_gradient_op_type`. A body that is called by
PartitionedCall, or as an op of its own, is differentiated in C++ by SymbolicGradient, which
ignores the attr without a word. C++ has no gradient of a PartitionedCall in such a body. By default
Grappler inlines it, except as `Bodies.is_inlined` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeVar

import msgspec

from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.graph.functions import called_functions, calls, may_be_inlined
from graphpatch.graph.graph import ModelGraph, graph_of
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import CALLS, CASES, IFS, LOOPS, STATEFUL_CALL
from graphpatch.graph.wire import encoded

LEAST_INLINED = 4  # nodes, arguments and returns; smaller functions Grappler leaves as they are
XLA = "_XlaMustCompile"  # the attr of a call that XLA compiles as a whole
OP_BY_OP = LOOPS | IFS | CASES


class BodyPlace(msgspec.Struct, frozen=True):
    """What calls a body.

    `ignoring` is the op through which it is called where that makes a Session ignore the attr.
    `op_by_op`: it is the body of a While, an If or a Case.
    """

    ignoring: Node | None = None
    op_by_op: bool = False


def callers(bodies: Iterable[Body]) -> dict[str, list[Node]]:
    """Return the ops of these bodies that call each function."""
    calls_by_function: dict[str, list[Node]] = {}
    for body in bodies:
        for node, name in calls(body):
            calls_by_function.setdefault(name, []).append(node)
    return calls_by_function


class Bodies(msgspec.Struct, eq=False, dict=True):
    """The bodies of a graph, and what calls them; of the graph as it is when first asked."""

    graph: ModelGraph
    _places: dict[str, BodyPlace] = msgspec.field(default_factory=dict)

    @cached_property
    def callers(self) -> dict[str, list[Node]]:
        """Return the ops that call each function."""
        return callers(self.graph.bodies)

    def place_of(self, node: Node) -> BodyPlace:
        """Return the place of an op: how TensorFlow comes to the body that it is in."""
        label = node.body.label
        if node.body.is_main:
            return BodyPlace(_signature_call()) if self.graph.around.is_exported else BodyPlace()
        if label not in self._places:
            self._places[label] = self._place(label)
        return self._places[label]

    def is_inlined(self, call: Node) -> bool:
        """Whether Grappler inlines a call in a called function, as Sessions run it by default.

        Not into a function of fewer than four nodes, arguments and returns, nor where the function
        says `_noinline`, nor what XLA compiles. Measured on 1.15.5 and 2.21.
        """
        body, for_xla = call.body, call.attr(XLA)
        called = [self.graph.functions.get(name) for name in called_functions(call)]
        return (
            len(body) + len(body.arguments) + len(body.ret) >= LEAST_INLINED
            and not (for_xla is not None and for_xla.b)
            and all(
                body_called is not None and may_be_inlined(body_called) for body_called in called
            )
        )

    def _place(self, label: str) -> BodyPlace:
        op_by_op = any(node.op in OP_BY_OP for node in self.callers.get(label, ()))
        ignoring = self._ignoring.get(label)
        # In a TF2 SavedModel Python calls functions, too, and all that is in the file is in one.
        return BodyPlace(
            ignoring or (_signature_call() if self.graph.around.is_object_based else None), op_by_op
        )

    @cached_property
    def _ignoring(self) -> dict[str, Node]:
        """For functions that TensorFlow does not differentiate op by op, the call that is so."""
        calling = ((label, node) for label, nodes in self.callers.items() for node in nodes)
        ignoring: dict[str, Node] = {}
        for label, node in calling:
            if node.op not in OP_BY_OP:
                ignoring.setdefault(label, node)
        todo = list(ignoring)
        for label in todo:  # what such a function calls is ignored with it
            body = self.graph.functions.get(label)
            for _, name in calls(body) if body is not None else ():
                if name not in ignoring:
                    ignoring[name] = ignoring[label]
                    todo.append(name)
        return ignoring


@cache
def _signature_call() -> Node:
    """Return the op that calls the function of a TF2 SavedModel's signature in a Session."""
    call = encoded(1, encoded(1, b"serving_default") + encoded(2, STATEFUL_CALL.encode()))
    return Node(graph_of(call).main, 0)


T = TypeVar("T")

SYMBOLIC_GRADIENT = "SymbolicGradient"  # names the function that it is the gradient of


class Unreached(msgspec.Struct, eq=False, dict=True):
    """Which bodies no gradient reaches, and why; of the graph as it is when first asked."""

    bodies: Bodies
    _inside: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)

    def in_control_flow(self, body: Body) -> frozenset[int]:
        """Return the ops of a body that lie in v1 loops and branches."""
        if body.label not in self._inside:
            self._inside[body.label] = inside_control_flow(body)
        return self._inside[body.label]

    def why(self, node: Node) -> str:
        """Return why no gradient of a Session comes to an op; or nothing."""
        if node.body.is_main or self.bodies.place_of(node).ignoring is None:
            return ""
        if node.index in self.in_control_flow(node.body):
            return _in_loop(f"a v1 loop or branch in function {node.body.label}")
        return self._reasons.get(node.body.label, "")

    @cached_property
    def called_as_ops(self) -> dict[str, Node]:
        """For each function: the op whose type it is, or is a function that it is called by."""
        op_calls = {
            label: call
            for label, callers in self.bodies.callers.items()
            for call in callers
            if call.op == label
        }
        return self._spread(op_calls)

    @cached_property
    def _reasons(self) -> dict[str, str]:
        """Why no gradient comes to functions, at one of the calls by which each is reached."""
        reasons = {
            label: self._stopped(label, callers) for label, callers in self.bodies.callers.items()
        }
        unasked = {
            label: f"TensorFlow has no gradient of {call}, by which function {label} is called"
            for label, call in self._without_gradients.items()
        }
        return (
            self._spread({label: reason for label, reason in reasons.items() if reason}) | unasked
        )

    @cached_property
    def _without_gradients(self) -> dict[str, Node]:
        """The functions that only ops without a gradient reach, each with one that calls it."""
        all_callers, below = self.bodies.callers, dict[str, list[str]]()
        live = {
            label: [caller for caller in callers if not _has_no_gradient(caller)]
            for label, callers in all_callers.items()
        }
        for label, callers in live.items():
            for caller in callers:
                below.setdefault(caller.body.label, []).append(label)
        live_counts = {label: len(callers) for label, callers in live.items()}
        unasked = {
            label: all_callers[label][0] for label, count in live_counts.items() if not count
        }
        todo = deque(unasked)
        while todo:
            above = todo.popleft()
            for label in below.get(above, ()):
                live_counts[label] -= 1
                if not live_counts[label] and label not in unasked:
                    unasked[label] = unasked[above]
                    todo.append(label)
        return unasked

    def _stopped(self, label: str, callers: Sequence[Node]) -> str:
        """Return why no gradient comes to a function at one of these calls of it."""
        gradients = self.bodies.graph.library.gradients
        for call in callers:
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

    def _spread(self, facts: Mapping[str, T]) -> dict[str, T]:
        """Return what is so of functions, as far as it is so of all that they call, and these call.

        Functions may call themselves, and each other; what is found of one itself goes first.
        """
        below: dict[str, list[str]] = {}
        for label, callers in self.bodies.callers.items():
            for node in callers:
                if not node.body.is_main:
                    below.setdefault(node.body.label, []).append(label)
        spread_to, todo = dict(facts), deque(facts)
        while todo:
            above = todo.popleft()
            for label in below.get(above, ()):
                if label not in spread_to:
                    spread_to[label] = spread_to[above]
                    todo.append(label)
        return spread_to


def _has_no_gradient(call: Node) -> bool:
    """Return whether what calls a function has no gradient, as the map of a dataset has none."""
    known = call.opdef
    if call.op in CALLS | OP_BY_OP | {SYMBOLIC_GRADIENT} or known is None:
        return False
    return known.gradient != "registered" and call.op not in call.body.library.signatures


def _in_loop(which: str) -> str:
    return (
        f"a Session gives no gradient through {which}, as it differentiates that function as a "
        f"whole; inline the function into the main graph first"
    )
