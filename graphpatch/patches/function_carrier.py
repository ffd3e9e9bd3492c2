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
from dataclasses import replace
from functools import partial

from graphpatch import names
from graphpatch.differentiation.flow import carries
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.attach import (
    AttachedFunctions,
    GradientFunction,
    OpDtypes,
    attached,
    computed_gradient,
    guard_gradient,
    guard_key,
    passed_on,
    tape_functions,
)
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import function_def, typed_node
from graphpatch.gradients.spec import Computed, LibraryGradient, PythonGradient
from graphpatch.graph import attrs
from graphpatch.graph.attrs import DTYPE_NUMBERS, OUTPUT_SHAPES
from graphpatch.graph.functions import NO_INLINE
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALL, OPTIONAL_PLACEHOLDER
from graphpatch.graph.record import PROVENANCE_ATTR
from graphpatch.graph.wire import piece_bytes
from graphpatch.later import FromLater
from graphpatch.opdefs import DTYPE_NAMES, HANDLES
from graphpatch.patches.editing import MovedOp, RuleEditor, numbered, typed
from graphpatch.patches.target import Target, dtypes_of, is_source, known_inputs, known_outputs
from graphpatch.protos import AttrValue, NodeDef, TensorProto, TensorShapeProto

trace: FromLater[[str, OpDtypes], GradientFunction] = FromLater("trace")

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


# The functions of a gradient, put into the library where they are not there yet.


def gradient_functions(
    gradient: Computed | PythonGradient,
    target: Target,
    editor: RuleEditor,
    op: Signature | None = None,
    is_filter: bool = False,
) -> AttachedFunctions:
    """Return the pair of functions for a gradient of a target, of what has the signature `op`.

    Default: the target's own. One in Python is traced for each target; it sees a match under the
    name and type of its last op.
    """
    node, is_kept = target.last, editor.is_differentiated_whole(target.last)
    if isinstance(gradient, PythonGradient):
        dtypes = dtypes_of(target, target.inputs), dtypes_of(target, target.outputs)
        values = {} if target.is_match else node.attrs()
        traced = OpDtypes(node.op, node.name, *dtypes, values, node.device)
        make = partial(_traced, gradient, traced, editor)
        return _added(make, str(target), editor, is_kept, is_filter)
    signature, formula = op or target.signature, gradient.formula
    read = sorted(signature.attrs if formula.reads_op else formula.attrs)
    values_read = tuple(str(signature.attrs.get(key)) for key in read)
    shapes = replace(signature, attrs={}, op_type=signature.op_type if formula.reads_op else "")
    make = partial(computed_gradient, gradient, signature)
    return editor.cached(
        ("attached", gradient.key, shapes, values_read, is_kept, is_filter),
        partial(_added, make, str(target), editor, is_kept, is_filter),
    )


def become_filter(gradient: Computed | PythonGradient, target: Target, editor: RuleEditor) -> None:
    """Let an Identity be a call that gives its tensor on, and filters what flows back."""
    node = target.last
    (dtype,) = dtypes_of(target, known_outputs(node))
    op = Signature.of_tensor(dtype)
    functions = gradient_functions(gradient, target, editor, op, is_filter=True)
    shapes = node.attr(OUTPUT_SHAPES)
    editor.become(node, functions.attach.signature.name)
    editor.set_attr(node, attrs.OVERRIDE, attrs.text(functions.key))
    if shapes is not None:
        editor.set_attr(node, OUTPUT_SHAPES, shapes)
    _keep_gradient(node, functions, editor)
    editor.report.used("function", tape=functions.key)


def _traced(gradient: PythonGradient, op: OpDtypes, editor: RuleEditor) -> GradientFunction:
    """Return the gradient function for one op; what TensorFlow 1.15 does not know is noted."""
    traced = trace(gradient.path, op)
    if traced.newer:
        editor.report.note(
            f"{gradient.path} uses ops that TensorFlow 1.15 does not know: "
            f"{', '.join(traced.newer)}; the file loads in TensorFlow 2 alone"
        )
    return traced


def _added(
    make: Callable[[], GradientFunction],
    named: str,
    editor: RuleEditor,
    is_kept: bool,
    is_filter: bool = False,
) -> AttachedFunctions:
    """Return the functions that carry what is made, in the library.

    Raises PatchError for faults, which names the target so.
    """
    try:
        functions = attached(make(), is_kept, is_filter)
    except (FormulaError, ValueError) as error:
        raise PatchError(f"{named}: {error}") from error
    for function in (*functions.library, functions.gradient):
        editor.add_function(function)
    editor.add_function(functions.attach, gradient=functions.gradient.signature.name)
    return functions


# The call that takes the name of an op.


