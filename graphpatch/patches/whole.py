"""A group of ops with one gradient, as if it were one op: `"on": "match"`."""

from __future__ import annotations

from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.fits import windows_of
from graphpatch.gradients.gradient_program import gradient_ops, joined_shapes
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import (
    DefaultGradient,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
)
from graphpatch.gradients.traced_function import OpDtypes
from graphpatch.graph.edit import Editor
from graphpatch.patches import function_carrier, op_args
from graphpatch.patches.carrier import refuse_key
from graphpatch.patches.construction import constructed_whole
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.known_shapes import refuse_contradicted_match
from graphpatch.patches.whole_shape import keeps_shape, refuse_behind, shadow_behind


def carry_whole(gradient: Gradient, group: MatchedGroup, editor: Editor, emit: str) -> None:
    """Let the gradient of a group, as one op, be this one; its ops stay where they are.

    What flows back to an op inside from others that read it flows on by its own gradient.
    Raises PatchError where it does not fit the group, or cannot be stored as a function.
    """
    refuse_behind(group.nodes, group.last, editor)
    _refuse_last(group)
    gradient = _storable_gradient(gradient, group, emit)
    kept = function_carrier.is_kept(group.last, editor)
    if isinstance(gradient, PythonGradient):
        found = function_carrier.traced_functions(gradient, _group_dtypes(group), kept, editor)
    else:
        op = _checked_signature(gradient, group)
        if isinstance(gradient, InlineFormula):  # those of the library say what they fit
            joined = joined_shapes(gradient.formula, op)
            refuse_contradicted_match(group, joined, editor, may_sum=True)
        if constructed_whole(gradient, group, op, editor, emit):
            return
        found = function_carrier.computed_functions(gradient, op, kept, editor)
    shadow_behind(group.nodes, group.last, editor)
    function_carrier.attach_to(group.last, found, group.reads, group.nodes, editor)


def _checked_signature(gradient: LibraryGradient | InlineFormula, group: MatchedGroup) -> Signature:
    """The group as formulas see it; PatchError where this formula does not suit it."""
    try:
        signature = _group_signature(group)
        gradient_ops(gradient.formula, signature)
    except (FormulaError, ValueError) as error:
        text = f"the match that ends in {group.last}: {error}; {group.reading()}"
        raise PatchError(text) from error
    return signature


def _storable_gradient(
    gradient: Gradient, group: MatchedGroup, emit: str
) -> LibraryGradient | InlineFormula | PythonGradient:
    if isinstance(gradient, DefaultGradient | RegisteredKey):
        raise PatchError(
            "a match as one op has no gradient under a key: a gradient of the library or a formula "
            "is stored as a function"
        )
    refuse_key(gradient, emit)
    if emit == "attr":
        raise PatchError("a match as one op has no key: its gradient is stored as a function")
    if isinstance(gradient, LibraryGradient):
        _check_named(gradient, group)
    return gradient


def _check_named(gradient: LibraryGradient, group: MatchedGroup) -> None:
    """Raise PatchError where a gradient of the library makes no sense for these ops as one."""
    entry = LIBRARY[gradient.name]
    if entry.ops and not entry.whole:
        raise PatchError(
            f"{entry.name} is for {', '.join(entry.ops)}, not for a match as one op; where it is "
            f'meant all the same, write it as {{"formula": "{gradient.formula.texts[0]}"}}'
        )
    asked = [place for place, arg in enumerate(group.args) if op_args.carries(arg)]
    if entry.ops and len(asked) != 1:
        raise PatchError(
            f"{entry.name} is for one input; {group.reading()}; take constants into the pattern "
            f"(c:Const -> ...), or write a formula for each input, null for none"
        )
    for place in asked if entry.elementwise else ():
        if keeps_shape(group, place) in ("unknown", "other"):
            raise PatchError(
                f"{entry.name} gives a gradient of the shape of the output, and the match that "
                f"ends in {group.last} is not known to keep that of x{place}; {group.reading()}; "
                f"a formula for each input has null for none, and filter_gradient changes what "
                f"flows back to the output"
            )


def _refuse_last(group: MatchedGroup) -> None:
    outputs = op_args.known_outputs(group.last)
    if not any(op_args.carries(arg) for arg in outputs):
        reason = op_args.why_not(outputs[0]) if outputs else "is not there"
        raise PatchError(f"no gradient comes to the match: output 0 of {group.last} {reason}")


def _group_signature(group: MatchedGroup) -> Signature:
    return Signature.of(
        [(f"x{place}", arg.dtype or "") for place, arg in enumerate(group.args)],
        [
            (f"y{place}", arg.dtype or "")
            for place, arg in enumerate(op_args.known_outputs(group.last))
        ],
        windows_of(group.nodes),
    )


def _group_dtypes(group: MatchedGroup) -> OpDtypes:
    """The group as a gradient function sees it: under the name and type of its last op."""
    inputs = tuple(arg.dtype or "" for arg in group.args)
    outputs = tuple(arg.dtype or "" for arg in op_args.known_outputs(group.last))
    return OpDtypes(group.last.op, group.last.name, inputs, outputs, {}, group.last.device)
