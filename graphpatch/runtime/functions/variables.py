"""Variables that a function reads, and that a replaced gradient would silently leave untrained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class WatchedVariables:
    """The trainable variables that were read while `watching`."""

    function: str
    variables: list[Any] = field(default_factory=list)

    def refuse(self, others: WatchedVariables | None = None) -> None:
        """Raise ValueError where a variable was read that `others` did not read."""
        kept = {one.ref() for one in others.variables} if others is not None else set()
        lost = [one.name for one in self.variables if one.ref() not in kept]
        if lost:
            raise ValueError(
                f"{self.function}: the function reads the trainable variable "
                f"{', '.join(map(repr, lost))}, to which no gradient would flow; read it outside "
                f"of the function, as tf.stop_gradient(variable) if it should not be trained; a "
                f"layer of Keras may have trainable=False"
            )


@contextmanager
def watching(function: str, called: Any) -> Iterator[WatchedVariables]:
    """Note the trainable variables that are read, but for those that `called`, a layer, freezes.

    Keras freezes a layer without telling the variables of TensorFlow.
    """
    import tensorflow as tf

    found = WatchedVariables(function)
    with tf.GradientTape() as tape:
        yield found
    frozen = {id(_handle(one)) for one in getattr(called, "non_trainable_variables", ())}
    found.variables += [one for one in tape.watched_variables() if id(_handle(one)) not in frozen]


def _handle(variable: Any) -> Any:
    """What stands for the memory of a variable, whether of Keras or of TensorFlow."""
    inner = getattr(variable, "_value", variable)
    return getattr(inner, "handle", inner)
