"""How TensorFlow differentiates each body of a graph: op by op, as a whole, or not at all.

Measured on 1.15.5 and 2.21: the main graph, and the bodies of While, If and Case, are
differentiated op by op in Python, which honours `_gradient_op_type`. A body that is called by
PartitionedCall, or as an op of its own, is differentiated in C++ by SymbolicGradient, which
ignores the attr without a word. C++ has no gradient of a PartitionedCall in such a body. By default
Grappler inlines it, except as `Bodies.is_inlined` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeVar

import msgspec

from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.graph.functions import called_functions, calls, may_be_inlined
from graphpatch.graph.graph import ModelGraph, graph_of
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import CALLS, CASES, IFS, LOOPS, STATEFUL_CALL
from graphpatch.graph.walk import upstream
from graphpatch.graph.wire import encoded
from graphpatch.names import parse

T = TypeVar("T")

LEAST_INLINED = 4  # nodes, arguments and returns; smaller functions Grappler leaves as they are
XLA = "_XlaMustCompile"  # the attr of a call that XLA compiles as a whole
OP_BY_OP = LOOPS | IFS | CASES
BEFORE = "the loops, branches or calls between it and all outputs of its function"
SYMBOLIC_GRADIENT = "SymbolicGradient"  # names the function that it is the gradient of


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
    _inside: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)
    _closed: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)

    @cached_property
    def callers(self) -> dict[str, list[Node]]:
        """Return the ops that call each function."""
        return callers(self.graph.bodies)

    def place_of(self, node: Node) -> BodyPlace:
        """Return the place of an op: how TensorFlow comes to the body that it is in."""
        label, around = node.body.label, self.graph.around
        if node.body.is_main:
            return BodyPlace(_signature_call()) if around.is_exported else BodyPlace()
        if label not in self._places:
            op_by_op = any(call.op in OP_BY_OP for call in self.callers.get(label, ()))
            # In a TF2 SavedModel Python calls functions, too, and all in the file is in one.
            by_python = _signature_call() if around.is_object_based else None
            self._places[label] = BodyPlace(self._ignoring.get(label) or by_python, op_by_op)
        return self._places[label]

    def is_inlined(self, call: Node) -> bool:
        """Return whether Grappler inlines a call in a called function, as Sessions do.

        Not into a function of fewer than four nodes, arguments and returns, nor where the function
        says `_noinline`, nor what XLA compiles. Measured on 1.15.5 and 2.21.
        """
        body, for_xla = call.body, call.attr(XLA)
        called = [self.graph.functions.get(name) for name in called_functions(call)]
        return (
            len(body) + len(body.arguments) + len(body.ret) >= LEAST_INLINED
            and not (for_xla is not None and for_xla.b)
            and all(function is not None and may_be_inlined(function) for function in called)
        )

    @cached_property
    def called_as_ops(self) -> dict[str, Node]:
        """Return for each function the op whose type it is, or whose function calls it."""
        return self._first_calls(lambda call, label: call.op == label)

    @cached_property
    def _ignoring(self) -> dict[str, Node]:
        """Return the call of each function that TensorFlow does not differentiate op by op."""
        return self._first_calls(lambda call, label: call.op not in OP_BY_OP)

    def _first_calls(self, is_meant: Callable[[Node, str], bool]) -> dict[str, Node]:
        """Return the first call of each function that is meant, and of one that leads to it."""
        return self._spread({
            label: call
            for label, calls_of in self.callers.items()
            for call in reversed(calls_of)
            if is_meant(call, label)
        })  # fmt: skip

    def in_control_flow(self, body: Body) -> frozenset[int]:
        """Return the ops of a body that lie in v1 loops and branches."""
        if body.label not in self._inside:
            self._inside[body.label] = inside_control_flow(body)
        return self._inside[body.label]

    def why_no_gradient(self, node: Node) -> str:
        """Return why no gradient of a Session comes to an op; or nothing."""
        if node.body.is_main or self.place_of(node).ignoring is None:
            return ""
        if node.index in self.in_control_flow(node.body):
            return _in_loop(f"a v1 loop or branch in function {node.body.label}")
        if node.index in self._before_loops(node.body):
            return _in_loop(BEFORE)
        return self._reasons.get(node.body.label, "")

    def _before_loops(self, body: Body) -> frozenset[int]:
        """Return the ops of a function whose outputs get there by loops, branches or calls alone.

        In C++ these have no gradient: NotFoundError, or zeros where Grappler lowers them before.
        """
        if body.label in self._closed:
            return self._closed[body.label]
        returned, inside = [parse(text) for text in body.ret.values()], self.in_control_flow(body)

        def has_none(index: int) -> bool:
            node = Node(body, index)
            is_call = node.op in CALLS and not self.is_inlined(node)
            return is_call or node.op in OP_BY_OP or index in inside

        every, open_ones = upstream(body, returned), upstream(body, returned, last=has_none)
        closed = frozenset(index for index in range(len(body)) if every[index] > open_ones[index])
        self._closed[body.label] = closed
        return closed

    @cached_property
    def _reasons(self) -> dict[str, str]:
        """Return why no gradient comes to functions, at one of the calls that lead to each."""
        stops = {label: self._stopped(label, calls_of) for label, calls_of in self.callers.items()}
        reasons = self._spread({label: reason for label, reason in stops.items() if reason})
        return reasons | {
            label: f"TensorFlow has no gradient of {call}, by which function {label} is called"
            for label, call in self._without_gradients.items()
        }

    @cached_property
    def _without_gradients(self) -> dict[str, Node]:
        """Return the functions that only ops without a gradient call, each with a caller."""
        roots = [body.label for body in self.graph.bodies if body.label not in self.callers]
        differentiated = self._spread(
            dict.fromkeys(roots, True), lambda call: not _has_no_gradient(call)
        )
        first = {
            label: call
            for label, calls_of in self.callers.items()
            for call in reversed(calls_of)
            if label not in differentiated and _has_no_gradient(call)
        }
        return {
            label: call
            for label, call in self._spread(first).items()
            if label not in differentiated
        }

    def _stopped(self, label: str, calls_of: Sequence[Node]) -> str:
        """Return why no gradient comes to a function at one of these calls of it."""
        gradients = self.graph.library.gradients
        for call in calls_of:
            if _has_no_gradient(call) or call.body.label in self._without_gradients:
                continue
            by_op, ignored = call.op in OP_BY_OP, self.place_of(call).ignoring is not None
            if not by_op and label in gradients:
                return f"the model declares {gradients[label]} as the gradient of function {label}"
            is_inside = ignored and not call.body.is_main
            is_called = is_inside and call.op in CALLS and not self.is_inlined(call)
            if is_called or (by_op and ignored):
                return _in_loop(str(call))
            if is_inside and call.index in self.in_control_flow(call.body):
                return _in_loop(f"a v1 loop or branch in function {call.body.label}")
            if is_inside and call.index in self._before_loops(call.body):
                return _in_loop(BEFORE)
        return ""

    def _spread(
        self, facts: Mapping[str, T], through: Callable[[Node], bool] = lambda call: True
    ) -> dict[str, T]:
        """Return what is so of functions, as far as it is so of all that they call, and these call.

        Functions may call themselves, and each other; what is known of one itself goes first.
        """
        below: dict[str, list[str]] = {}
        for label, calls_of in self.callers.items():
            for call in filter(through, calls_of):
                below.setdefault(call.body.label, []).append(label)
        spread_to, todo = dict(facts), deque(facts)
        while todo:
            above = todo.popleft()
            for label in below.get(above, ()):
                if label not in spread_to:
                    spread_to[label] = spread_to[above]
                    todo.append(label)
        return spread_to


@cache
def _signature_call() -> Node:
    """Return the op that calls the function of a TF2 SavedModel's signature in a Session."""
    call = encoded(1, encoded(1, b"serving_default") + encoded(2, STATEFUL_CALL.encode()))
    return Node(graph_of(call).main, 0)


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
