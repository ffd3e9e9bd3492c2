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
        """Return whether an op is one of those that `tf.gradients` built."""
        if not name.startswith(f"{self.name}/"):
            return False
        return not any(
            name == variable or name.startswith(f"{variable}/") for variable in self.variables
        )

    def forward_of(self, body: Body, name: str) -> str:
        """Return the op whose gradient an op of the scope computes: L of `gradients/L_grad/...`."""
        rest = name.removeprefix(f"{self.name}/")
        names = [rest[: match.start()] for match in OF_AN_OP.finditer(rest)]
        existing = [forward_name for forward_name in names if forward_name in body.by_name]
        return existing[-1] if existing else ""

    def seeds(self, body: Body) -> Iterator[Node]:
        """Yield what the gradients start from: ones, or what was given as `grad_ys`."""
        for name, index in body.by_name.items():
            head, _, last = name.rpartition("/")
            if head == self.name and SEED.fullmatch(last):
                node = Node(body, index)
                if node.op in {"Fill", "Identity"}:
                    yield node


def gradient_scopes(body: Body) -> list[GradientScope]:
    """Return each scope of gradients, in the order of the file.

    Gradients of gradients have the name of the first ones inside of their own scope, once.
    """
    variables = [body.heads.names[index] for op in VARIABLES for index in body.by_type.get(op, ())]
    scopes = [
        GradientScope(
            name,
            tuple(
                scope_or_name for scope_or_name in variables if scope_or_name.startswith(f"{name}/")
            ),
        )
        for name in scopes_of_gradients(body.heads.names)
    ]
    whole = [
        scope_or_name for scope_or_name in scopes if any(True for _ in scope_or_name.seeds(body))
    ]
    return [
        scope_or_name
        for scope_or_name in scopes
        if not any(
            outer is not scope_or_name and outer.holds(f"{scope_or_name.name}/") for outer in whole
        )
    ]