def attach(
    target: Target, functions: AttachedFunctions, editor: RuleEditor, read: Sequence[str]
) -> None:
    """Give the outputs of a target on by a call of `attach`, which takes the name of its last op.

    `read` are the tensors that the gradient is for, in the order of its formulas.
    """
    node = target.last
    moved, is_restored = MovedOp(node, editor), editor.is_restored(node)
    taken = [_argument(moved, n, read[n], functions) for n in functions.read]
    if editor.is_differentiated_whole(node):
        _isolate(target.nodes, editor)
    outputs = [moved.stopped(output) for output in range(len(moved.outputs))]
    if is_restored:
        outputs = _through_tape(functions, [*taken, *outputs], moved)
    op, values = functions.attach.signature.name, {attrs.OVERRIDE: attrs.text(functions.key)}
    call = moved.take_name(op, [*taken, *outputs], values)
    editor.shadow(node)
    _keep_gradient(call, functions, editor)
    editor.report.used("function", tape="" if is_restored else functions.key)


def _argument(moved: MovedOp, place: int, text: str, functions: AttachedFunctions) -> str:
    """Return the tensor as `attach` is to read it: behind a StopGradient where it gets no gradient.

    One that gets a gradient comes through `guard` where the call of `attach` may be inlined.
    """
    node, editor = moved.node, moved.editor
    arg = functions.attach.signature.input_arg[functions.read.index(place)]
    dtype = DTYPE_NAMES[arg.type]
    if place in functions.stopped:
        return editor.put_op(f"{node.name}/stop_{place}", "StopGradient", [text], dtype, node)
    if editor.bodies.place_of(node).ignoring is not None:
        return text
    named = f"{node.op} {moved.name!r}"
    guard = editor.cached(
        ("guard", dtype),
        lambda: _added(partial(guard_gradient, dtype), named, editor, False, is_filter=True),
    )
    values = {attrs.OVERRIDE: attrs.text(guard_key(functions, dtype))}
    op = guard.attach.signature.name
    call = editor.add(f"{moved.name}/guard{numbered(place)}", op, [text], values, node)
    _keep_gradient(call, guard, editor)
    return call.tensor(0)


def _through_tape(attached: AttachedFunctions, inputs: Sequence[str], moved: MovedOp) -> list[str]:
    """Return the outputs of the op as `attach` is to read them: through a call of `tape`.

    Between what `attach` gives on and the op stands a call of `tape`. A Session sees `attach`
    alone, and zeros behind it; on a tape `attach` passes the gradient on to the call, which has the
    new one. Each output of the call comes by an op that stops gradients in a Session alone.
    """
    editor = moved.editor
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
    call = editor.add(f"{moved.name}/tape", CALL, inputs, values, moved.node)
    texts = [call.tensor(output) for output in range(len(signature.output_arg))]
    for output, arg in enumerate(known_outputs(call)):
        if carries(arg):
            passed = passed_on(DTYPE_NUMBERS[arg.dtype or ""])
            editor.add_restored(passed)
            name, text = f"{moved.name}/pass{numbered(output)}", [texts[output]]
            texts[output] = editor.put_op(name, "StopGradient", text, arg.dtype, call, passed.key)
    return texts


# Gradient functions in the bodies of While, If and Case.


def _keep_gradient(call: Node, functions: AttachedFunctions, editor: RuleEditor) -> None:
    """Keep the gradient function of a call of `attach` in the body of a While, If or Case."""
    outputs = len(functions.attach.signature.output_arg)
    _keep_function(call, functions.gradient.signature.name, call.inputs[-outputs:], editor)


def _keep_function(call: Node, gradient: str, upstream: Sequence[str], editor: RuleEditor) -> None:
    """Keep the gradient function of the function that `call` calls with the body it is in.

    TensorFlow 2 copies with the body of a While, If or Case only the functions that it calls as
    ops. So the body calls a gradient function once, and nobody reads what it gives; it never runs.
    `upstream` are tensors like the upstream gradients. Where the body is differentiated as a whole,
    too, the unread call must read nothing of it: SymbolicGradient of 1.15 would wait for what flows
    back through the call, and silently give no gradient. It reads tensors of no known shape.
    """
    place, body = editor.bodies.place_of(call), call.body
    if not place.op_by_op:
        return

    def stand_in(dtype: str) -> str:
        of_dtype, name = attrs.dtype(dtype), f"{call.name}/{dtype}"
        scalar = TensorProto(dtype=of_dtype.type, tensor_shape=TensorShapeProto())
        zero = {"dtype": of_dtype, "value": AttrValue(tensor=scalar)}
        value = editor.add(f"{name}/value", "Const", [], zero, call)
        unknown = AttrValue(shape=TensorShapeProto(unknown_rank=True))
        values = {"dtype": of_dtype, "shape": unknown}
        return editor.add(name, OPTIONAL_PLACEHOLDER, [value.tensor(0)], values, call).tensor(0)

    def call_gradient() -> None:
        inputs = [*call.data_inputs, *upstream]
        if place.ignoring is not None:
            signature = editor.graph.library.signatures[gradient]
            dtypes = [arg.dtype or "" for arg in signature.inputs]
            made = {dtype: stand_in(dtype) for dtype in dict.fromkeys(dtypes)}
            inputs = [made[dtype] for dtype in dtypes]
        editor.add(f"{call.name}/gradient", gradient, inputs, {}, call)

    editor.cached(("kept", body.label, gradient), call_gradient)


