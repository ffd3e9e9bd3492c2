"""The scopes into which `tf.gradients` puts its ops: of which op each is the gradient.

Nothing but the names of `graphpatch.graph.check` tells that in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphpatch.graph.check import OF_AN_OP, SEED, scopes_of_gradients
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import VARIABLES


@dataclass(frozen=True, slots=True)
class GradientScope:
    """What one call of `tf.gradients` built.

    `variables` are in the scope by their names alone: moving averages of a gradient have its name.
    """

    name: str
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def holds(self, name: str) -> bool:
        """Whether an op is one of those that `tf.gradients` built."""
        if not name.startswith(f"{self.name}/"):
            return False
        return not any(name == one or name.startswith(f"{one}/") for one in self.variables)

    def forward_of(self, body: Body, name: str) -> str:
        """The op whose gradient an op of the scope computes: L of `gradients/L_grad/...`."""
        rest = name.removeprefix(f"{self.name}/")
        found = [rest[: match.start()] for match in OF_AN_OP.finditer(rest)]
        there = [one for one in found if one in body.by_name]
        return there[-1] if there else ""

    def seeds(self, body: Body) -> Iterator[Node]:
        """What the gradients start from: ones, or what was given as `grad_ys`."""
        for name, index in body.by_name.items():
            head, _, last = name.rpartition("/")
            if head == self.name and SEED.fullmatch(last):
                node = Node(body, index)
                if node.op in {"Fill", "Identity"}:
                    yield node


def gradient_scopes(body: Body) -> list[GradientScope]:
    """Each scope of gradients, in the order of the file.

    Gradients of gradients have the name of the first ones inside of their own scope, once.
    """
    held = [body.heads.names[index] for op in VARIABLES for index in body.by_type.get(op, ())]
    scopes = [
        GradientScope(name, tuple(one for one in held if one.startswith(f"{name}/")))
        for name in scopes_of_gradients(body.heads.names)
    ]
    whole = [one for one in scopes if any(True for _ in one.seeds(body))]
    return [
        one
        for one in scopes
        if not any(other is not one and other.holds(f"{one.name}/") for other in whole)
    ]
