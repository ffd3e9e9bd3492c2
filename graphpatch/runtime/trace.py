"""A gradient function of the user's, `module:function`, traced by TensorFlow into FunctionDefs.

They are the same on every run. So a file that carries them needs neither the module nor graphpatch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch import opdefs
from graphpatch.errors import PatchError, RulesError
from graphpatch.gradients.attach import GradientFunction, OpDtypes
from graphpatch.graph.functions import NO_INLINE, Part
from graphpatch.graph.wire import piece_bytes
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.patches import function_carrier
from graphpatch.protos import FunctionDef, NodeDef
from graphpatch.runtime.gradient_functions import as_list, called_in_order, gradient_at
from graphpatch.runtime.graph_run import first_line, require_tensorflow
from graphpatch.runtime.imported import exported_graph, rename_calls


def trace(path: str, op: OpDtypes) -> GradientFunction:
    """Return the gradient function at `package.module:function`, traced for one op.

    It is called as TensorFlow calls a registered one, with (op, *upstream gradients), None for an
    output that carries none. Raises RulesError where there is no such function, or no TensorFlow
    to trace it; PatchError where it fails, gives another number of gradients than the op has
    inputs, or uses a tensor or variable from outside.
    """
    function = gradient_at(path)
    tf = require_tensorflow('{"python": ...} is traced by', RulesError)
    dtypes = {f"x{place}": dtype for place, dtype in enumerate(op.inputs)}
    for kind in ("y", "dy"):
        dtypes |= {f"{kind}{place}": dtype for place, dtype in enumerate(op.outputs)}
    flowing: dict[str, Any] = {}

    def called(*arguments: Any) -> list[Any]:
        """Return the gradients that there are, of the arguments x..., y..., dy...."""
        first_dy = len(arguments) - len(op.outputs)
        x, y = arguments[: len(op.inputs)], arguments[len(op.inputs) : first_dy]
        upstream = [
            gradient if dtype in DIFFERENTIABLE else None
            for dtype, gradient in zip(op.outputs, arguments[first_dy:], strict=True)
        ]
        dxs = as_list(function(StandIn(op, x, y), *upstream))
        if len(dxs) != len(op.inputs):
            raise PatchError(
                f"{path} gives {len(dxs)} gradients, and {op} has {len(op.inputs)} inputs: it "
                f"gives one for each, or None"
            )
        for place, (dx, dtype) in enumerate(zip(dxs, op.inputs, strict=True)):
            if dx is None or dtype not in DIFFERENTIABLE:
                continue
            tensor = tf.convert_to_tensor(dx, dtype_hint=dtype)
            if tensor.dtype != dtype:
                raise PatchError(
                    f"{path} gives a gradient of {tensor.dtype.name} for input {place} of {op}, "
                    f"which is {dtype}"
                )
            flowing[f"dx{place}"] = tf.identity(tensor)  # it may be an argument as it came
        if not flowing:
            raise PatchError(
                f"{path} gives no gradient for any input of {op}; stop_gradient says that"
            )
        return list(flowing.values())

    specs = [tf.TensorSpec(None, dtype, name) for name, dtype in dtypes.items()]
    try:
        wrapped = tf.compat.v1.wrap_function(called, specs)
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(f"{path} failed on {op}: {first_line(error)}") from error
    results = dict(zip(flowing, wrapped.outputs, strict=True))
    return _as_functions(path, wrapped.graph, list(dtypes), results)


function_carrier.trace.is_for(trace)


@dataclass(frozen=True, eq=False)
class StandIn:
    """An op as its gradient function sees it: `op.inputs`, `op.outputs`, `op.get_attr("...")`."""

    traced: OpDtypes
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def get_attr(self, name: str) -> Any:
        """Return the value of an attr, or its default, as tf.Operation.get_attr gives it.

        Raises ValueError where the op has none of this name.
        """
        import tensorflow as tf
        from tensorflow.python.framework import op_def_registry

        known = op_def_registry.get(self.traced.type)
        defaults = {} if known is None else {a.name: a.default_value for a in known.attr}
        value = self.traced.attrs.get(name, defaults.get(name))
        if value is None or not value.ListFields():
            raise ValueError(f"op type {self.traced.type} has no attr {name!r}")
        with tf.Graph().as_default():  # TensorFlow reads any attr of any op
            op = tf.no_op()
            op._set_attr(name, value)
            return op.get_attr(name)

    def __getattr__(self, name: str) -> Any:
        if name in ("type", "name", "device"):
            return getattr(self.traced, name)
        raise AttributeError(
            f"op.{name} is not there while a gradient is traced into a file; op.inputs, "
            f"op.outputs, op.get_attr, op.type, op.name and op.device are"
        )


# Of the attrs that TensorFlow adds for itself, those that running or differentiating a While or
# If needs; the others hold names and settings of the process that traced it.
TRACING_ATTRS = frozenset(
    {"_lower_using_switch_merge", "_num_original_outputs", "_stateful_parallelism"}
)
SETTINGS = frozenset({"config_proto", "config", "executor_type"})


def _as_functions(
    path: str, graph: Any, arguments: Sequence[str], results: Mapping[str, Any]
) -> GradientFunction:
    """Return what was traced into a FuncGraph as a function from these arguments to these tensors.

    Raises PatchError where it holds a tensor or variable from outside, or an op that is not
    TensorFlow's own.
    """
    opened = exported_graph(graph)
    placeholders = (tensor.op.name for tensor in graph.inputs)  # captures come last
    by_placeholder = dict(zip(placeholders, arguments, strict=False))
    part = Part(opened.main, by_placeholder, tuple(tensor.name for tensor in results.values()))
    _refuse_captures(path, graph, {node.name for node in part.unfed()})
    function = FunctionDef()
    for argument, tensor in zip(arguments, graph.inputs, strict=False):
        function.signature.input_arg.add(name=argument, type=tensor.dtype.as_datatype_enum)
    for result, tensor in results.items():
        function.signature.output_arg.add(name=result, type=tensor.dtype.as_datatype_enum)
        function.ret[result] = part.spelled(tensor.name)
    for payload in part.payloads():
        function.node_def.append(NodeDef.FromString(b"".join(map(piece_bytes, payload.pieces))))
    renamed: dict[str, str] = {}
    nested = called_in_order(opened, opened.main, set(part.indices))
    for name, called in nested.items():
        _clean(called, renamed)
        called.signature.name = ""
        content = hashlib.sha256(called.SerializeToString(deterministic=True)).hexdigest()[:8]
        renamed[name] = called.signature.name = f"graphpatch_called_{content}"
    _clean(function, renamed)
    library = tuple(nested.values())
    types = {node.op for part_of in (function, *library) for node in part_of.node_def}
    types -= set(renamed.values())
    if foreign := [op for op in sorted(types) if opdefs.lookup(op) is None]:
        raise PatchError(
            f"{path} uses {', '.join(foreign)}, which TensorFlow does not define: a file with it "
            f"would need the library that does"
        )
    newer = tuple(opdefs.newer_than_1_15(types))
    return GradientFunction(path.rpartition(":")[2], function, library, newer)


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


def _clean(function: FunctionDef, renamed: Mapping[str, str]) -> None:
    """Take out what depends on the process that traced it, and call functions by new names."""
    is_kept = function.attr[NO_INLINE].b if NO_INLINE in function.attr else False
    for name in ("attr", "arg_attr", "resource_arg_unique_id"):
        function.ClearField(name)
    if is_kept:
        function.attr[NO_INLINE].b = True
    for node in function.node_def:
        node.ClearField("experimental_debug_info")
        for key in list(node.attr):
            if (key.startswith("_") and key not in TRACING_ATTRS) or key in SETTINGS:
                del node.attr[key]
    rename_calls(function.node_def, renamed)
