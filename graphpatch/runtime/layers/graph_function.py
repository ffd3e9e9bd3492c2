"""A patched graph as a function of TensorFlow that any tape differentiates, and that can be saved.

In a file, a gradient of ours is a key that is registered once for all ops. tf.saved_model.save asks
for the gradient of a key without telling the op. So each patched op of the main graph is read as an
IdentityN of its outputs and inputs, as tf.custom_gradient builds it, with a key of its own, whose
gradient knows the op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.formats import Model
from graphpatch.formats.destination import Export
from graphpatch.formats.saved_model import ExportedGraph, ExportedTensor, exported
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.functions import Extract, Fed
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Node
from graphpatch.graph.wire import piece_bytes
from graphpatch.runtime.imported import spliced
from graphpatch.runtime.register import gradient_for, overridden_ops, register_in_functions

LAYER_SCOPE = "graphpatch_layer"
LONE, ATTACHED, INLINE = "lone", "attached", "inline"
_NUMBERS = itertools.count()


@dataclass(eq=False)
class OverriddenOp:
    """A patched op that is read as an IdentityN of its outputs and inputs.

    `kind` is the op as it stands in the file: an op that has a key (LONE), a call that takes the
    outputs of an op besides its inputs (ATTACHED), or one that gives its inputs on (INLINE),
    which has no outputs besides.
    """

    key: str
    name: str
    gradient: Callable[..., Sequence[Any]]
    outputs: int
    kind: str
    op: Any = field(default=None)

    @property
    def values(self) -> int:
        """How many inputs of the IdentityN are outputs of the op, to which nothing flows back."""
        return 0 if self.kind == INLINE else self.outputs

    def backward(self, op: Any, *upstream: Any) -> list[Any]:
        """The gradient of the IdentityN. TensorFlow gives no op where it saves the gradient."""
        current = op if op is not None else self.op
        inputs, outputs = list(current.inputs), list(current.outputs)[: self.outputs]
        inputs_read, values = inputs[self.values :], inputs[: self.values]
        # The outputs are the values, and carry this gradient, which second derivatives need.
        tensors_read = [*inputs_read, *outputs] if self.kind == ATTACHED else inputs_read
        gradients = self.gradient(
            _OpAtGradient(current, tensors_read, outputs), *upstream[: self.outputs]
        )
        return [*[None] * len(values), *gradients[: len(inputs_read)]]


@dataclass(frozen=True, eq=False)
class _OpAtGradient:
    """The op as its gradient sees it."""

    op: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    def get_attr(self, name: str) -> Any:
        """An attr of the op, which the IdentityN keeps under a name that TensorFlow ignores."""
        return self.op.get_attr(f"_graphpatch_{name}")

    @property
    def type(self) -> str:
        """Return the op type, for messages."""
        return str(self.op.type)


def graph_function(model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Return the function from the inputs of a graph to its outputs, both in this order.

    Raises OutputError where a name is not that of a tensor, an output needs a placeholder that is
    not among the inputs, or the graph holds what a function cannot: variables, tables, v1 loops.
    """
    import tensorflow as tf

    graph = model.graphs[0]
    exported_graph = exported(graph, Export(tuple(inputs), tuple(outputs)))
    extract = Extract(graph, tuple(map(_fed_argument, exported_graph.inputs)), tuple(outputs))
    data = b"".join(map(piece_bytes, extract.pieces()))
    graph_def = tf.compat.v1.GraphDef.FromString(data)
    carried = _read_as_identities(graph, graph_def)
    register_in_functions(graph)
    rename_functions(graph_def, f"_layer_{next(_NUMBERS)}")
    placeholders = extract.placeholders()
    specs = {item.tensor: item for item in exported_graph.inputs}
    ordered = [_as_exported(exported_graph, text) for text in inputs]

    def imported(*tensors: Any) -> Any:
        names = [f"{placeholders[text]}:0" for text in ordered]
        asked = [text if ":" in text else f"{text}:0" for text in outputs]
        results = spliced(graph_def, dict(zip(names, tensors, strict=True)), asked, LAYER_SCOPE)
        inside = results[0].graph
        for item in carried:
            item.op = inside.get_operation_by_name(f"{LAYER_SCOPE}/{item.name}")
        return results

    with tf.init_scope():
        return tf.compat.v1.wrap_function(imported, [_tensor_spec(specs[text]) for text in ordered])


def _as_exported(exported_graph: ExportedGraph, text: str) -> str:
    """Return the tensor as the export spells it."""
    spelled = {tensor.tensor for tensor in exported_graph.inputs}
    return text if text in spelled else text.removesuffix(":0")


def _fed_argument(tensor: ExportedTensor) -> Fed:
    shape = None if tensor.shape.unknown_rank else [dim.size for dim in tensor.shape.dim]
    sizes = None if shape is None else [None if size < 0 else size for size in shape]
    return Fed(tensor.tensor, DTYPE_NAMES[tensor.argument.type], sizes)


