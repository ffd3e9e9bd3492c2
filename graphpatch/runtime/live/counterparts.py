"""What stands in a patched graph for something of the old one: tensors, ops, variables, savers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Counterparts:
    """The map from the old graph to the new one, which may be the same.

    Ops keep their names, so names are the map; objects that hold ops are made again, each once.
    """

    old: Any
    new: Any
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by id: the old and the new

    def tensor(self, old: Any) -> Any:
        """The tensor for a tensor or its name; `x` is short for `x:0`."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_tensor_by_name(old if ":" in old else f"{old}:0")
        if not tf.is_tensor(old) or isinstance(old, tf.Variable) or not hasattr(old, "op"):
            raise TypeError(f"expected a tensor or its name, found {_type_and_name(old)}")
        self._check(old, old.op.graph)
        return self.new.get_tensor_by_name(old.name)

    def operation(self, old: Any) -> Any:
        """The operation for an operation or its name."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_operation_by_name(old)
        if not isinstance(old, tf.Operation):
            raise TypeError(f"expected an operation or its name, found {_type_and_name(old)}")
        self._check(old, old.graph)
        return self.new.get_operation_by_name(old.name)

    def variable(self, old: Any) -> Any:
        """The variable for a variable: one object for it, in all collections."""
        import tensorflow as tf

        if not isinstance(old, tf.Variable):
            raise TypeError(f"expected a variable, found {_type_and_name(old)}")
        self._check(old, old.graph)
        return self._made(old)

    def of(self, old: Any) -> Any:
        """What stands for a value of any of these kinds, or for all in a list, tuple or dict."""
        import tensorflow as tf

        return tf.nest.map_structure(self._one, old)

    def of_any(self, old: Any) -> Any:
        """What stands for a value; the value itself where it is of no graph."""
        if old is self.old:
            return self.new
        return self._one(old) if is_of_graph(old) else old

    def _one(self, old: Any) -> Any:
        import tensorflow as tf

        if old is None:  # a gradient that TensorFlow does not have
            return None
        if isinstance(old, str):
            return self.new.as_graph_element(old)
        if isinstance(old, tf.Variable):
            return self.variable(old)
        if isinstance(old, tf.Operation):
            return self.operation(old)
        if isinstance(old, tf.Tensor):
            return self.tensor(old)
        if _is_composite(old):
            return tf.nest.map_structure(self.tensor, old, expand_composites=True)
        if is_remade(old):
            return self._made(old)
        raise TypeError(f"nothing in a graph stands for {_type_and_name(old)}")

    def _made(self, old: Any) -> Any:
        """An object made again from its message, in the new graph."""
        if self.old is self.new:
            return old
        if id(old) not in self.made:
            make = self._copied if is_assignment(old) else self._remade
            self.made[id(old)] = (old, make(old))
        return self.made[id(old)][1]

    def _copied(self, old: Any) -> Any:
        """A copy of an object with what stands in the new graph for what its attributes hold."""
        new = copy.copy(old)
        new.__dict__.update({name: self.of_any(value) for name, value in vars(old).items()})
        return new

    def _remade(self, old: Any) -> Any:
        import tensorflow as tf

        with self.new.as_default():
            if not isinstance(old, tf.Variable):
                return type(old).from_proto(old.to_proto())
            from tensorflow.python.framework import ops

            make = ops.get_from_proto_function(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
            new = make(old.to_proto())
        new._constraint = old.constraint  # a function, of which no message tells
        return new

    def _check(self, old: Any, graph: Any) -> None:
        if graph is not self.old and graph is not self.new:
            raise ValueError(
                f"{_type_and_name(old)} is of another graph than the one that was patched"
            )


def is_assignment(old: Any) -> bool:
    """Whether it is what assigning to a resource variable returns.

    It passes for a variable, is in UPDATE_OPS of nets with batch norm, and assigns when it is read.
    """
    import tensorflow as tf

    return isinstance(old, tf.Variable) and old.initializer is None


def is_remade(old: Any) -> bool:
    """Whether an object, such as a Saver or a QueueRunner, can be made again from its message."""
    return hasattr(old, "to_proto") and hasattr(type(old), "from_proto")


def is_of_graph(old: Any) -> bool:
    """Whether a value is, or is made of, tensors, operations or variables."""
    import tensorflow as tf

    kinds = (tf.Tensor, tf.Operation, tf.Variable)
    return isinstance(old, kinds) or _is_composite(old) or is_remade(old)


def _is_composite(old: Any) -> bool:
    import tensorflow as tf

    return isinstance(old, tf.SparseTensor | tf.IndexedSlices | tf.RaggedTensor)


def _type_and_name(old: Any) -> str:
    name = getattr(old, "name", None)
    return f"{type(old).__name__} {name!r}" if isinstance(name, str) else repr(old)
