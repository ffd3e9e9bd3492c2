"""The function carrier in a TF2 SavedModel: what a tape needs, in the file.

Between what `attach` gives on and the op stands a call of `tape`. A Session sees `attach` alone,
and zeros behind it; on a tape `attach` passes the gradient on to the call, which has the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.gradients.attach import Attached
from graphpatch.gradients.taped import passed_on, taped
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import flow


def is_restored(node: Node, editor: Editor) -> bool:
    """Whether an op is in a function that tf.saved_model.load restores."""
    graph = editor.graph
    return graph.around.is_object_based and (graph.around.is_exported or not node.body.is_main)


def through_tape(
    found: Attached, name: str, arguments: Sequence[str], moved: Node, editor: Editor
) -> list[str]:
    """The outputs of the op as `attach` is to read them: through a call of `tape`."""
    functions = editor.cached(("taped", found.key), lambda: taped(found))
    editor.add_function(functions.tape)
    for gradient in (functions.gradient, functions.passing):
        editor.add_restored(gradient)
    signature = functions.tape.signature
    values = {
        "f": attrs.function(signature.name),
        "Tin": attrs.dtypes([DTYPE_NAMES[arg.type] for arg in signature.input_arg]),
        "Tout": attrs.dtypes([DTYPE_NAMES[arg.type] for arg in signature.output_arg]),
    }
    call = editor.add(f"{name}/tape", "PartitionedCall", arguments, values, moved)
    return [_passed(call, place, name, editor) for place in range(len(signature.output_arg))]


def _passed(call: Node, output: int, name: str, editor: Editor) -> str:
    """The output of the call, by an op that stops gradients in a Session and none on a tape."""
    arg = flow.known_outputs(call)[output]
    if not flow.carries(arg):
        return call.tensor(output)
    typed = attrs.dtype(arg.dtype or "")
    gradient = passed_on(typed.type)
    editor.add_restored(gradient)
    values = {"T": typed, attrs.OVERRIDE: attrs.text(gradient.key)}
    suffix = f"_{output}" if output else ""
    passed = editor.add(f"{name}/pass{suffix}", "StopGradient", [call.tensor(output)], values, call)
    return passed.tensor(0)
