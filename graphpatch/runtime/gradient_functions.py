"""Gradient functions (op, *dy) as TensorFlow registers them: of formulas, keys and FunctionDefs.

And the way back: one of the user's, `module:function`, traced by TensorFlow into FunctionDefs,
which are the same on every run. So a file that carries them needs neither the module nor
graphpatch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch import opdefs
from graphpatch.differentiation.flow import override_key
from graphpatch.errors import FormulaError, ModelError, PatchError, RulesError, did_you_mean
from graphpatch.gradients.attach import FUNCTION_PREFIX, OpDtypes
from graphpatch.gradients.attach import GradientFunction as TracedGradient
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.interpreter import program, run
from graphpatch.gradients.ops import Signature, op_def
from graphpatch.gradients.program import formula_ops, function_def, gradient_ops
from graphpatch.gradients.spec import (
    KEY_PREFIX,
    FilteredGradient,
    InlineFormula,
    KeyedGradient,
    LibraryGradient,
    PythonGradient,
    SurrogateFormula,
    from_key,
)
from graphpatch.graph.functions import NO_INLINE, Part, calls
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.wire import piece_bytes
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.patches import function_carrier
from graphpatch.patches.filter import parsed
from graphpatch.protos import FunctionDef, GraphDef, NodeDef
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import first_line, require_tensorflow
from graphpatch.runtime.imported import exported_graph, rename_calls, spliced, spliced_function
from graphpatch.runtime.tf_gradients import gradients

GradientFunction = Callable[..., "list[Any]"]

_RAW_NAMES = {"reduction_indices": "axis", "split_dim": "axis"}
"""The input args that tf.raw_ops calls otherwise than the op does."""


def tensorflow_gradient(formula: Formula) -> GradientFunction:
    """Return the gradient function (op, *dy) -> [dx...] of a formula, for tf.RegisterGradient.

    It works where ops are differentiated in a graph, and on tapes over functions that hold such
    ops. It gives None for an input without a gradient. It raises FormulaError, when it is called,
    where the formula does not suit the op.
    """

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        attrs, op_type = op_attrs(formula, op), op.type if formula.reads_op else ""
        return formula_gradients(formula, op.inputs, op.outputs, upstream, attrs, op_type=op_type)

    return gradient


def surrogate_gradient(formula: Formula) -> GradientFunction:
    """Return the gradient function (op, dy) -> [dx...] of an op that counts as `formula` backward.

    The formula is computed where the gradient is asked for, of the op's inputs, in the dtype and
    shape of its output, and TensorFlow differentiates it there. None for an input that the
    formula does not read, or through which nothing flows.
    """

    def gradient(op: Any, dy: Any) -> list[Any]:
        inputs = [tf.identity(tensor) for tensor in op.inputs]
        output, value = op.outputs[0], formula_value(formula, inputs, op)
        if not (value.shape.is_fully_defined() and value.shape == output.shape):
            value = tf.broadcast_to(value, tf.shape(output))
        return gradients([value], inputs, [tf.convert_to_tensor(dy)])

    return gradient


def formula_value(formula: Formula, inputs: Sequence[Any], op: Any = None) -> Any:
    """Return the tensor that one formula of the inputs `x0, x1, ...` computes.

    It has the dtype of `op`, which is to count as the formula, or else that of the first input.
    Raises FormulaError where it does not suit these tensors.
    """
    outputs, attrs = ([], None) if op is None else (op.outputs, op_attrs(formula, op))
    same_shape = _same_shape([*inputs, *outputs])
    signature = Signature.of(dtypes_of(inputs), dtypes_of(outputs), attrs, same_shape)
    result = formula_ops(formula, signature, dtypes_of([*outputs, *inputs])[0])
    return run([result], _named("x", inputs), tensorflow_output)[0]


def op_attrs(formula: Formula, op: Any) -> dict[str, object]:
    """Return the attrs of an op that a formula reads; FormulaError where the op has none such.

    `forward` and `own` read all; what this TensorFlow does not know of them is None.
    """
    known = opdefs.lookup(op.type) if formula.reads_op else None
    own = {attr.name for attr in known.attrs if attr.type != "type"} if known else set[str]()
    attrs: dict[str, object] = {}
    for name in sorted(own | formula.attrs):
        try:
            attrs[name] = _as_text(op.get_attr(name))
        except (KeyError, ValueError):
            if name in formula.attrs:
                where = f"{getattr(op, 'name', 'an op')} ({op.type})"
                raise FormulaError(f"{where} has no attr {name!r}") from None
            attrs[name] = None
    return attrs


def _as_text(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def formula_gradients(
    formula: Formula,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    upstream: Sequence[Any],
    attrs: Mapping[str, object] | None = None,
    op_type: str = "",
) -> list[Any]:
    """Return the dx of each input tensor, or None, from inputs, outputs and upstream gradients.

    An upstream gradient that is None counts as zeros. `op_type` is what `forward` and `own`
    compute. Raises FormulaError where the formula does not suit these tensors.
    """
    if len(upstream) != len(outputs):
        raise FormulaError(f"{len(outputs)} outputs, and {len(upstream)} upstream gradients")
    read = formula.with_more_inputs(dtypes_of(inputs))
    x = [*inputs, *(_tensor_named(name, inputs[0].graph) for name in formula.tensors)]
    tensors = _named("x", x) | _named("y", outputs)
    scalars = [name for _, _, name in read.inputs if tensors[name].shape == ()]
    same_shape = _same_shape([tensors[name] for name in tensors if name not in scalars])
    known = attrs, same_shape, scalars, op_type, len(formula.tensors)
    results = gradient_ops(read, Signature.of(dtypes_of(x), dtypes_of(outputs), *known))
    for place, (output, dy) in enumerate(zip(outputs, upstream, strict=True)):
        if f"dy{place}" in read.variables:
            tensors[f"dy{place}"] = dense(output, dy)
    return run(results, tensors, tensorflow_output)[: len(inputs)]


def _tensor_named(name: str, graph: Any) -> Any:
    """Return the tensor that a formula reads by name, of a graph or of those around it."""
    around: Any = graph
    while around is not None:
        with contextlib.suppress(KeyError, ValueError):
            tensor = around.get_tensor_by_name(name if ":" in name else f"{name}:0")
            if tensor.dtype != tf.resource:
                return tensor
            dtype = tensor.op.get_attr("dtype")
            return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype)
        around = getattr(around, "outer_graph", None)
    raise FormulaError(f"the graph has no tensor {name!r} that a formula can read")


def tensorflow_output(op_type: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Return what TensorFlow computes of one op of a formula."""
    if op_type == "Const":
        value = attrs["value"]
        return tf.constant(
            list(value.numbers) if value.shape else value.numbers[0], value.dtype, value.shape
        )
    named: dict[str, Any] = {}
    for arg, tensor in zip(op_def(op_type).inputs, inputs, strict=True):
        named[_RAW_NAMES.get(arg.name, arg.name)] = tensor
        attrs.pop(arg.type_attr, None)  # which the tensor implies
        attrs.pop(arg.number_attr, None)
    named |= {name: _as_text(value) for name, value in attrs.items()}
    return getattr(tf.raw_ops, op_type)(**named)


