"""How another gradient is stored: a key in an attr, a construction, or functions in the library."""

from __future__ import annotations

from functools import partial

import msgspec

from graphpatch.control_flow.contexts import control_flow
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.dtypes import DTYPE_NAMES, HANDLES
from graphpatch.errors import FormulaError, PatchError, did_you_mean
from graphpatch.gradients.fits import check_fit
from graphpatch.gradients.program import gradient_ops, joined_shapes
from graphpatch.gradients.spec import (
    BUILT_IN,
    Computed,
    DefaultGradient,
    Gradient,
    InlineFormula,
    PythonGradient,
    RegisteredKey,
    built_in_key,
)
from graphpatch.graph import attrs, provenance
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import RESOURCE_VARIABLE
from graphpatch.graph.walk import outputs_there, tensor_named, upstream
from graphpatch.opdefs import tensor_index
from graphpatch.patches.construction import constructed
from graphpatch.patches.function_carrier import attach, computed_functions, traced_functions
from graphpatch.patches.reach import (
    all_in_control_flow,
    check_reached,
    place_of,
    refuse_boundary,
    shadow_behind,
)
from graphpatch.patches.shape_checks import may_contradict, refuse_contradicted
from graphpatch.patches.target import Target, dtypes_of, known_outputs


def carry(gradient: Gradient, target: Target, editor: Editor, emit: str) -> None:
    """Let the gradient of a target be this one, and say in the editor what the consumer needs.

    Raises PatchError where the gradient does not fit the target, or where TensorFlow would not
    look at it.
    """
    node = target.last
    if isinstance(gradient, DefaultGradient | RegisteredKey) and target.is_match:
        raise PatchError(
            "a match as one op has no gradient under a key: a gradient of the library or a formula "
            "is stored as a function"
        )
    if isinstance(gradient, DefaultGradient):
        _take_off(node, editor)
        return
    refuse_key(gradient, emit, target.is_match)
    is_alone = not (target.is_match or named_tensors(gradient))
    for inside in () if is_alone else target.nodes:
        refuse_boundary(inside)
    check_reached(node, editor)
    note_replaced(node, editor)
    if isinstance(gradient, PythonGradient):
        functions = traced_functions(gradient, target, editor)
    else:
        if is_alone:
            gradient = gradient if isinstance(gradient, RegisteredKey) else gradient.for_op(node.op)
            check_once(gradient, node, editor)
            key = _key(gradient, node, editor, emit)
            if key is not None:
                _set_key(key, node, editor)
                return
        assert not isinstance(gradient, RegisteredKey), "its key is set"
        known_outputs(node)
        if not is_alone:
            gradient, target = _with_named_tensors(gradient, target, editor)
        if constructed(gradient, target, editor, emit):
            return
        functions = computed_functions(gradient, target.signature, node, editor)
    refuse_boundary(node)
    shadow_behind(target, editor)
    attach(target, functions, editor)


def check_once(gradient: Computed | RegisteredKey, node: Node, editor: Editor) -> None:
    """Raise PatchError where the gradient does not fit the op; like ops are asked about once."""
    form = Target.of(node).form(None if isinstance(gradient, RegisteredKey) else gradient.formula)
    editor.cached(("fits", gradient.key, form), lambda: check_fit(gradient, node))


def refuse_key(gradient: Gradient, emit: str, is_match: bool = False) -> None:
    """Raise PatchError for a gradient that cannot be stored as a key: no consumer could read it."""
    if isinstance(gradient, PythonGradient) and emit in ("attr", "construction"):
        raise PatchError(
            f"{gradient.path} is stored as a function, not as an {emit} (emit: auto); a key that "
            f'the consumer registers is {{"registered": "..."}}'
        )
    if emit == "attr" and is_match:
        raise PatchError("a match as one op has no key: its gradient is stored as a function")
    if emit == "attr" and (names := named_tensors(gradient)):
        raise PatchError(
            f"the formula reads tensor({names[0]!r}), and a key holds no tensor of the graph: the "
            f"gradient is stored as a construction or a function (emit: auto)"
        )


def note_replaced(node: Node, editor: Editor) -> None:
    """Say that an op has a key of a rule already, which this rule takes away."""
    before = provenance.key_setter(node)
    if before:
        editor.note(
            f"rule {editor.rule_name!r} replaces the gradient that rule {before!r} gave some of "
            f'its ops; "taken": false leaves out what earlier rules patched'
        )


def _key(
    gradient: Computed | RegisteredKey, node: Node, editor: Editor, emit: str
) -> RegisteredKey | None:
    """Return the key that is to carry a gradient; None where no key does."""
    if isinstance(gradient, RegisteredKey):
        return gradient
    if emit == "attr" or (emit == "auto" and node.outputs is None):  # of its library alone known
        return RegisteredKey(gradient.key)
    if emit != "auto" or place_of(node, editor).ignoring is not None:
        return None
    exact = built_in_key(gradient, node.opdef)
    return None if exact is None else RegisteredKey(exact, built_in=True)


def _set_key(key: RegisteredKey, node: Node, editor: Editor) -> None:
    """Set a key; raise PatchError in a body where TensorFlow ignores the attr without a word."""
    caller = place_of(node, editor).ignoring
    if caller is not None and not editor.graph.around.is_object_based:
        raise PatchError(
            f"{node} cannot be overridden by an attr: the function is called by {caller}, and "
            f"there TensorFlow ignores the attr silently; a gradient of the library or a formula "
            f'is stored as a function (emit: auto), and "body": "main" leaves functions out'
        )
    if caller is not None:
        editor.note(
            f"function {node.body.label}: the new gradient works with GradientTape, after "
            f"tf.saved_model.load; a Session ignores it silently, as {caller.op} calls the function"
        )
    editor.set_attr(node, attrs.OVERRIDE, attrs.text(key.key))
    needs = "" if key.built_in else key.key
    editor.used("attr" if needs else BUILT_IN, session=needs, tape=needs)


