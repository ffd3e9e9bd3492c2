"""A gradient function of the user's, `module:function`, traced by TensorFlow into FunctionDefs.

They are the same on every run. So a file that carries them needs neither the module nor graphpatch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch import opdefs
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import PatchError, RulesError
from graphpatch.gradients.attach import OpDtypes, TracedFunction
from graphpatch.graph.functions import NO_INLINE, Part
from graphpatch.graph.wire import piece_bytes
from graphpatch.patches import function_carrier
from graphpatch.protos import FunctionDef, NodeDef
from graphpatch.runtime.gradient_functions import (
    GradientFunction,
    as_list,
    called_in_order,
    gradient_at,
)
from graphpatch.runtime.graph_run import first_line, require_tensorflow
from graphpatch.runtime.imported import exported_graph


def trace(path: str, op: OpDtypes) -> TracedFunction:
    """Return the gradient function at `package.module:function`, traced for one op.

    It is called as TensorFlow calls a registered one, with (op, *upstream gradients), None for an
    output that carries none. Raises RulesError where there is no such function, or no TensorFlow
    to trace it; PatchError where it fails, gives another number of gradients than the op has
    inputs, or uses a tensor or variable from outside.
    """
    called = _Call(path, gradient_at(path), op)
    tf = require_tensorflow('{"python": ...} is traced by', RulesError)
    dtypes = [*op.inputs, *op.outputs, *op.outputs]
    specs = [
        tf.TensorSpec(None, dtype, name)
        for name, dtype in zip(_argument_names(op), dtypes, strict=True)
    ]
    try:
        wrapped = tf.compat.v1.wrap_function(called, specs)
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(f"{path} failed on {op}: {first_line(error)}") from error
    results = dict(zip(called.flowing, wrapped.outputs, strict=True))
    return traced_function(called.name, path, wrapped.graph, _argument_names(op), results)


def _argument_names(op: OpDtypes) -> list[str]:
    outputs = range(len(op.outputs))
    return [
        *(f"x{place}" for place in range(len(op.inputs))),
        *(f"{kind}{place}" for kind in ("y", "dy") for place in outputs),
    ]


@dataclass(frozen=True, eq=False)
class StandIn:
    """An op as its gradient function sees it: `op.inputs`, `op.outputs`, `op.get_attr("...")`."""

    seen: OpDtypes
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @property
    def type(self) -> str:
        """Return the op type."""
        return self.seen.type

    @property
    def name(self) -> str:
        """Return the name of the op."""
        return self.seen.name

    @property
    def device(self) -> str:
        """Return the device that the NodeDef asks for."""
        return self.seen.device

    def get_attr(self, name: str) -> Any:
        """Return the value of an attr, or its default, as tf.Operation.get_attr gives it.

        Raises ValueError where the op has none of this name.
        """
        import tensorflow as tf
        from tensorflow.python.framework import op_def_registry

        if name in self.seen.attrs:  # of our classes, not of TensorFlow's
            attr = tf.compat.v1.AttrValue.FromString(self.seen.attrs[name].SerializeToString())
        else:
            known = op_def_registry.get(self.type)
            defaults = {} if known is None else {a.name: a.default_value for a in known.attr}
            if name not in defaults or defaults[name].WhichOneof("value") is None:
                raise ValueError(f"op type {self.type} has no attr {name!r}")
            attr = defaults[name]
        kind = attr.WhichOneof("value") or "list"
        value = getattr(attr, kind)
        if kind != "list":
            return tf.as_dtype(value) if kind == "type" else value
        for field_set, elements in value.ListFields():
            return [tf.as_dtype(item) if field_set.name == "type" else item for item in elements]
        return []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"op.{name} is not there while a gradient is traced into a file; op.inputs, "
            f"op.outputs, op.get_attr, op.type, op.name and op.device are"
        )


@dataclass(eq=False)
class _Call:
    """A call of the gradient function on the arguments x..., y..., dy... of a traced function."""

    path: str
    function: GradientFunction
    op: OpDtypes
    flowing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.rpartition(":")[2]

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the gradients that are there; `flowing` says which: dx0, ..."""
        inputs = arguments[: len(self.op.inputs)]
        outputs = arguments[len(inputs) : len(inputs) + len(self.op.outputs)]
        upstream = [
            dy if dtype in DIFFERENTIABLE else None
            for dtype, dy in zip(self.op.outputs, arguments[-len(outputs) :], strict=True)
        ]
        gradients = as_list(self.function(StandIn(self.op, inputs, outputs), *upstream))
        if len(gradients) != len(self.op.inputs):
            raise PatchError(
                f"{self.path} gives {len(gradients)} gradients, and {self.op} has "
                f"{len(self.op.inputs)} inputs: it gives one for each, or None"
            )
        flowing = {
            f"dx{place}": self._as_tensor(place, dx, like)
            for place, (dx, like) in enumerate(zip(gradients, inputs, strict=True))
            if dx is not None and self.op.inputs[place] in DIFFERENTIABLE
        }
        if not flowing:
            raise PatchError(
                f"{self.path} gives no gradient for any input of {self.op}; stop_gradient says that"
            )
        self.flowing = list(flowing)
        return list(flowing.values())

    def _as_tensor(self, place: int, dx: Any, like: Any) -> Any:
        """Return a gradient as a dense tensor that is not an argument as it came."""
        import tensorflow as tf

        tensor = tf.convert_to_tensor(dx, dtype_hint=like.dtype)
        if tensor.dtype != like.dtype:
            raise PatchError(
                f"{self.path} gives a gradient of {tensor.dtype.name} for input {place} of "
                f"{self.op}, which is {like.dtype.name}"
            )
        return tf.identity(tensor)


