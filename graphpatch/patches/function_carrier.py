"""The function carrier: a call that gives the op's output on, with a gradient of its own.

The op moves to `NAME/forward`, a StopGradient reads it, and a call of `attach` takes its name.
In a Session nobody need register anything; a runtime that drops the gradient raises.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.attach import Attached, attached, filtering
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.inline import Inline
from graphpatch.patches.place import place_of


def functions_for(gradient: Computed, node: Node, signature: Signature, editor: Editor) -> Attached:
    """The pair of functions, put into the library where it is not there yet."""
    kept = _is_kept(node, editor)
    values = tuple(str(signature.attrs.get(key)) for key in gradient.attrs)
    shapes = (signature.inputs, signature.outputs, signature.same_shape)
    question = ("attached", gradient.key, shapes, values, kept)
    return _asked(question, lambda: attached(gradient, signature, kept), editor)


def _is_kept(node: Node, editor: Editor) -> bool:
    """Whether the call must be kept from being inlined.

    What a function calls that a Session differentiates as a whole, TensorFlow optimises before:
    it inlines the call and takes out what stops gradients, and the op's own gradient is used.
    """
    return place_of(node, editor).ignoring is not None


def _asked(question: Hashable, make: Callable[[], Attached], editor: Editor) -> Attached:
    def added() -> Attached:
        try:
            found = make()
        except (FormulaError, ValueError) as error:
            raise PatchError(str(error)) from error
        editor.add_function(found.gradient)
        editor.add_function(found.attach, gradient=found.gradient.signature.name)
        return found

    return editor.cached(question, added)


def call_attrs(found: Attached) -> dict[str, AttrValue]:
    """What the call carries: the key that a tape looks up before it takes the GradientDef."""
    return {attrs.OVERRIDE: attrs.text(found.key)}


def carry_by_function(gradient: Computed, node: Node, signature: Signature, editor: Editor) -> None:
    """Let the gradient of an op be this one."""
    found = functions_for(gradient, node, signature, editor)
    name, dtypes = node.name, [dtype for _, dtype in signature.outputs]

    def inputs(moved: Node) -> list[str]:
        read = [_read(moved, slot, slot in found.stopped, editor) for slot in found.read]
        given = [_stopped(moved, place, dtype, name, editor) for place, dtype in enumerate(dtypes)]
        return [*read, *given]

    call = editor.take_name(
        node, found.attach.signature.name, inputs, call_attrs(found), shadow=True
    )
    keep_gradient(call, found, editor)
    editor.used("function", tape=found.key)


def _read(moved: Node, slot: int, stop: bool, editor: Editor) -> str:
    text = moved.data_inputs[slot]
    if not stop:
        return text
    dtype = (moved.arguments or [])[slot].dtype or ""
    typed = {"T": attrs.dtype(dtype)}
    return editor.add(f"{moved.name}/stop_{slot}", "StopGradient", [text], typed, moved).tensor(0)


def _stopped(moved: Node, output: int, dtype: str, name: str, editor: Editor) -> str:
    typed, suffix = {"T": attrs.dtype(dtype)}, f"_{output}" if output else ""
    stop = editor.add(f"{name}/stop{suffix}", "StopGradient", [moved.tensor(output)], typed, moved)
    return stop.tensor(0)


def keep_gradient(call: Node, found: Attached, editor: Editor) -> None:
    """In the body of a While or If, call the gradient function once, unread.

    TensorFlow 2 copies with such a body only the functions that it calls as ops. Elsewhere the
    unread call would do harm: SymbolicGradient of 1.15 waits for what flows back through it.
    """
    if not place_of(call, editor).op_by_op:
        return
    label, name = call.body.label, found.gradient.signature.name
    editor.cached(("kept", label, name), lambda: _unread(call, name, found, editor))


def _unread(call: Node, name: str, found: Attached, editor: Editor) -> Node:
    outputs = len(found.attach.signature.output_arg)
    given: Sequence[str] = call.inputs[-outputs:]
    return editor.add(f"{call.name}/gradient", name, [*call.inputs, *given], {}, call)


def filter_inline(
    gradient: Computed, node: Node, editor: Editor
) -> tuple[Inline, dict[str, Attached]]:
    """A call in line with a tensor of `node`: gives it on, and filters what flows back.

    The functions that it came to use are found in the second value, by the op type of the call.
    """
    functions: dict[str, Attached] = {}
    kept = _is_kept(node, editor)

    def of(dtype: str) -> tuple[str, dict[str, AttrValue]]:
        question = ("filter", gradient.key, dtype, kept)
        found = _asked(question, lambda: filtering(gradient, dtype, kept), editor)
        functions[found.attach.signature.name] = found
        editor.used("function", tape=found.key)
        return found.attach.signature.name, call_attrs(found)

    return Inline("filter", of), functions
