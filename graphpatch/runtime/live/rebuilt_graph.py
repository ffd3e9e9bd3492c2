"""A patched graph beside the old one, and what stands in it for tensors, ops, variables, savers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.differentiation.override_keys import CUSTOM
from graphpatch.formats import Model
from graphpatch.graph.functions import calls
from graphpatch.graph.graph import Graph
from graphpatch.graph.wire import piece_bytes
from graphpatch.runtime.register import register_gradients
from graphpatch.table import short


@dataclass(eq=False)
class Counterparts:
    """The map from the old graph to the new one, which may be the same.

    Ops keep their names, so names are the map; objects that hold ops are made again, each once.
    """

    old: Any
    new: Any
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by id: the old and the new

    def tensor(self, old: Any) -> Any:
        """Return the tensor for a tensor or its name; `x` is short for `x:0`."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_tensor_by_name(old if ":" in old else f"{old}:0")
        if not tf.is_tensor(old) or isinstance(old, tf.Variable) or not hasattr(old, "op"):
            raise TypeError(f"expected a tensor or its name, found {_type_and_name(old)}")
        self._check(old, old.op.graph)
        return self.new.get_tensor_by_name(old.name)

    def operation(self, old: Any) -> Any:
        """Return the operation for an operation or its name."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_operation_by_name(old)
        if not isinstance(old, tf.Operation):
            raise TypeError(f"expected an operation or its name, found {_type_and_name(old)}")
        self._check(old, old.graph)
        return self.new.get_operation_by_name(old.name)

    def variable(self, old: Any) -> Any:
        """Return the variable for a variable: one object for it, in all collections."""
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
        """Return what stands for a value; the value itself where it is of no graph."""
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
        """Return an object made again from its message, in the new graph."""
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
    """Return whether it is what assigning to a resource variable returns.

    It passes for a variable, is in UPDATE_OPS of nets with batch norm, and assigns when it is read.
    """
    import tensorflow as tf

    return isinstance(old, tf.Variable) and old.initializer is None


def is_remade(old: Any) -> bool:
    """Whether an object, such as a Saver or a QueueRunner, can be made again from its message."""
    return hasattr(old, "to_proto") and hasattr(type(old), "from_proto")


def is_of_graph(old: Any) -> bool:
    """Return whether a value is, or is made of, tensors, operations or variables."""
    import tensorflow as tf

    kinds = (tf.Tensor, tf.Operation, tf.Variable)
    return isinstance(old, kinds) or _is_composite(old) or is_remade(old)


def _is_composite(old: Any) -> bool:
    import tensorflow as tf

    return isinstance(old, tf.SparseTensor | tf.IndexedSlices | tf.RaggedTensor)


def _type_and_name(old: Any) -> str:
    name = getattr(old, "name", None)
    return f"{type(old).__name__} {name!r}" if isinstance(name, str) else repr(old)


DEEPEST_OBJECT = 4  # an object in a collection, what it holds, and what that holds

OPAQUE = (str, bytes, int, float, bool, type, FunctionType, MethodType, ModuleType)

Counterpart = Callable[[Any], Any]


def copied(old: Any, counterpart: Counterpart, deepest: int = DEEPEST_OBJECT) -> Any:
    """The value with `counterpart` of all that it holds, or itself where it holds nothing of that.

    `counterpart` gives what stands for a value, and the value itself where nothing does. Objects
    are copied attribute by attribute; what a function has closed over cannot be seen.
    """
    new = counterpart(old)
    if new is not old or deepest == 0 or isinstance(old, OPAQUE):
        return new
    if isinstance(old, dict):
        return _replaced_items(
            old, {key: copied(part, counterpart, deepest) for key, part in old.items()}
        )
    if isinstance(old, list | tuple):
        parts = [copied(part, counterpart, deepest) for part in old]
        if all(part is old_part for part, old_part in zip(parts, old, strict=True)):
            return old
        return type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts)
    return _object(old, counterpart, deepest)


def _object(old: Any, counterpart: Counterpart, deepest: int) -> Any:
    fields = getattr(old, "__dict__", None)
    if not fields:
        return old
    parts = _replaced_items(
        fields, {k: copied(v, counterpart, deepest - 1) for k, v in fields.items()}
    )
    if parts is fields:
        return old
    new = copy.copy(old)
    new.__dict__.update(parts)
    return new


def _replaced_items(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return old if all(new[key] is old[key] for key in old) else new


# Where tf.compat.v1.get_variable finds variables, and which scopes are open.
STORE, SCOPES = ("__variable_store",), ("__varscope",)


def carry_collections(counterparts: Counterparts) -> list[str]:
    """Put into the new graph what stands for each item of the old one's collections.

    Contexts of v1 loops and branches are there already: they came with the graph. Returns notes
    on what cannot be carried over.
    """
    notes = []
    for key in counterparts.old.get_all_collection_keys():
        if key in CONTEXTS:
            continue
        items = [
            _item(old_item, key, counterparts) for old_item in counterparts.old.get_collection(key)
        ]
        collection = counterparts.new.get_collection_ref(key)
        collection[:] = [item for item, _ in items]
        notes += [note for _, note in items if note]
    _carry_variable_scopes(counterparts)
    return list(dict.fromkeys(notes))


def _item(old: Any, key: str, counterparts: Counterparts) -> tuple[Any, str]:
    """Return what stands for an item, and a note on it."""
    if is_of_graph(old):
        return counterparts.of(old), ""
    new = copied(old, counterparts.of_any)
    if new is old or isinstance(old, list | tuple | dict):
        return new, ""  # a number, a text, a function: of no graph
    return new, (
        f"collection {key!r}: a {type(old).__name__} was copied, with the tensors, operations and "
        f"variables that its attributes hold"
    )


def _carry_variable_scopes(counterparts: Counterparts) -> None:
    """Let get_variable find the variables, and number scopes on from where the old graph was."""
    for store in counterparts.old.get_collection(STORE):
        new = type(store)()
        for name in ("_vars", "_partitioned_vars"):
            setattr(new, name, copied(getattr(store, name), counterparts.of_any))
        counterparts.new.get_collection_ref(STORE)[:] = [new]
    for scopes in counterparts.old.get_collection(SCOPES):
        new = type(scopes)()
        new.variable_scopes_count = copy.copy(scopes.variable_scopes_count)
        counterparts.new.get_collection_ref(SCOPES)[:] = [new]


def rebuilt_graph(patched: Model, old: Any) -> tuple[Counterparts, list[str]]:
    """Return a new graph of what was taken from the graph `old` and patched, and notes on it.

    Its gradients of ours are registered in this process.
    """
    import tensorflow as tf
    from tensorflow.python.framework import meta_graph

    message = tf.compat.v1.MetaGraphDef.FromString(
        b"".join(map(piece_bytes, patched.meta_graph(patched.graphs[0])))
    )
    for key in [key for key in message.collection_def if key not in CONTEXTS]:
        del message.collection_def[key]
    register_gradients(patched)
    new = tf.Graph()
    new.seed = old.seed
    with new.as_default():
        meta_graph.import_scoped_meta_graph(message)
    counterparts = Counterparts(old, new)
    notes = [*carry_collections(counterparts), *_carry_python(counterparts, patched)]
    return counterparts, notes


def _carry_python(counterparts: Counterparts, patched: Model) -> list[str]:
    """Carry over what Python holds for the old graph; notes on what it cannot be for the new."""
    functions = getattr(counterparts.old, "_py_funcs_used_in_graph", None)
    if functions is not None:  # tf.py_function's: they live as long as a graph names them
        counterparts.new._py_funcs_used_in_graph = list(functions)
    _carry_call_gradients(counterparts, patched.graphs[0])
    return _custom_gradients(counterparts)


def _carry_call_gradients(counterparts: Counterparts, patched: Graph) -> None:
    """Let calls of tf.functions have the gradient that Python holds, where no rule was inside.

    That of a call with a rule inside is what the function in the library says.
    """
    edited = _edited(patched)
    for op in counterparts.old.get_operations():
        if op._gradient_function is None or op.get_attr("f").name in edited:
            continue
        new = counterparts.new.get_operation_by_name(op.name)
        if new.type == op.type:
            new._gradient_function = op._gradient_function


def _edited(graph: Graph) -> set[str]:
    """Return the functions in which rules were, or in what they call."""
    edited = {name for name, body in graph.functions.items() if body.edited}
    called = {
        name: {function for _, function in calls(body)} for name, body in graph.functions.items()
    }
    while more := {name for name, those in called.items() if those & edited} - edited:
        edited |= more
    return edited


def _custom_gradients(counterparts: Counterparts) -> list[str]:
    """That gradients of tf.custom_gradient compute with tensors of the old graph."""
    names = [
        op.name
        for op in counterparts.new.get_operations()
        if op.type == "IdentityN" and _gradient_key(op).startswith(CUSTOM)
    ]
    if not names:
        return []
    some = short([repr(name) for name in names], 1)
    return [
        f"{some} has a gradient of tf.custom_gradient: where that function uses "
        f"tensors of the old graph, TensorFlow raises when it builds the gradient; let patch_graph "
        f"patch in place, or use graphpatch.building"
    ]


def _gradient_key(op: Any) -> str:
    value = op.node_def.attr.get("_gradient_op_type")
    return "" if value is None else value.s.decode(errors="backslashreplace")
