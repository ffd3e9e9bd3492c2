"""The function carrier: a call that gives the op's output on, with a gradient of its own.

The op moves to `NAME/forward`, a StopGradient reads it, and a call of `attach` takes its name.
In a Session nobody need register anything; a runtime that drops the gradient raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.attach import (
    AttachedFunctions,
    attached_functions,
    filter_functions,
    guard_functions,
    guard_key,
)
from graphpatch.gradients.fits import signature
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, LibraryGradient, PythonGradient
from graphpatch.gradients.taped import passed_on, tape_functions
from graphpatch.gradients.traced_function import OpDtypes, attached_traced, filtering_traced
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.op_types import CALL
from graphpatch.patches import op_args
from graphpatch.patches.inline import InlineOp
from graphpatch.patches.isolate import isolate, keep_gradient_function
from graphpatch.patches.place import place_of
from graphpatch.patches.python_gradient import dtypes_of_filter, dtypes_of_op, traced_for_op


def functions_for(
    gradient: Computed | PythonGradient, node: Node, editor: Editor
) -> AttachedFunctions:
    """The pair of functions, put into the library where it is not there yet."""
    kept = is_kept(node, editor)
    if isinstance(gradient, PythonGradient):
        return traced_functions(gradient, dtypes_of_op(node), kept, editor)
    return computed_functions(gradient, signature(node), kept, editor)


def traced_functions(
    gradient: PythonGradient, op: OpDtypes, kept: bool, editor: Editor
) -> AttachedFunctions:
    """The pair of functions for a gradient in Python, traced for this op."""
    found = traced_for_op(gradient, op, editor)
    return _add_functions(lambda: attached_traced(found, kept), editor)


def computed_functions(
    gradient: Computed, op: Signature, kept: bool, editor: Editor
) -> AttachedFunctions:
    """The pair of functions for a formula on what has this signature, put into the library."""
    whole = gradient.formula.reads_op
    read = sorted(op.attrs) if whole else gradient.attrs
    values = tuple(str(op.attrs.get(key)) for key in read)
    shapes = (op.inputs, op.outputs, op.same_shape, op.op_type if whole else "")
    question = ("attached", gradient.key, shapes, values, kept)
    return editor.cached(
        question, lambda: _add_functions(lambda: attached_functions(gradient, op, kept), editor)
    )


def is_kept(node: Node, editor: Editor) -> bool:
    """Whether the call must be kept from being inlined.

    What a function calls that a Session differentiates as a whole, TensorFlow optimises before:
    it inlines the call and takes out what stops gradients, and the op's own gradient is used. An
    exported graph is differentiated on a tape alone.
    """
    return place_of(node, editor).ignoring is not None and not editor.graph.around.is_exported


def _add_functions(make: Callable[[], AttachedFunctions], editor: Editor) -> AttachedFunctions:
    try:
        found = make()
    except (FormulaError, ValueError) as error:
        raise PatchError(str(error)) from error
    for function in (*found.library, found.gradient):
        editor.add_function(function)
    editor.add_function(found.attach, gradient=found.gradient.signature.name)
    return found


def call_attrs(found: AttachedFunctions) -> dict[str, AttrValue]:
    """What the call carries: the key that a tape looks up before it takes the GradientDef."""
    return {attrs.OVERRIDE: attrs.text(found.key)}


def carry_by_function(gradient: Computed | PythonGradient, node: Node, editor: Editor) -> None:
    """Let the gradient of an op be this one."""
    refuse_boundary(node)
    found = functions_for(gradient, node, editor)
    attach_to(node, found, node.data_inputs, [node], editor)


def attach_to(
    node: Node,
    found: AttachedFunctions,
    read: Sequence[str],
    behind: Sequence[Node],
    editor: Editor,
    told: Sequence[str] = (),
) -> None:
    """Give the outputs of an op on by a call of `attach`, which takes its name.

    `read` are the tensors that the gradient is for, in the order of its formulas. No gradient
    reaches the ops `behind` the call any more. `told`: what a formula calls x0, x1, ..., where
    the op itself does not tell.
    """
    name, outputs = node.name, len(node.outputs or ())
    restored = is_restored(node, editor)

    def inputs(moved: Node) -> list[str]:
        taken = [_kept_apart(moved, n, read[n], found, name, editor) for n in found.read]
        if is_kept(node, editor):
            isolate(behind, lambda one: _zeros_call(one, editor), editor)
        given = [stopped_output(moved, place, name, editor) for place in range(outputs)]
        if restored:
            given = through_tape(found, name, [*taken, *given], moved, editor)
        return [*taken, *given]

    op = found.attach.signature.name
    call = editor.take_name(node, op, inputs, call_attrs(found), shadow=True, reads=told)
    keep_gradient(call, found, editor)
    editor.used("function", tape="" if restored else found.key)


def refuse_boundary(node: Node) -> None:
    """Raise PatchError for an op whose inputs and outputs are not in one place of a loop."""
    if node.op in BOUNDARIES:
        raise PatchError(
            f"{node} leads into or out of a loop or branch, and a function cannot stand for it; "
            f"filter_gradient changes what flows back through a tensor inside or outside"
        )


def _kept_apart(
    moved: Node, place: int, text: str, found: AttachedFunctions, name: str, editor: Editor
) -> str:
    """The tensor as `attach` is to read it: behind a StopGradient where it gets no gradient.

    One that gets a gradient comes through `guard` where the call of `attach` may be inlined.
    """
    arg = found.attach.signature.input_arg[found.read.index(place)]
    dtype = DTYPE_NAMES[arg.type]
    if place in found.stopped:
        typed = {"T": attrs.dtype(dtype)}
        stop = editor.add(f"{moved.name}/stop_{place}", "StopGradient", [text], typed, moved)
        return stop.tensor(0)
    if place_of(moved, editor).ignoring is not None:
        return text
    guard = editor.cached(
        ("guard", dtype), lambda: _add_functions(lambda: guard_functions(dtype), editor)
    )
    suffix, op = f"_{place}" if place else "", guard.attach.signature.name
    values = {attrs.OVERRIDE: attrs.text(guard_key(found, dtype))}
    call = editor.add(f"{name}/guard{suffix}", op, [text], values, moved)
    keep_gradient(call, guard, editor)
    return call.tensor(0)


def stopped_output(moved: Node, output: int, name: str, editor: Editor) -> str:
    """An output of an op that made room, behind a StopGradient named after the op."""
    typed = {"T": attrs.dtype(op_args.known_outputs(moved)[output].dtype or "")}
    suffix = f"_{output}" if output else ""
    stop = editor.add(f"{name}/stop{suffix}", "StopGradient", [moved.tensor(output)], typed, moved)
    return stop.tensor(0)


def keep_gradient(call: Node, found: AttachedFunctions, editor: Editor) -> None:
    """In the body of a While, If or Case, keep the gradient function of a call of `attach`."""
    outputs = len(found.attach.signature.output_arg)
    keep_gradient_function(call, found.gradient.signature.name, call.inputs[-outputs:], editor)


def _zeros_call(node: Node, editor: Editor) -> tuple[InlineOp, Callable[[Node], None]]:
    """A call that gives a tensor on, and zeros back; what keeps its gradient function."""
    inline, functions = filter_inline(LibraryGradient("zero"), node, editor)
    return inline, lambda call: keep_gradient(call, functions[call.op], editor)


def filter_inline(
    gradient: Computed | PythonGradient, node: Node, editor: Editor
) -> tuple[InlineOp, dict[str, AttachedFunctions]]:
    """A call in line with a tensor of `node`: gives it on, and filters what flows back.

    The functions that it came to use are found in the second value, by the op type of the call.
    """
    functions: dict[str, AttachedFunctions] = {}
    kept = is_kept(node, editor)

    def of(dtype: str) -> tuple[str, dict[str, AttrValue]]:
        found = _filtering(gradient, dtype, node, kept, editor)
        functions[found.attach.signature.name] = found
        editor.used("function", tape=found.key)
        return found.attach.signature.name, call_attrs(found)

    return InlineOp("filter", of), functions


def _filtering(
    gradient: Computed | PythonGradient, dtype: str, node: Node, kept: bool, editor: Editor
) -> AttachedFunctions:
    if isinstance(gradient, PythonGradient):
        found = traced_for_op(gradient, dtypes_of_filter(node, dtype), editor)
        return _add_functions(lambda: filtering_traced(found, kept), editor)
    question = ("filter", gradient.key, dtype, kept)
    return editor.cached(
        question, lambda: _add_functions(lambda: filter_functions(gradient, dtype, kept), editor)
    )


def is_restored(node: Node, editor: Editor) -> bool:
    """Whether an op is in a function that tf.saved_model.load restores."""
    graph = editor.graph
    return graph.around.is_object_based and (graph.around.is_exported or not node.body.is_main)


def through_tape(
    found: AttachedFunctions, name: str, arguments: Sequence[str], moved: Node, editor: Editor
) -> list[str]:
    """The outputs of the op as `attach` is to read them: through a call of `tape`.

    Between what `attach` gives on and the op stands a call of `tape`. A Session sees `attach`
    alone, and zeros behind it; on a tape `attach` passes the gradient on to the call, which has the
    new one.
    """
    functions = editor.cached(("taped", found.key), lambda: tape_functions(found))
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
