"""How TensorFlow differentiates each body of a graph: op by op, or as a whole.

Measured on 1.15.5 and 2.21: the main graph, and the bodies of While, If and Case, are
differentiated op by op in Python, which honours `_gradient_op_type`. A body that is called by
PartitionedCall, or as an op of its own, is differentiated in C++ by SymbolicGradient, which
ignores the attr without a word. C++ has no gradient of a PartitionedCall in such a body. By default
Grappler inlines it, except as `Bodies.is_inlined` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property

import msgspec

from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_functions, calls, may_be_inlined
from graphpatch.graph.model_graph import ModelGraph, graph_of
from graphpatch.graph.op_types import CASES, IFS, LOOPS, STATEFUL_CALL
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
    """The ops of these bodies that call each function."""
    found: dict[str, list[Node]] = {}
    for body in bodies:
        for node, name in calls(body):
            found.setdefault(name, []).append(node)
    return found


class Bodies(msgspec.Struct, eq=False, dict=True):
    """The bodies of a graph, and what calls them; of the graph as it is when first asked."""

    graph: ModelGraph
    _places: dict[str, BodyPlace] = msgspec.field(default_factory=dict)

    @cached_property
    def callers(self) -> dict[str, list[Node]]:
        """The ops that call each function."""
        return callers(self.graph.bodies)

    def place_of(self, node: Node) -> BodyPlace:
        """The place of an op: how TensorFlow comes to the body that it is in."""
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
            and all(one is not None and may_be_inlined(one) for one in called)
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
        found: dict[str, Node] = {}
        for label, node in calling:
            if node.op not in OP_BY_OP:
                found.setdefault(label, node)
        todo = list(found)
        for label in todo:  # what such a function calls is ignored with it
            body = self.graph.functions.get(label)
            for _, name in calls(body) if body is not None else ():
                if name not in found:
                    found[name] = found[label]
                    todo.append(name)
        return found


@cache
def _signature_call() -> Node:
    """The op that calls the function of a TF2 SavedModel's signature in a Session."""
    call = encoded(1, encoded(1, b"serving_default") + encoded(2, STATEFUL_CALL.encode()))
    return Node(graph_of(call).main, 0)
