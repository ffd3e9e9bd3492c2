"""The function carrier: a call that gives the op's output on, with a gradient of its own.

The op moves to `NAME/forward`, a StopGradient reads it, and a call of `attach` takes its name.
In a Session nobody need register anything; a runtime that drops the gradient raises.

Behind it, where a Session differentiates the function that the op is in as a whole, a StopGradient
passes zeros on, and TensorFlow asks for the gradients of the ops behind it. Nothing may flow back
into them, not even zeros: there may be no gradient, and of zeros it may be NaN (0 times infinity).
So each is put into a function of its own, whose gradient in the library is zeros.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from graphpatch import names
from graphpatch.above import FromAbove
from graphpatch.dtypes import DTYPE_NAMES, HANDLES
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.attach import (
    AttachedFunctions,
    OpDtypes,
    TracedFunction,
    attached_functions,
    attached_traced,
    filter_functions,
    filtering_traced,
    guard_functions,
    guard_key,
    passed_on,
    tape_functions,
)
from graphpatch.gradients.fits import signature
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, LibraryGradient, PythonGradient
from graphpatch.graph import attrs
from graphpatch.graph.attrs import DTYPE_NUMBERS, OUTPUT_SHAPES
from graphpatch.graph.editor import Editor
from graphpatch.graph.functions import NO_INLINE
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALL, OPTIONAL_PLACEHOLDER
from graphpatch.graph.record import PROVENANCE_ATTR
from graphpatch.graph.wire import piece_bytes
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args
from graphpatch.patches.at import InlineOp, on_inputs
from graphpatch.patches.reach import differentiated_as_whole, place_of, refuse_boundary
from graphpatch.protos import AttrValue, FunctionDef, NodeDef, TensorProto, TensorShapeProto

trace: FromAbove[[str, OpDtypes], TracedFunction] = FromAbove("trace")


def traced_for_op(gradient: PythonGradient, op: OpDtypes, editor: Editor) -> TracedFunction:
    """The gradient function for one op; what TensorFlow 1.15 does not know of it is noted."""
    traced = trace(gradient.path, op)
    if traced.newer:
        editor.note(
            f"{gradient.path} uses ops that TensorFlow 1.15 does not know: "
            f"{', '.join(traced.newer)}; the file loads in TensorFlow 2 alone"
        )
    return traced


def dtypes_of_op(node: Node) -> OpDtypes:
    """Return an op as its gradient function sees it."""
    inputs, outputs = (
        _known_dtypes(node, flat)
        for flat in (op_args.known_inputs(node), op_args.known_outputs(node))
    )
    return OpDtypes(node.op, node.name, inputs, outputs, node.attrs(), node.device)


def dtypes_of_filter(node: Node, dtype: str) -> OpDtypes:
    """Return the op in line with a tensor of `node`, which gives it on."""
    values = {"T": attrs.dtype(dtype)}
    return OpDtypes("Identity", node.name, (dtype,), (dtype,), values, node.device)


def _known_dtypes(node: Node, flat: Sequence[FlatArg]) -> tuple[str, ...]:
    for arg in flat:
        if arg.dtype is None:
            raise PatchError(f"{node}: {arg.name} {op_args.why_not(arg)}")
    return tuple(arg.dtype or "" for arg in flat)


# Ops that have a gradient in functions, of which the gradient of zeros is zeros.
HARMLESS = frozenset({"Identity", "Relu", "Relu6", "Sigmoid", "Tanh"})

# Ops that oneDNN computes where calls are inlined, not quite to the same bits as TensorFlow's own
# kernels. These have a gradient in functions,
IN_PLACE = frozenset(
    "AvgPool BatchMatMul BatchMatMulV2 Concat ConcatV2 Conv2D MatMul MaxPool Softmax"
    " Transpose".split()
)
# and these have none.
IMMOVABLE = frozenset(
    "AvgPool3D Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2"
    " Conv3DBackpropInputV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter"
    " DepthwiseConv2dNativeBackpropInput Einsum FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"
    " MaxPool3D".split()
)

# Ops that TensorFlow computes together with others, as oneDNN does with Mul(x, Sigmoid(x)), to
# other bits than one by one. They have a gradient in functions.
FUSED = frozenset({"Add", "AddV2", "Maximum", "Mul", "Sub"})


def needs_none(node: Node) -> bool:
    """Whether zeros may flow back into an op, as they do no harm or cannot be kept from it."""
    flat = [*(node.arguments or []), *(node.outputs or [])]
    opaque = any(arg.is_ref or arg.dtype is None or arg.dtype in HANDLES for arg in flat)
    return opaque or node.op in HARMLESS or not any(map(op_args.carries, node.arguments or []))


def enclose(node: Node, editor: Editor) -> str:
    """Let an op be a call of a function that does what it did; the name of its gradient function.

    Raises PatchError for an op that would not give the same bits there.
    """
    if node.op in IMMOVABLE:
        raise PatchError(
            f"{node}: TensorFlow has no gradient of {node.op} in a function that a Session "
            f"differentiates as a whole, and asks for it even where it is overridden; inline the "
            f'function into the main graph first ("body": "main" leaves functions out)'
        )
    inputs, outputs = node.arguments or [], node.outputs or []
    function = _single_op_function(node, inputs, outputs)
    zeros = _zeros_gradient(function)
    editor.add_function(zeros)
    editor.add_function(function, gradient=zeros.signature.name)
    editor.become(node, function.signature.name)
    return str(zeros.signature.name)


def _single_op_function(
    node: Node, inputs: Sequence[FlatArg], outputs: Sequence[FlatArg]
) -> FunctionDef:
    function = FunctionDef()
    function.attr[NO_INLINE].b = True
    function.signature.is_stateful = node.opdef is not None and node.opdef.stateful
    for place, arg in enumerate(inputs):
        function.signature.input_arg.add(name=f"x{place}", type=DTYPE_NUMBERS[arg.dtype or ""])
    for place, arg in enumerate(outputs):
        function.signature.output_arg.add(name=f"y{place}", type=DTYPE_NUMBERS[arg.dtype or ""])
        function.ret[f"y{place}"] = f"op:{arg.name}:{arg.index}"
    names = [arg.name for arg in function.signature.input_arg]
    function.node_def.append(_untied(node, names))
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{node.op}_{content}"
    return function


def _untied(node: Node, inputs: Sequence[str]) -> NodeDef:
    """Return the op itself, without what ties it to the ops around it."""
    untied = NodeDef.FromString(b"".join(map(piece_bytes, node.body.payload(node.index))))
    untied.name, untied.input[:] = "op", inputs
    for key in ("_class", OUTPUT_SHAPES, PROVENANCE_ATTR):
        untied.attr.pop(key, None)
    return untied


def _zeros_gradient(function: FunctionDef) -> FunctionDef:
    """Return the gradient function (x..., dy...) -> zeros like x..."""
    zeros, forward = FunctionDef(), function.signature
    zeros.signature.name = f"{forward.name}_gradient"
    zeros.signature.input_arg.extend(forward.input_arg)
    for arg in forward.output_arg:
        zeros.signature.input_arg.add(name=f"d{arg.name}", type=arg.type)
    for arg in forward.input_arg:
        zeros.signature.output_arg.add(name=f"d{arg.name}", type=arg.type)
        node = NodeDef(name=f"zeros/{arg.name}", op="ZerosLike", input=[arg.name])
        node.attr["T"].type = arg.type
        zeros.node_def.append(node)
        zeros.ret[f"d{arg.name}"] = f"{node.name}:y:0"
    return zeros


Zeros = Callable[[Node], tuple[InlineOp, Callable[[Node], None]]]
"""Of an op: a call that gives a tensor on, and zeros back; what is to be done with each call."""


def isolate(behind: Sequence[Node], zeros: Zeros, editor: Editor) -> None:
    """Let nothing flow back into these ops, which are behind one carrier.

    On a tape, for which a TF2 SavedModel is meant, a StopGradient stops.
    """
    ops = [node for node in behind if node.data_inputs]
    if not editor.graph.around.is_object_based and _may_be_fused(ops):
        _wrap_inputs(ops, zeros, editor)
        return
    for node in behind:
        if not needs_none(node):
            _enclosed_alone(node, zeros, editor)


def _may_be_fused(ops: Sequence[Node]) -> bool:
    """Whether TensorFlow may compute several ops as one, whose bits are not those of the ops."""
    types = {node.op for node in ops}
    return len(ops) > 1 and bool(types & FUSED) and types <= FUSED | HARMLESS


def _wrap_inputs(ops: Sequence[Node], zeros: Zeros, editor: Editor) -> None:
    """Put one call before each tensor that they read from outside; they stay as they are."""
    inside, calls = {node.name for node in ops}, dict[str, str]()
    inline, keep_it = zeros(ops[-1])
    for node in ops:
        for slot, (text, arg) in enumerate(
            zip(node.data_inputs, op_args.known_inputs(node), strict=True)
        ):
            tensor = str(names.parse(text))
            if names.op_of(text) in inside or not op_args.carries(arg) or _is_source(node, slot):
                continue
            if tensor not in calls:
                name = f"{node.name}/{inline.suffix}_{slot}"
                op, values = inline.of(arg.dtype or "")
                call = editor.add(name, op, [text], values, beside=node, before=True)
                keep_it(call)
                calls[tensor] = call.tensor(0)
            editor.set_input(node, slot, calls[tensor])


def _enclosed_alone(node: Node, zeros: Zeros, editor: Editor) -> None:
    if editor.graph.around.is_object_based:
        editor.note(
            f"function {node.body.label}: a Session, unlike a tape, asks for {node.op}'s own "
            f"gradient too, of zeros; that fails where TensorFlow has none in functions, and "
            f"spoils the new one where it is infinite"
        )
        return
    if node.op in IN_PLACE:
        inline, keep_it = zeros(node)
        for slot in range(len(node.data_inputs)):
            for call in () if _is_source(node, slot) else on_inputs(node, editor, inline, slot):
                keep_it(call)
        return
    gradient = enclose(node, editor)
    outputs = [node.tensor(output) for output in range(len(node.outputs or ()))]
    keep_gradient_function(node, gradient, outputs, editor)


def _is_source(node: Node, slot: int) -> bool:
    """Whether the op reads a constant or the like there, which takes no gradient in a function."""
    producer = node.body.producer(node.data_inputs[slot])
    return producer is not None and op_args.is_source(producer)


def keep_gradient_function(
    call: Node, gradient: str, upstream: Sequence[str], editor: Editor
) -> None:
    """Keep the gradient function of the function that `call` calls with the body it is in.

    `upstream` are tensors like the upstream gradients. Where the body is differentiated as a whole,
    too, the unread call must read nothing of it: SymbolicGradient of 1.15 would wait for what flows
    back through the call, and silently give no gradient.

    TensorFlow 2 copies with the body of a While, If or Case only the functions that it calls as
    ops. So the body calls a gradient function once, and nobody reads what it gives; it never runs.
    """
    place = place_of(call, editor)
    if not place.op_by_op:
        return
    question = ("kept", call.body.label, gradient)

    def add() -> Node:
        shared = place.ignoring is not None
        inputs = _stand_ins(call, gradient, editor) if shared else [*call.data_inputs, *upstream]
        return editor.add(f"{call.name}/gradient", gradient, inputs, {}, call)

    editor.cached(question, add)


def _stand_ins(call: Node, gradient: str, editor: Editor) -> list[str]:
    """Return a tensor of no known shape for each input of the gradient function."""
    dtypes = [arg.dtype for arg in editor.graph.library.signatures[gradient].inputs]
    made = {dtype: _placeholder_with_zero(call, dtype, editor) for dtype in dict.fromkeys(dtypes)}
    return [made[dtype] for dtype in dtypes]


def _placeholder_with_zero(call: Node, dtype: str, editor: Editor) -> str:
    typed = {"dtype": attrs.dtype(dtype)}
    zero = AttrValue(tensor=TensorProto(dtype=typed["dtype"].type, tensor_shape=TensorShapeProto()))
    name = f"{call.name}/{dtype}"
    value = editor.add(f"{name}/value", "Const", [], {**typed, "value": zero}, call)
    unknown = AttrValue(shape=TensorShapeProto(unknown_rank=True))
    values = {**typed, "shape": unknown}
    return editor.add(name, OPTIONAL_PLACEHOLDER, [value.tensor(0)], values, call).tensor(0)


def functions_for(
    gradient: Computed | PythonGradient, node: Node, editor: Editor
) -> AttachedFunctions:
    """Return the pair of functions, put into the library where it is not there yet."""
    is_kept = differentiated_as_whole(node, editor)
    if isinstance(gradient, PythonGradient):
        return traced_functions(gradient, dtypes_of_op(node), is_kept, editor)
    return computed_functions(gradient, signature(node), is_kept, editor)


def traced_functions(
    gradient: PythonGradient, op: OpDtypes, is_kept: bool, editor: Editor
) -> AttachedFunctions:
    """Return the pair of functions for a gradient in Python, traced for this op."""
    traced = traced_for_op(gradient, op, editor)
    return _add_functions(lambda: attached_traced(traced, is_kept), editor)


def computed_functions(
    gradient: Computed, op: Signature, is_kept: bool, editor: Editor
) -> AttachedFunctions:
    """The pair of functions for a formula on what has this signature, put into the library."""
    whole = gradient.formula.reads_op
    read = sorted(op.attrs) if whole else gradient.attrs
    values = tuple(str(op.attrs.get(key)) for key in read)
    shapes = (op.inputs, op.outputs, op.same_shape, op.op_type if whole else "")
    question = ("attached", gradient.key, shapes, values, is_kept)
    return editor.cached(
        question, lambda: _add_functions(lambda: attached_functions(gradient, op, is_kept), editor)
    )


def _add_functions(make: Callable[[], AttachedFunctions], editor: Editor) -> AttachedFunctions:
    try:
        functions = make()
    except (FormulaError, ValueError) as error:
        raise PatchError(str(error)) from error
    for function in (*functions.library, functions.gradient):
        editor.add_function(function)
    editor.add_function(functions.attach, gradient=functions.gradient.signature.name)
    return functions


def call_attrs(functions: AttachedFunctions) -> dict[str, AttrValue]:
    """What the call carries: the key that a tape looks up before it takes the GradientDef."""
    return {attrs.OVERRIDE: attrs.text(functions.key)}


def carry_by_function(gradient: Computed | PythonGradient, node: Node, editor: Editor) -> None:
    """Let the gradient of an op be this one."""
    refuse_boundary(node)
    functions = functions_for(gradient, node, editor)
    attach_to(node, functions, node.data_inputs, [node], editor)


def attach_to(
    node: Node,
    functions: AttachedFunctions,
    read: Sequence[str],
    behind: Sequence[Node],
    editor: Editor,
    noted: Sequence[str] = (),
) -> None:
    """Give the outputs of an op on by a call of `attach`, which takes its name.

    `read` are the tensors that the gradient is for, in the order of its formulas. No gradient
    reaches the ops `behind` the call any more. `told`: what a formula calls x0, x1, ..., where
    the op itself does not tell.
    """
    name, outputs = node.name, len(node.outputs or ())
    restored = is_restored(node, editor)

    def inputs(moved: Node) -> list[str]:
        taken = [_kept_apart(moved, n, read[n], functions, name, editor) for n in functions.read]
        if differentiated_as_whole(node, editor):
            isolate(behind, lambda tensor: _zeros_call(tensor, editor), editor)
        outputs_read = [stopped_output(moved, place, name, editor) for place in range(outputs)]
        if restored:
            outputs_read = through_tape(functions, name, [*taken, *outputs_read], moved, editor)
        return [*taken, *outputs_read]

    op = functions.attach.signature.name
    call = editor.take_name(node, op, inputs, call_attrs(functions), shadow=True, reads=noted)
    keep_gradient(call, functions, editor)
    editor.used("function", tape="" if restored else functions.key)


def _kept_apart(
    moved: Node, place: int, text: str, functions: AttachedFunctions, name: str, editor: Editor
) -> str:
    """Return the tensor as `attach` is to read it: behind a StopGradient where it gets no gradient.

    One that gets a gradient comes through `guard` where the call of `attach` may be inlined.
    """
    arg = functions.attach.signature.input_arg[functions.read.index(place)]
    dtype = DTYPE_NAMES[arg.type]
    if place in functions.stopped:
        typed = {"T": attrs.dtype(dtype)}
        stop = editor.add(f"{moved.name}/stop_{place}", "StopGradient", [text], typed, moved)
        return stop.tensor(0)
    if place_of(moved, editor).ignoring is not None:
        return text
    guard = editor.cached(
        ("guard", dtype), lambda: _add_functions(lambda: guard_functions(dtype), editor)
    )
    suffix, op = f"_{place}" if place else "", guard.attach.signature.name
    values = {attrs.OVERRIDE: attrs.text(guard_key(functions, dtype))}
    call = editor.add(f"{name}/guard{suffix}", op, [text], values, moved)
    keep_gradient(call, guard, editor)
    return call.tensor(0)


def stopped_output(moved: Node, output: int, name: str, editor: Editor) -> str:
    """Return an output of an op that made room, behind a StopGradient named after the op."""
    typed = {"T": attrs.dtype(op_args.known_outputs(moved)[output].dtype or "")}
    suffix = f"_{output}" if output else ""
    stop = editor.add(f"{name}/stop{suffix}", "StopGradient", [moved.tensor(output)], typed, moved)
    return stop.tensor(0)


def keep_gradient(call: Node, functions: AttachedFunctions, editor: Editor) -> None:
    """In the body of a While, If or Case, keep the gradient function of a call of `attach`."""
    outputs = len(functions.attach.signature.output_arg)
    keep_gradient_function(call, functions.gradient.signature.name, call.inputs[-outputs:], editor)


def _zeros_call(node: Node, editor: Editor) -> tuple[InlineOp, Callable[[Node], None]]:
    """Return a call that gives a tensor on, and zeros back; what keeps its gradient function."""
    inline, functions = filter_inline(LibraryGradient("zero"), node, editor)
    return inline, lambda call: keep_gradient(call, functions[call.op], editor)


def filter_inline(
    gradient: Computed | PythonGradient, node: Node, editor: Editor
) -> tuple[InlineOp, dict[str, AttachedFunctions]]:
    """Return a call in line with a tensor of `node`: gives it on, and filters what flows back.

    The functions that it came to use are found in the second value, by the op type of the call.
    """
    functions: dict[str, AttachedFunctions] = {}
    is_kept = differentiated_as_whole(node, editor)

    def of(dtype: str) -> tuple[str, dict[str, AttrValue]]:
        filtering = _filtering(gradient, dtype, node, is_kept, editor)
        functions[filtering.attach.signature.name] = filtering
        editor.used("function", tape=filtering.key)
        return filtering.attach.signature.name, call_attrs(filtering)

    return InlineOp("filter", of), functions


def _filtering(
    gradient: Computed | PythonGradient, dtype: str, node: Node, is_kept: bool, editor: Editor
) -> AttachedFunctions:
    if isinstance(gradient, PythonGradient):
        traced = traced_for_op(gradient, dtypes_of_filter(node, dtype), editor)
        return _add_functions(lambda: filtering_traced(traced, is_kept), editor)
    question = ("filter", gradient.key, dtype, is_kept)
    return editor.cached(
        question, lambda: _add_functions(lambda: filter_functions(gradient, dtype, is_kept), editor)
    )


def is_restored(node: Node, editor: Editor) -> bool:
    """Return whether an op is in a function that tf.saved_model.load restores."""
    graph = editor.graph
    return graph.around.is_object_based and (graph.around.is_exported or not node.body.is_main)


def through_tape(
    attached: AttachedFunctions, name: str, arguments: Sequence[str], moved: Node, editor: Editor
) -> list[str]:
    """Return the outputs of the op as `attach` is to read them: through a call of `tape`.

    Between what `attach` gives on and the op stands a call of `tape`. A Session sees `attach`
    alone, and zeros behind it; on a tape `attach` passes the gradient on to the call, which has the
    new one.
    """
    functions = editor.cached(("taped", attached.key), lambda: tape_functions(attached))
    editor.add_function(functions.tape)
    for gradient in (functions.gradient, functions.passing):
        editor.add_restored(gradient)
    signature = functions.tape.signature
    values = {
        "f": attrs.function(signature.name),
        "Tin": attrs.dtypes([DTYPE_NAMES[arg.type] for arg in signature.input_arg]),
        "Tout": attrs.dtypes([DTYPE_NAMES[arg.type] for arg in signature.output_arg]),
    }
    call = editor.add(f"{name}/tape", CALL, arguments, values, moved)
    return [_passed_output(call, place, name, editor) for place in range(len(signature.output_arg))]


def _passed_output(call: Node, output: int, name: str, editor: Editor) -> str:
    """The output of the call, by an op that stops gradients in a Session and none on a tape."""
    arg = op_args.known_outputs(call)[output]
    if not op_args.carries(arg):
        return call.tensor(output)
    typed = attrs.dtype(arg.dtype or "")
    gradient = passed_on(typed.type)
    editor.add_restored(gradient)
    values = {"T": typed, attrs.OVERRIDE: attrs.text(gradient.key)}
    suffix = f"_{output}" if output else ""
    passed = editor.add(f"{name}/pass{suffix}", "StopGradient", [call.tensor(output)], values, call)
    return passed.tensor(0)
