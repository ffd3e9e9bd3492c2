"""A condition on ops, and how it is told of a body: once for a body, then op by op."""

from __future__ import annotations

from collections.abc import Callable

from graphpatch.graph.body import Body, Node

Test = Callable[[Node], bool]
"""Whether one op of the body that the test was made for is meant."""

Condition = Callable[[Body], Test]
"""Makes the test for a body. What asks for the body as a whole (a path) is found out here, once;
a test holds as long as the body is not edited."""


def everything(node: Node) -> bool:
    """The test that each op passes: it need not be made."""
    return True


def on_ops(test: Test) -> Condition:
    """A condition that looks at each op alone, whatever body it is in."""
    return lambda body: test


def both(conditions: list[Condition]) -> Condition:
    """All of these conditions as one."""
    if len(conditions) == 1:
        return conditions[0]

    def prepared(body: Body) -> Test:
        tests = [condition(body) for condition in conditions]
        return lambda node: all(test(node) for test in tests)

    return prepared