def _take_off(node: Node, editor: Editor) -> None:
    if node.attr(attrs.OVERRIDE) is None:
        raise PatchError(
            f"{node} has no override to take off; its gradient is TensorFlow's default"
        )
    editor.set_attr(node, attrs.OVERRIDE, None)
    editor.used(BUILT_IN)


def _with_named_tensors(
    gradient: Computed, target: Target, editor: Editor
) -> tuple[Computed, Target]:
    """Return the gradient as a formula that reads tensors by name as further inputs of a target.

    Raises PatchError where the formula does not suit the target.
    """
    node, tensors = target.last, named_inputs(gradient, target, editor)
    try:
        op = target.signature
        if tensors:
            formula = gradient.formula.with_more_inputs([dtype for _, dtype in op.inputs])
            gradient = InlineFormula(formula)
            target = msgspec.structs.replace(target, more=tensors)
            op = target.signature
        gradient_ops(gradient.formula, op)
    except (FormulaError, ValueError) as error:
        reading = f"; {target.reading()}" if target.is_match else ""
        raise PatchError(f"{target}: {error}{reading}") from error
    if may_contradict(gradient) and tensors and not provenance.is_added(node):
        joined = joined_shapes(gradient.formula, op)
        refuse_contradicted([target], gradient.formula, lambda _: joined, in_model=True)
    return gradient, target


# Tensors of the graph that a formula reads by name: `tensor("global_step:0")`. What carries the
# gradient of an op reads them forward, where the op stands. So each must be in the op's body and in
# the same loop and branch, and must not be computed from the op.


class NamedTensor(msgspec.Struct, frozen=True):
    """A tensor as inputs spell it, and its dtype; of the handle of a variable that of the value."""

    text: str
    dtype: str
    is_handle: bool = False


def named_tensors(gradient: Gradient) -> tuple[str, ...]:
    """Return the tensors that a gradient reads by name."""
    return gradient.formula.tensors if isinstance(gradient, InlineFormula) else ()


def named_inputs(gradient: Gradient, target: Target, editor: Editor) -> tuple[tuple[str, str], ...]:
    """Return what a gradient reads by name, with dtypes; of a variable its value, read beside it.

    Raises what `check_named` raises.
    """
    node, inputs = target.last, []
    for tensor in check_named(gradient, target, editor):
        text = tensor.text
        if tensor.is_handle:
            typed = {"dtype": attrs.dtype(tensor.dtype)}
            read = (f"{node.name}/read", "ReadVariableOp", [text], typed)
            text = editor.add(*read, node, before=True).tensor(0)
        inputs.append((text, tensor.dtype))
    return tuple(inputs)


def check_named(gradient: Gradient, target: Target, editor: Editor) -> list[NamedTensor]:
    """Return the tensors that a gradient of this target reads by name.

    Raises PatchError where what carries it cannot read one of them. Of one patch the first answer
    holds, whatever it put in the place of the ops since.
    """
    return [
        editor.cached(("named", editor.patched, name), partial(_checked, name, target, editor))
        for name in named_tensors(gradient)
    ]


def _checked(name: str, target: Target, editor: Editor) -> NamedTensor:
    node, body = target.last, target.last.body
    reads = f"{node}: the formula reads tensor({name!r})"
    tensor = tensor_named(body, name)
    if tensor is None:
        where = "the graph" if body.is_main else f"function {body.label}"
        near = did_you_mean(name.partition(":")[0], [*body.by_name, *body.arguments])
        there = outputs_there([body], name) or f"{where} has no such tensor{near}"
        raise PatchError(f"{reads}, and {there}")
    before = editor.cached(
        ("before", body.label, tensor),
        lambda: upstream(body, [tensor], control=True, last=lambda n: body.heads.ops[n] in NEXTS),
    )
    for op in target.nodes:
        if op.index < len(before) and before[op.index]:
            raise PatchError(
                f"{reads}, which is computed from {op}; it can read what is there before the op, "
                f"and as y what the op gives"
            )
    producer = body.producer(str(tensor))
    if producer is not None and all_in_control_flow(body, editor):
        flow = editor.cached(("contexts", body.label), lambda: control_flow(body))
        if flow.given(producer.index, str(tensor)) is not flow.context(node.index):
            raise PatchError(
                f"{reads}, which is not in the same v1 loop or branch; name a tensor that is, such "
                f"as the Enter or the Switch by which it comes in"
            )
    if producer is None:
        dtype = DTYPE_NAMES[body.arguments[tensor.op]]
    else:
        outputs, place = known_outputs(producer), tensor.index
        if not body.is_main:
            place = tensor_index(outputs, tensor.arg, tensor.index) or 0
        (dtype,) = dtypes_of(producer, [outputs[place]])
    if dtype not in HANDLES:
        return NamedTensor(str(tensor), dtype)
    value = producer.attr("dtype") if producer is not None else None
    if producer is None or producer.op != RESOURCE_VARIABLE or value is None:
        raise PatchError(f"{reads}, which is a {dtype}; name the tensor that its value is read to")
    return NamedTensor(str(tensor), DTYPE_NAMES[value.type], is_handle=True)