function_carrier.trace.is_for(trace)


# Of the attrs that TensorFlow adds for itself, those that running or differentiating a While or
# If needs; the others hold names and settings of the process that traced it.
TRACING_ATTRS = frozenset(
    {"_lower_using_switch_merge", "_num_original_outputs", "_stateful_parallelism"}
)
SETTINGS = frozenset({"config_proto", "config", "executor_type"})


def traced_function(
    name: str, path: str, graph: Any, arguments: Sequence[str], results: Mapping[str, Any]
) -> TracedFunction:
    """Return the function `name` from these arguments to these tensors of a FuncGraph.

    Raises PatchError where it holds a tensor or variable from outside, or an op that is not
    TensorFlow's own.
    """
    placeholders = [tensor.op.name for tensor in graph.inputs[: len(arguments)]]
    opened = exported_graph(graph)
    by_placeholder = dict(zip(placeholders, arguments, strict=True))
    part = Part(opened.main, by_placeholder, tuple(tensor.name for tensor in results.values()))
    _refuse_captures(path, graph, {node.name for node in part.unfed()})
    function = FunctionDef()
    for argument, tensor in zip(arguments, graph.inputs, strict=False):
        function.signature.input_arg.add(name=argument, type=tensor.dtype.as_datatype_enum)
    for result, tensor in results.items():
        function.signature.output_arg.add(name=result, type=tensor.dtype.as_datatype_enum)
        function.ret[result] = part.spelled(tensor.name)
    for payload in part.payloads():
        function.node_def.append(NodeDef.FromString(b"".join(map(piece_bytes, payload))))
    nested = called_in_order(opened, opened.main, set(part.indices))
    renamed = _cleaned(nested)
    _clean(function, renamed)
    library = tuple(nested.values())
    return TracedFunction(name, function, library, _newer(path, function, *library))


def _refuse_captures(path: str, graph: Any, unfed: set[str]) -> None:
    """Raise PatchError where the traced ops read what only this process has."""
    outers = {inner.op.name: outer for outer, inner in graph.captures}
    captured = []
    for name in sorted(unfed):
        outer = outers.get(name)
        variables = [variable.name for variable in graph.variables if variable.handle is outer]
        if outer is None:
            captured.append(f"the placeholder {name!r}")
        elif variables:
            captured.append(f"the variable {variables[0]!r}")
        else:
            captured.append(f"a tensor ({outer.dtype.name}, shape {outer.shape})")
    if captured:
        raise PatchError(
            f"{path} uses {', '.join(captured)} from outside the function, which no file can hold; "
            f"make constants of it inside, as tf.constant(...) of numbers"
        )


def _cleaned(nested: Mapping[str, FunctionDef]) -> dict[str, str]:
    """Clean nested functions, and name each after its content; the new name of each."""
    renamed: dict[str, str] = {}
    for name, function in nested.items():
        _clean(function, renamed)
        function.signature.name = ""
        content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
        renamed[name] = function.signature.name = f"graphpatch_called_{content}"
    return renamed


def _clean(function: FunctionDef, renamed: Mapping[str, str]) -> None:
    """Take out what depends on the process that traced it, and call functions by new names."""
    is_kept = function.attr[NO_INLINE].b if NO_INLINE in function.attr else False
    for name in ("attr", "arg_attr", "resource_arg_unique_id"):
        function.ClearField(name)
    if is_kept:
        function.attr[NO_INLINE].b = True
    for node in function.node_def:
        node.op = renamed.get(node.op, node.op)
        node.ClearField("experimental_debug_info")
        for key in list(node.attr):
            if (key.startswith("_") and key not in TRACING_ATTRS) or key in SETTINGS:
                del node.attr[key]
                continue
            value = node.attr[key]
            for called in [value.func] if value.HasField("func") else value.list.func:
                called.name = renamed.get(called.name, called.name)


def _newer(path: str, *functions: FunctionDef) -> tuple[str, ...]:
    """The op types that TensorFlow 1.15 does not know; PatchError for one that nobody does."""
    ours = {function.signature.name for function in functions}
    types = {node.op for function in functions for node in function.node_def} - ours
    foreign = [op for op in sorted(types) if opdefs.lookup(op) is None]
    if foreign:
        raise PatchError(
            f"{path} uses {', '.join(foreign)}, which TensorFlow does not define: a file with it "
            f"would need the library that does"
        )
    return tuple(opdefs.newer_than_1_15(types))