# What lies behind a carrier where a Session differentiates the function as a whole.


def _isolate(behind: Sequence[Node], editor: RuleEditor) -> None:
    """Let nothing flow back into these ops, which are behind one carrier.

    On a tape, for which a TF2 SavedModel is meant, a StopGradient stops. TensorFlow may compute
    several ops as one, whose bits are not those of the ops: they stay as they are, and one call
    that gives zeros back stands before each tensor that they read from outside.
    """
    ops = [node for node in behind if node.data_inputs]
    types = {node.op for node in ops}
    is_object_based = editor.graph.around.is_object_based
    if not is_object_based and len(ops) > 1 and types & FUSED and types <= FUSED | HARMLESS:
        _zero_inputs(ops, editor)
        return
    for node in behind:
        flat = [*(node.arguments or []), *(node.outputs or [])]
        is_opaque = any(arg.is_ref or arg.dtype is None or arg.dtype in HANDLES for arg in flat)
        if is_opaque or node.op in HARMLESS or not any(map(carries, node.arguments or [])):
            continue  # zeros do no harm, or cannot be kept from it
        if is_object_based:
            editor.report.note(
                f"function {node.body.label}: a Session, unlike a tape, asks for {node.op}'s own "
                f"gradient too, of zeros; that fails where TensorFlow has none in functions, and "
                f"spoils the new one where it is infinite"
            )
        elif node.op in IN_PLACE:
            _zero_inputs([node], editor)
        else:
            _enclose(node, editor)


def _zero_inputs(ops: Sequence[Node], editor: RuleEditor) -> None:
    """Put one call that gives zeros back before each tensor that ops read from outside."""
    inside, calls = {node.name for node in ops}, dict[str, str]()
    for node in ops:
        for slot, (text, arg) in enumerate(zip(node.data_inputs, known_inputs(node), strict=True)):
            tensor, producer = str(names.parse(text)), node.body.producer(text)
            # A constant or the like takes no gradient in a function.
            is_constant = producer is not None and is_source(producer)
            if names.op_of(text) in inside or not carries(arg) or is_constant:
                continue
            if tensor not in calls:
                name = f"{node.name}/filter_{slot}"
                call = editor.add(name, "Identity", [text], typed(arg.dtype), node, before=True)
                become_filter(LibraryGradient("zero"), Target.of(call), editor)
                calls[tensor] = call.tensor(0)
            editor.set_input(node, slot, calls[tensor])


def _enclose(node: Node, editor: RuleEditor) -> None:
    """Let an op be a call of a function that does what it did, with a gradient of zeros.

    Raises PatchError for an op that would not give the same bits there.
    """
    if node.op in IMMOVABLE:
        raise PatchError(
            f"{node}: TensorFlow has no gradient of {node.op} in a function that a Session "
            f"differentiates as a whole, and asks for it even where it is overridden; inline the "
            f'function into the main graph first ("body": "main" leaves functions out)'
        )
    xs = [(f"x{n}", DTYPE_NUMBERS[arg.dtype or ""]) for n, arg in enumerate(node.arguments or [])]
    flat = node.outputs or []
    # The op itself, without what ties it to the ops around it.
    untied = NodeDef.FromString(b"".join(map(piece_bytes, node.body.payload(node.index).pieces)))
    untied.name, untied.input[:] = "op", [name for name, _ in xs]
    for key in ("_class", OUTPUT_SHAPES, PROVENANCE_ATTR):
        untied.attr.pop(key, None)
    ys = [
        (f"y{n}", DTYPE_NUMBERS[arg.dtype or ""], f"op:{arg.name}:{arg.index}")
        for n, arg in enumerate(flat)
    ]
    function = function_def("", xs, [untied], ys)
    function.attr[NO_INLINE].b = True
    function.signature.is_stateful = node.opdef is not None and node.opdef.stateful
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    name = function.signature.name = f"graphpatch_{node.op}_{content}"
    zeros = function_def(
        f"{name}_gradient",
        [*xs, *((f"d{y}", dtype) for y, dtype, _ in ys)],
        [typed_node(f"zeros/{x}", "ZerosLike", [x], dtype) for x, dtype in xs],
        [(f"d{x}", dtype, f"zeros/{x}:y:0") for x, dtype in xs],
    )
    editor.add_function(zeros)
    editor.add_function(function, gradient=zeros.signature.name)
    editor.become(node, name)
    outputs = [node.tensor(output) for output in range(len(flat))]
    _keep_function(node, zeros.signature.name, outputs, editor)
