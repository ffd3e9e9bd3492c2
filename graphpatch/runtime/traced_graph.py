"""From the graph that TensorFlow traced to FunctionDefs that are the same on every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch import opdefs
from graphpatch.errors import PatchError
from graphpatch.gradients.attach import TracedFunction
from graphpatch.graph.as_function import Part
from graphpatch.graph.calls import NO_INLINE
from graphpatch.graph.wire import piece_bytes
from graphpatch.runtime.function_gradient import called_in_order
from graphpatch.runtime.imported import exported_graph

# Of the attrs that TensorFlow adds for itself, those that running or differentiating a While or
# If needs; the others hold names and settings of the process that traced it.
TRACING_ATTRS = frozenset(
    {"_lower_using_switch_merge", "_num_original_outputs", "_stateful_parallelism"}
)
SETTINGS = frozenset({"config_proto", "config", "executor_type"})


def traced_function(
    name: str, path: str, graph: Any, arguments: Sequence[str], results: Mapping[str, Any]
) -> TracedFunction:
    """The function `name` from these arguments to these tensors of a FuncGraph.

    Raises PatchError where it holds a tensor or variable from outside, or an op that is not
    TensorFlow's own.
    """
    placeholders = [tensor.op.name for tensor in graph.inputs[: len(arguments)]]
    opened = exported_graph(graph)
    given = dict(zip(placeholders, arguments, strict=True))
    part = Part(opened.main, given, tuple(tensor.name for tensor in results.values()))
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
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    found = [
        _captured(graph, captured[name]) if name in captured else f"the placeholder {name!r}"
        for name in sorted(unfed)
    ]
    if found:
        raise PatchError(
            f"{path} uses {', '.join(found)} from outside the function, which no file can hold; "
            f"make constants of it inside, as tf.constant(...) of numbers"
        )


def _captured(graph: Any, outer: Any) -> str:
    for variable in graph.variables:
        if variable.handle is outer:
            return f"the variable {variable.name!r}"
    return f"a tensor ({outer.dtype.name}, shape {outer.shape})"


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
    kept = function.attr[NO_INLINE].b if NO_INLINE in function.attr else False
    for field in ("attr", "arg_attr", "resource_arg_unique_id"):
        function.ClearField(field)
    if kept:
        function.attr[NO_INLINE].b = True
    for node in function.node_def:
        node.op = renamed.get(node.op, node.op)
        node.ClearField("experimental_debug_info")
        for key in list(node.attr):
            if (key.startswith("_") and key not in TRACING_ATTRS) or key in SETTINGS:
                del node.attr[key]
                continue
            for one in _functions_named(node.attr[key]):
                one.name = renamed.get(one.name, one.name)


def _functions_named(value: AttrValue) -> list[Any]:
    """The functions that an attr names."""
    return [value.func] if value.HasField("func") else list(value.list.func)


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