def _tensor_spec(tensor: ExportedTensor) -> Any:
    import tensorflow as tf

    return tf.TensorSpec(
        _fed_argument(tensor).shape, DTYPE_NAMES[tensor.argument.type], tensor.argument.name
    )


def _read_as_identities(graph: ModelGraph, graph_def: Any) -> list[OverriddenOp]:
    """Let each patched op of the main graph be an IdentityN with a registered key of its own."""
    import tensorflow as tf

    nodes_by_name = {node.name: node for node in graph_def.node}
    carried = []
    for node, key in list(overridden_ops(graph)):
        gradient = gradient_for(key, graph, node) if node.body.is_main else None
        written = nodes_by_name.get(node.name)
        if gradient is None or written is None or written.op != node.op:
            continue  # not ours, not needed, or given as an input
        fresh = f"graphpatch:layer:{next(_NUMBERS)}"
        overridden = OverriddenOp(
            fresh, node.name, gradient, len(node.outputs or ()), _carrier_kind(graph, node)
        )
        tf.RegisterGradient(fresh)(_plainly(overridden))
        _as_identity(node, written, graph_def, overridden)
        carried.append(overridden)
    return carried


def _carrier_kind(graph: ModelGraph, node: Node) -> str:
    if node.op not in graph.library.gradients or node.op not in graph.functions:
        return LONE
    takes_outputs = any(name.startswith("y") for name in graph.functions[node.op].arguments)
    return ATTACHED if takes_outputs else INLINE


def _plainly(overridden: OverriddenOp) -> Callable[..., Any]:
    """Return the gradient as a plain function of tensors, which TensorFlow can trace and save."""
    import tensorflow as tf

    def gradient(op: Any, *upstream: Any) -> list[Any]:
        return overridden.backward(op, *upstream)

    return tf.autograph.experimental.do_not_convert(gradient)  # type: ignore[no-any-return]


def _as_identity(node: Node, written: Any, graph_def: Any, overridden: OverriddenOp) -> None:
    """The NodeDef as an IdentityN; what it computed is computed by an op beside it."""
    data = [text for text in written.input if not text.startswith("^")]
    types = [arg.dtype for arg in node.arguments or ()]
    gives = [arg.dtype for arg in node.outputs or ()]
    count = len(gives)
    if overridden.kind == ATTACHED:  # (x..., y...), where y is computed elsewhere
        values, inputs_read, types = data[-count:], data[:-count], types[:-count]
    elif overridden.kind == INLINE:
        values, inputs_read, gives = [], data, []
    else:
        values, inputs_read = _copied_op(written, graph_def, gives), data
    attrs = {key: value for key, value in written.attr.items() if not key.startswith("_")}
    written.Clear()
    written.name, written.op = node.name, "IdentityN"
    written.input.extend([*values, *inputs_read])
    for key, value in attrs.items():
        written.attr[f"_graphpatch_{key}"].CopyFrom(value)
    from graphpatch.graph.attrs import DTYPE_NUMBERS

    numbers = [DTYPE_NUMBERS[dtype or "float32"] for dtype in (*gives, *types)]
    written.attr["T"].list.type.extend(numbers)
    written.attr[OVERRIDE].s = overridden.key.encode()


def _copied_op(written: Any, graph_def: Any, gives: Sequence[str | None]) -> list[str]:
    """Return a copy of the op under another name, and what is read of it, through StopGradients."""
    from graphpatch.graph.attrs import DTYPE_NUMBERS

    copy = graph_def.node.add()
    copy.CopyFrom(written)
    copy.name = f"{written.name}/{LAYER_SCOPE}"
    del copy.attr[OVERRIDE]
    names = []
    for place, dtype in enumerate(gives):
        stop = graph_def.node.add(name=f"{copy.name}/stop_{place}", op="StopGradient")
        stop.input.append(f"{copy.name}:{place}")
        stop.attr["T"].type = DTYPE_NUMBERS[dtype or "float32"]
        names.append(stop.name)
    return names


def rename_functions(graph_def: Any, suffix: str) -> None:
    """Let the name of each function of a tf.compat.v1.GraphDef end in `suffix`, all calls too.

    TensorFlow keeps the functions of all that runs eagerly in one library, and refuses a name that
    is there with another definition: that of the original beside the patched one, for example.
    """
    library = graph_def.library
    names = {
        function.signature.name: f"{function.signature.name}{suffix}"
        for function in library.function
    }
    for node in _every_node(graph_def):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            _rename_value(value, names)
    for function in library.function:
        function.signature.name = names[function.signature.name]
        for value in function.attr.values():
            _rename_value(value, names)
    for gradient in library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _every_node(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _rename_value(value: Any, names: Mapping[str, str]) -> None:
    called = [value.func] if value.HasField("func") else []
    for function in (*called, *value.list.func):
        function.name = names.get(function.name, function.name)
        for inner in function.attr.values():
            _rename_value(inner, names)
