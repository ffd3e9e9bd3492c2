"""How another gradient is stored: a key in an attr, a construction, or functions in the library."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients.attach import AttachedFunctions, OpDtypes
from graphpatch.gradients.fits import check_fit, windows_of
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.program import gradient_ops, joined_shapes
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import (
    BUILT_IN,
    Computed,
    DefaultGradient,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    built_in_key,
)
from graphpatch.graph import attrs, provenance
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import function_carrier, op_args
from graphpatch.patches.construction import broadcast_signature, constructed, constructed_whole
from graphpatch.patches.function_carrier import carry_by_function
from graphpatch.patches.group import MatchedGroup, group_of_op
from graphpatch.patches.known_shapes import may_contradict, refuse_contradicted_match
from graphpatch.patches.named_tensors import check_named, named_tensors, read_by_name
from graphpatch.patches.reach import (
    check_reached,
    differentiated_as_whole,
    place_of,
    refuse_boundary,
)
from graphpatch.patches.threshold import check_centre
from graphpatch.patches.whole_shape import keeps_shape, refuse_behind, shadow_behind


def carry(gradient: Gradient, node: Node, editor: Editor, emit: str) -> None:
    """Let the gradient of an op be this one, and say in the editor what the consumer needs.

    Raises PatchError where the gradient does not fit the op, or where TensorFlow would not look
    at it.
    """
    if isinstance(gradient, DefaultGradient):
        _take_off(node, editor)
        return
    check_reached(node, editor)
    note_replaced(node, editor)
    if isinstance(gradient, PythonGradient):
        refuse_key(gradient, emit)
        op_args.known_outputs(node)
        carry_by_function(gradient, node, editor)
        return
    if isinstance(gradient, InlineFormula) and named_tensors(gradient):
        refuse_boundary(node)
        _refuse_attr(gradient, emit)
        _carry_formula(gradient, group_of_op(node), editor, emit, broadcast_signature(node))
        return
    if not isinstance(gradient, RegisteredKey):
        gradient = gradient.for_op(node.op)
    asked = question(gradient, node)
    editor.cached(asked, lambda: check_fit(gradient, node))
    if isinstance(gradient, RegisteredKey):
        _set_key(gradient.key, node, editor, needed=not gradient.built_in)
    elif emit == "attr" or (emit == "auto" and node.outputs is None):  # of its library alone known
        _set_key(gradient.key, node, editor, needed=True)
    else:
        op_args.known_outputs(node)
        key = exact_key(gradient, node, editor) if emit == "auto" else None
        if key is not None:
            _set_key(key, node, editor, needed=False)
        elif not constructed(gradient, node, editor, emit, asked):
            carry_by_function(gradient, node, editor)


def check_once(gradient: Computed | RegisteredKey, node: Node, editor: Editor) -> None:
    """Raise PatchError where the gradient does not fit the op; like ops are asked about once."""
    editor.cached(question(gradient, node), lambda: check_fit(gradient, node))


def refuse_key(gradient: Gradient, emit: str) -> None:
    """Raise PatchError for a gradient that cannot be stored as a key: no consumer could read it."""
    if isinstance(gradient, PythonGradient) and emit in ("attr", "construction"):
        raise PatchError(
            f"{gradient.path} is stored as a function, not as an {emit} (emit: auto); a key that "
            f'the consumer registers is {{"registered": "..."}}'
        )


def note_replaced(node: Node, editor: Editor) -> None:
    """Say that an op has a key of a rule already, which this rule takes away."""
    before = provenance.key_setter(node)
    if before:
        editor.note(
            f"rule {editor.rule_name!r} replaces the gradient that rule {before!r} gave some of "
            f'its ops; "taken": false leaves out what earlier rules patched'
        )


def exact_key(gradient: Computed, node: Node, editor: Editor) -> str | None:
    """The key of TensorFlow that is exactly this gradient of this op, where it looks at keys."""
    return None if place_of(node, editor).ignoring else built_in_key(gradient, node.opdef)


def _set_key(key: str, node: Node, editor: Editor, needed: bool) -> None:
    _check_place(node, editor)
    editor.set_attr(node, attrs.OVERRIDE, attrs.text(key))
    needs = key if needed else ""
    editor.used("attr" if needed else BUILT_IN, session=needs, tape=needs)


def _take_off(node: Node, editor: Editor) -> None:
    if node.attr(attrs.OVERRIDE) is None:
        raise PatchError(
            f"{node} has no override to take off; its gradient is TensorFlow's default"
        )
    editor.set_attr(node, attrs.OVERRIDE, None)
    editor.used(BUILT_IN)


def _check_place(node: Node, editor: Editor) -> None:
    """Raise PatchError in a body where TensorFlow ignores the attr without a word."""
    caller = place_of(node, editor).ignoring
    if caller is None:
        return
    if not editor.graph.around.is_object_based:
        raise PatchError(
            f"{node} cannot be overridden by an attr: the function is called by {caller}, and "
            f"there TensorFlow ignores the attr silently; a gradient of the library or a formula "
            f'is stored as a function (emit: auto), and "body": "main" leaves functions out'
        )
    editor.note(
        f"function {node.body.label}: the new gradient works with GradientTape, after "
        f"tf.saved_model.load; a Session ignores it silently, as {caller.op} calls the function"
    )


def question(gradient: Computed | RegisteredKey, node: Node) -> tuple[Hashable, ...]:
    """All that the answer to `check_fit` depends on, so that like ops are asked about once."""
    flat = [*(node.arguments or ()), *(node.outputs or ())]
    read: tuple[str, ...] = () if isinstance(gradient, RegisteredKey) else gradient.attrs
    if not isinstance(gradient, RegisteredKey) and gradient.formula.reads_op:
        read = tuple(sorted(node.attrs()))
    values = tuple(str(node.attr(key)) for key in read)
    return ("fits", gradient.key, node.op, tuple((arg.dtype, arg.is_ref) for arg in flat), values)


def carry_whole(gradient: Gradient, group: MatchedGroup, editor: Editor, emit: str) -> None:
    """Let the gradient of a group, as one op, be this one; its ops stay where they are.

    What flows back to an op inside from others that read it flows on by its own gradient.
    Raises PatchError where it does not fit the group, or cannot be stored as a function.
    """
    refuse_behind(group.nodes, group.last, editor)
    _refuse_last(group)
    gradient = _storable_gradient(gradient, group, emit)
    if not isinstance(gradient, PythonGradient):
        _carry_formula(gradient, group, editor, emit)
        return
    is_kept = differentiated_as_whole(group.last, editor)
    functions = function_carrier.traced_functions(gradient, _group_dtypes(group), is_kept, editor)
    _attach(group, functions, editor)


def _carry_formula(
    gradient: Computed, group: MatchedGroup, editor: Editor, emit: str, op: Signature | None = None
) -> None:
    """Let the gradient of a match as one op, or of an op of this signature, be this formula.

    Raises PatchError where it does not suit the group.
    """
    check_named(gradient, group.nodes, editor)
    is_match = op is None
    try:
        op = _group_signature(group) if op is None else op
        if tensors := read_by_name(gradient, group.last, editor):
            formula = gradient.formula.with_more_inputs([dtype for _, dtype in op.inputs])
            gradient, op = InlineFormula(formula), op.reading([tensor.dtype for tensor in tensors])
            group = msgspec.structs.replace(group, more=tuple(tensor.text for tensor in tensors))
        gradient_ops(gradient.formula, op)
    except (FormulaError, ValueError) as error:
        text = f"the match that ends in {group.last}: {error}; {group.reading()}"
        raise PatchError(text if is_match else f"{group.last}: {error}") from error
    if may_contradict(gradient) and not provenance.is_added(group.last):
        joined = joined_shapes(gradient.formula, op)
        refuse_contradicted_match(group, joined, editor, may_sum=True)
    if not constructed_whole(gradient, group, op, editor, emit):
        is_kept = differentiated_as_whole(group.last, editor)
        _attach(group, function_carrier.computed_functions(gradient, op, is_kept, editor), editor)


def _attach(group: MatchedGroup, functions: AttachedFunctions, editor: Editor) -> None:
    shadow_behind(group.nodes, group.last, editor)
    noted = group.reads if group.more else ()
    function_carrier.attach_to(group.last, functions, group.reads, group.nodes, editor, noted)


def _refuse_attr(gradient: Gradient, emit: str) -> None:
    """Raise PatchError for a gradient that no key can hold, where the rule asks for one."""
    if emit == "attr" and (names := named_tensors(gradient)):
        raise PatchError(
            f"the formula reads tensor({names[0]!r}), and a key holds no tensor of the graph: the "
            f"gradient is stored as a construction or a function (emit: auto)"
        )


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
    check_centre(gradient, group)
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
    """Return the group as a gradient function sees it: under the name and type of its last op."""
    inputs = tuple(arg.dtype or "" for arg in group.args)
    outputs = tuple(arg.dtype or "" for arg in op_args.known_outputs(group.last))
    return OpDtypes(group.last.op, group.last.name, inputs, outputs, {}, group.last.device)
