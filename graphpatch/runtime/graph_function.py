"""A graph file as a function of tensors, which any tape differentiates, and that can be saved.

A key in a file is registered once for all ops, and tf.saved_model.save asks for its gradient
without telling the op. So each patched op of the main graph gets its gradient as functions on
tensors have theirs, by tf.custom_gradient, once the graph is imported.

TensorFlow differentiates v1 loops and branches in a tf.Graph alone. Where there are any, the
gradient is built there, as for a Session, and the whole of it becomes a function of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from graphpatch.control_flow.contexts import has_control_flow, inside_control_flow
from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import ModelError, OutputError
from graphpatch.formats import Model
from graphpatch.formats.destination import Export
from graphpatch.formats.model import opened
from graphpatch.formats.saved_model import ExportedTensor, exported
from graphpatch.graph.attrs import DTYPE_NUMBERS, OVERRIDE
from graphpatch.graph.functions import Extract, Fed
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Node
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import op_of
from graphpatch.runtime.functions import with_gradient
from graphpatch.runtime.gradient_functions import GradientFunction
from graphpatch.runtime.imported import rename_calls, spliced
from graphpatch.runtime.register import (
    gradient_for,
    import_model,
    overridden_ops,
    register_gradients,
    register_in_functions,
)
from graphpatch.runtime.tf_gradients import control_flow, gradients
from graphpatch.runtime.values import full_tensor_name

SCOPE = "graphpatch_layer"
_NUMBERS = itertools.count()

TensorFunction = Callable[..., Sequence[Any]]


def graph_function(
    model: Model, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[TensorFunction, list[Any]]:
    """Return the function from the inputs of a graph to its outputs, and the dtypes of its inputs.

    Raises OutputError where a name is not that of a tensor outside of v1 loops and branches, an
    output needs a placeholder that is not among the inputs, or the graph holds what a function
    cannot: variables or tables.
    """
    import tensorflow as tf

    graph = model.graphs[0]
    signature = exported(graph, Export(tuple(inputs), tuple(outputs)), with_loops=True).inputs
    inside = inside_control_flow(graph.main)
    for text in (*inputs, *outputs):
        if graph.main.node(op_of(text)).index in inside:
            raise OutputError(f"{text} is inside a v1 loop or branch; name a tensor outside of it")
    fed = {tensor.tensor: _fed_argument(tensor) for tensor in signature}
    arguments = {tensor.tensor: tensor.argument.name for tensor in signature}
    extract = Extract(graph, tuple(fed.values()), tuple(outputs))
    part = opened(b"".join(map(piece_bytes, extract.pieces())), model.path)
    graph_def = part.graph_def()
    ordered = [text if text in fed else text.removesuffix(":0") for text in inputs]
    specs = [tf.TensorSpec(fed[text].shape, fed[text].dtype, arguments[text]) for text in ordered]
    placeholders = [f"{extract.placeholders()[text]}:0" for text in ordered]
    results, dtypes = list(map(full_tensor_name, outputs)), [spec.dtype for spec in specs]
    if has_control_flow(part.graphs[0].main):

        def build(*tensors: Any) -> list[Any]:
            _refuse_random(part.graphs[0])
            import_model(part, SCOPE, input_map=dict(zip(placeholders, tensors, strict=True)))
            default = tf.compat.v1.get_default_graph()
            return [default.get_tensor_by_name(f"{SCOPE}/{text}") for text in results]

        register_gradients(part)
        forward = _wrapped(_without_keys(graph_def), placeholders, results, specs)
        return _differentiated_in_a_graph(forward, build, specs), dtypes
    patched = dict(_patched_ops(graph, graph_def))
    register_in_functions(graph)

    def override(tensors: list[Any]) -> list[Any]:
        """Give patched ops their gradients, once they are imported."""
        replaced: dict[str, Any] = {}
        for op in tensors[0].graph.get_operations():
            if op.name in patched:
                replaced |= _with_new_gradient(op, *patched[op.name])
        return [replaced.get(tensor.name, tensor) for tensor in tensors]

    return _wrapped(graph_def, placeholders, results, specs, override), dtypes


def _wrapped(
    graph_def: Any,
    placeholders: Sequence[str],
    results: Sequence[str],
    specs: Sequence[Any],
    change: Callable[[list[Any]], list[Any]] = list,
) -> Any:
    """Return the concrete function from placeholders of a GraphDef to its tensors `results`."""
    import tensorflow as tf

    rename_functions(graph_def, f"_layer_{next(_NUMBERS)}")

    def imported(*tensors: Any) -> list[Any]:
        read = dict(zip(placeholders, tensors, strict=True))
        return change(spliced(graph_def, read, results, SCOPE))

    with tf.init_scope():
        return tf.compat.v1.wrap_function(imported, specs)


def _differentiated_in_a_graph(
    forward: Any, build: TensorFunction, specs: Sequence[Any]
) -> TensorFunction:
    """Return a concrete function with the gradient that tf.gradients builds in a tf.Graph.

    `build` puts what the function computes into the current graph. The gradient, which is built
    once it is asked for, computes that again; its own gradient is one in the same way.
    """
    import tensorflow as tf

    outputs = forward.outputs
    places = [n for n, y in enumerate(outputs) if y.dtype.is_floating or y.dtype.is_complex]

    def build_gradient(*tensors: Any) -> list[Any]:
        """Put the gradients of inputs, followed by dy, into the current graph; None for none."""
        values, upstream = build(*tensors[: len(specs)]), tensors[len(specs) :]
        dxs = gradients([values[place] for place in places], tensors[: len(specs)], upstream)
        return [dx if dx is None else tf.identity(tf.convert_to_tensor(dx)) for dx in dxs]

    @cache
    def gradient() -> tuple[TensorFunction, list[int]]:
        """Return the gradients as a function of inputs and dy, and which inputs have one."""
        upstream = [tf.TensorSpec(outputs[place].shape, outputs[place].dtype) for place in places]
        all_specs = [*specs, *upstream]
        with tf.init_scope(), control_flow(False), tf.Graph().as_default() as graph:
            fed = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in all_specs]
            dxs = build_gradient(*fed)
        slots = [slot for slot, dx in enumerate(dxs) if dx is not None]
        graph_def, names = _without_keys(graph.as_graph_def()), [dxs[slot].name for slot in slots]
        function = _wrapped(graph_def, [tensor.name for tensor in fed], names, all_specs)

        def build_again(*tensors: Any) -> list[Any]:
            dxs = build_gradient(*tensors)
            return [dxs[slot] for slot in slots]

        return _differentiated_in_a_graph(function, build_again, all_specs), slots

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def computed(*tensors: Any) -> Any:
        # Nothing flows into the function: a tape would differentiate it at once.
        values = tuple(forward(*map(tf.stop_gradient, tensors)))

        def by_input(*upstream: Any) -> list[Any]:
            dys = [
                tf.zeros_like(values[place])
                if upstream[place] is None
                else tf.convert_to_tensor(upstream[place])
                for place in places
            ]
            function, slots = gradient()
            dxs = dict(zip(slots, function(*tensors, *dys), strict=True))
            return [dxs.get(slot) for slot in range(len(tensors))]

        return values, by_input

    return computed  # type: ignore[no-any-return]


def _without_keys(graph_def: Any) -> Any:
    """Take off the keys of gradients: nobody differentiates it, and saving would ask for them."""
    bodies = (graph_def.node, *(function.node_def for function in graph_def.library.function))
    for node in itertools.chain(*bodies):
        node.attr.pop(OVERRIDE, None)
    return graph_def


def _refuse_random(graph: ModelGraph) -> None:
    """Raise ModelError for a random op: computed again, it would draw other numbers."""
    for node in (node for body in graph.bodies for node in body):
        if node.opdef is not None and any(attr.name == "seed" for attr in node.opdef.attrs):
            raise ModelError(
                f"{node} is random, in a graph with v1 loops or branches: a tape computes the "
                f"graph again for the gradient, which would be that of other numbers; name its "
                f"tensor among the inputs, or differentiate the graph in a Session "
                f"(graphpatch.import_model)"
            )


def _fed_argument(tensor: ExportedTensor) -> Fed:
    shape = None if tensor.shape.unknown_rank else [dim.size for dim in tensor.shape.dim]
    sizes = None if shape is None else [None if size < 0 else size for size in shape]
    return Fed(tensor.tensor, DTYPE_NAMES[tensor.argument.type], sizes)


def _patched_ops(
    graph: ModelGraph, graph_def: Any
) -> Iterator[tuple[str, tuple[GradientFunction, int]]]:
    """Yield the patched ops of the main graph by name: the gradient, how many inputs are values.

    A call of a function of ours, which gives on its last inputs, or else its first, is made an
    IdentityN of its inputs. Keys are taken off.
    """
    nodes_by_name = {node.name: node for node in graph_def.node}
    for node, key in list(overridden_ops(graph)):
        gradient = gradient_for(key, graph, node) if node.body.is_main else None
        written = nodes_by_name.get(node.name)
        if gradient is None or written is None or written.op != node.op:
            continue  # not ours, not needed, or given as an input
        del written.attr[OVERRIDE]
        passed = 0
        if node.op in graph.library.gradients and node.op in graph.functions:
            passed = sum(name.startswith("y") for name in graph.functions[node.op].arguments)
            _make_identity(written, node, passed)
        yield f"{SCOPE}/{node.name}", (gradient, passed)


def _make_identity(written: Any, node: Node, passed: int) -> None:
    """Make a NodeDef that calls a function an IdentityN of its inputs, the last `passed` first."""
    count = len(node.data_inputs) - passed
    inputs, dtypes = list(written.input)[: count + passed], [a.dtype for a in node.arguments or ()]
    written.Clear()
    written.name, written.op = node.name, "IdentityN"
    written.input.extend([*inputs[count:], *inputs[:count]])
    numbers = [DTYPE_NUMBERS[dtype or "float32"] for dtype in (*dtypes[count:], *dtypes[:count])]
    written.attr["T"].list.type.extend(numbers)


def _with_new_gradient(op: Any, gradient: GradientFunction, passed: int) -> dict[str, Any]:
    """Let whatever reads an op read its values with another gradient; these tensors by the old."""
    inputs = [*op.inputs[passed:], *op.inputs[:passed]]
    values = list(op.outputs[: passed or None])
    readers = [
        (reader, slot, place)
        for place, value in enumerate(values)
        for reader in value.consumers()
        for slot, tensor in enumerate(reader.inputs)
        if tensor is value
    ]

    new = with_gradient(values, inputs, gradient, type=op.type, get_attr=op.get_attr)
    for reader, slot, place in readers:
        reader._update_input(slot, new[place])
    return {value.name: tensor for value, tensor in zip(values, new, strict=True)}


def rename_functions(graph_def: Any, suffix: str) -> None:
    """Let the name of each function of a tf.compat.v1.GraphDef end in `suffix`, all calls too.

    TensorFlow keeps the functions of all that runs eagerly in one library, and refuses a name that
    is there with another definition: that of the original beside the patched one, for example.
    """
    library = graph_def.library
    names = {name: f"{name}{suffix}" for name in (f.signature.name for f in library.function)}
    rename_calls(graph_def.node, names)
    for function in library.function:
        function.signature.name = names[function.signature.name]
        rename_calls(function.node_def, names)
    for gradient in library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
