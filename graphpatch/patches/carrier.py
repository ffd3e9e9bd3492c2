"""How another gradient is stored: a key in an attr, a construction, or functions in the library."""

from __future__ import annotations

from collections.abc import Hashable

from graphpatch.errors import PatchError
from graphpatch.gradients.exact import BUILT_IN, built_in_key
from graphpatch.gradients.fits import check_fit
from graphpatch.gradients.spec import (
    Computed,
    DefaultGradient,
    Gradient,
    PythonGradient,
    RegisteredKey,
)
from graphpatch.graph import attrs, provenance
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.construction import constructed
from graphpatch.patches.function_carrier import carry_by_function
from graphpatch.patches.place import place_of
from graphpatch.patches.reach import check_reached


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
        carry_by_function(gradient, node, editor)
        return
    if not isinstance(gradient, RegisteredKey):
        gradient = gradient.for_op(node.op)
    asked = question(gradient, node)
    editor.cached(asked, lambda: check_fit(gradient, node))
    if isinstance(gradient, RegisteredKey):
        _set_key(gradient.key, node, editor, needed=not gradient.built_in)
    elif emit == "attr":
        _set_key(gradient.key, node, editor, needed=True)
    else:
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


def refuse_carried(node: Node) -> None:
    """Raise PatchError for an op that has a gradient of ours in functions already."""
    if node.op in node.body.library.gradients and provenance.record(node) is not None:
        rules = {author.rule for author in provenance.rules_that_touched(node)}
        raise PatchError(
            f"{node} has the gradient that rule {', '.join(map(repr, sorted(rules)))} gave it; "
            f"let one of the rules leave it out"
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
