"""What TensorFlow hands in: a live graph, a function; as far as they are asked without it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class LiveGraph(Protocol):
    """A `tf.Graph`, as far as it is asked."""

    def as_graph_def(self) -> Any:
        """Its GraphDef."""

    def as_default(self) -> Any:
        """A context in which ops go into it."""


class ConcreteFunction(Protocol):
    """A concrete function of TensorFlow, as far as it is asked."""

    @property
    def graph(self) -> Any:
        """Its FuncGraph."""