check_formula = functools.lru_cache(program)
"""Raises FormulaError where a formula does not suit an op of inputs and outputs of these dtypes."""


def _named(kind: str, tensors: Sequence[Any]) -> dict[str, Any]:
    """Return tensors by what a formula calls them: x0, x1, ..."""
    return {f"{kind}{place}": tensor for place, tensor in enumerate(tensors)}


def dtypes_of(tensors: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the dtypes of tensors."""
    return tuple(tensor.dtype.base_dtype.name for tensor in tensors)


def dense(output: Any, dy: Any) -> Any:
    """Return an upstream gradient as a dense tensor, zeros for None."""
    return tf.zeros_like(output) if dy is None else tf.convert_to_tensor(dy)


def _same_shape(tensors: Sequence[Any]) -> bool:
    """Return whether all have one shape, as far as is known before they are computed."""
    if all(tensor is tensors[0] for tensor in tensors):
        return True
    first = tensors[0].shape
    return bool(first.is_fully_defined()) and all(tensor.shape == first for tensor in tensors)


def gradient_of(node: Node, allow_python: bool = False) -> GradientFunction | None:
    """Return the gradient function (op, *dy) -> [dx...] that the key of an op means; None for none.

    None for a key that is not ours, too. A function in Python is one only with `allow_python`, as
    its module is imported. Raises ModelError where the library lacks the function of a key.
    """
    key, library = override_key(node) or "", node.body.library
    if not key.startswith(FUNCTION_PREFIX):
        return gradient_function(from_key(key), allow_python)
    graph, name = library.graph(), library.gradients.get(node.op, "")
    if name not in graph.functions:
        raise ModelError(f"{node} calls a function of which the library has no gradient")
    return gradient_in_library(graph, graph.functions[name])


def gradient_function(
    gradient: KeyedGradient, allow_python: bool = False
) -> GradientFunction | None:
    """Return the gradient function (op, *dy) -> [dx...] of a gradient; None as `gradient_of`."""
    match gradient:
        case FilteredGradient():
            return _filtered_gradient(gradient, allow_python)
        case SurrogateFormula(formula):
            return surrogate_gradient(formula)
        case PythonGradient(path):
            return gradient_at(path) if allow_python else None
        case LibraryGradient() | InlineFormula():
            return tensorflow_gradient(gradient.formula)
    return None


def _filtered_gradient(filtered: FilteredGradient, allow_python: bool) -> GradientFunction | None:
    """Return a gradient function with filters; None for one in Python that is not allowed."""
    keys = {filtered.own, *(key for _, key in filtered.filters if key is not None)}
    gradients = {key: gradient_function(from_key(key), allow_python) for key in keys}
    if any(gradients[key] is None and key.startswith(KEY_PREFIX) for key in keys):
        return None

    def gradients_by(key: str, op: Any, upstream: Sequence[Any]) -> list[Any]:
        from tensorflow.python.framework import ops

        # LookupError where nobody registered it; None where nothing flows back.
        function = gradients[key] or ops.gradient_registry.lookup(key)
        if function is None or all(dy is None for dy in upstream):
            return [None] * len(op.inputs)
        return as_list(function(op, *upstream))

    def passed(wanted: str, tensors: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
        flowing = list(upstream)
        for at, key in filtered.filters:
            side, place = parsed(at)
            for number, (tensor, dy) in enumerate(zip(tensors, flowing, strict=True)):
                is_meant = side == wanted and place in (None, number) and dy is not None
                if is_meant and tensor.dtype.base_dtype.name in DIFFERENTIABLE:
                    # In a formula x and y are both the tensor.
                    flowing[number] = key and gradients_by(key, tf.identity(tensor).op, [dy])[0]
        return flowing

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        flowing = passed("output", op.outputs, upstream)
        return passed("input", op.inputs, gradients_by(filtered.own, op, flowing))

    return gradient


def as_list(value: Any) -> list[Any]:
    """Return the gradients of all inputs: of one input a gradient function may give it alone."""
    return list(value) if isinstance(value, list | tuple) else [value]


def gradient_at(path: str) -> GradientFunction:
    """Return the function at `package.module:function`, its module imported.

    Raises RulesError where there is none.
    """
    module_name, _, name = path.partition(":")
    try:
        value = importlib.import_module(module_name)
    except Exception as error:
        raise RulesError(f"cannot import {module_name}: {first_line(error)}") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise RulesError(f"{module_name} has no {part!r}{did_you_mean(part, vars(value))}")
        value = getattr(value, part)
    if not callable(value):
        raise RulesError(f"{path} is a {type(value).__name__}, not a function")
    return value


def gradient_in_library(graph: Graph, body: Body) -> GradientFunction:
    """Return the gradient function (op, *dy) -> [dx...] that a FunctionDef (x..., y..., dy...) is.

    Its ops are put into the graph that asks for the gradient, so that they can be differentiated
    in their turn: y are the outputs of the op, as its inputs y are behind StopGradients. It gives
    None for an input without a gradient.
    """
    message = GraphDef()
    message.library.function.extend(
        [*called_in_order(graph, body).values(), definition(graph, body.label)]
    )
    library = message.SerializeToString(deterministic=True)

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        read = [
            op.outputs[int(name[1:])] if name.startswith("y") else tensor
            for tensor, name in zip(op.inputs, body.arguments, strict=False)
        ]
        # An op that reads a tensor of another graph captures it; input_map does not.
        fed = list(map(tf.identity, (*read, *map(dense, op.outputs, upstream))))
        functions = tf.compat.v1.GraphDef.FromString(library)
        *called, own = functions.library.function
        if called:
            spliced(functions, {}, [], "graphpatch")
        tensors, _ = spliced_function(own, fed, "graphpatch", body.library.producer)
        flowing = [arg.name for arg in own.signature.output_arg]
        return [
            dx if name.startswith("d") and x.dtype.is_floating else None
            for name, dx, x in zip(flowing, tensors, op.inputs, strict=True)
        ]

    return gradient


def called_in_order(
    graph: Graph, body: Body, among: Container[int] | None = None
) -> dict[str, FunctionDef]:
    """Return the functions that ops of a body call, each behind those that it calls itself.

    `among`: the indices of those ops; all ops where it is silent.
    """
    functions: dict[str, FunctionDef] = {}
    for node, name in calls(body):
        if (among is None or node.index in among) and name in graph.functions.keys() - functions:
            functions |= called_in_order(graph, graph.functions[name])
            functions[name] = definition(graph, name)
    return functions


def definition(graph: Graph, function: str) -> FunctionDef:
    """Return the FunctionDef of a function as its file has it."""
    _, part = graph.functions[function].lies
    return FunctionDef.FromString(graph.source.data[part.value : part.end])


def trace(path: str, op: OpDtypes) -> TracedGradient:
    """Return the gradient function at `package.module:function`, traced for one op.

    It is called as TensorFlow calls a registered one, with (op, *upstream gradients), None for an
    output that carries none. Raises RulesError where there is no such function, or no TensorFlow
    to trace it; PatchError where it fails, gives another number of gradients than the op has
    inputs, or uses a tensor or variable from outside.
    """
    function = gradient_at(path)
    require_tensorflow('{"python": ...} is traced by', RulesError)
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
) -> TracedGradient:
    """Return what was traced into a FuncGraph as a function from these arguments to these tensors.

    Raises PatchError where it holds a tensor or variable from outside, or an op that is not
    TensorFlow's own.
    """
    opened = exported_graph(graph)
    placeholders = (tensor.op.name for tensor in graph.inputs)  # captures come last
    by_placeholder = dict(zip(placeholders, arguments, strict=False))
    part = Part(opened.main, by_placeholder, tuple(tensor.name for tensor in results.values()))
    _refuse_captures(path, graph, {node.name for node in part.unfed()})
    function = function_def(
        "",
        zip(arguments, (tensor.dtype.as_datatype_enum for tensor in graph.inputs), strict=False),
        (NodeDef.FromString(b"".join(map(piece_bytes, node.pieces))) for node in part.payloads()),
        [
            (result, tensor.dtype.as_datatype_enum, part.spelled(tensor.name))
            for result, tensor in results.items()
        ],
    )
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
    return TracedGradient(path.rpartition(":")[2], function, library, newer)


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
