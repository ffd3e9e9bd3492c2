"""How another gradient is stored: a key in an attr, a construction, or functions in the library.

A construction is made of ops that any runtime honours. `join` gives an output on by
`Select(true, StopGradient(forward), backward)` with TensorFlow's gradient of AddN, which passes the
upstream gradient to every input as it is. Select copies the bits of `forward`, whatever `backward`
is: adding a zero would do it too, but TensorFlow's threads flush subnormal numbers in arithmetic,
and infinity minus itself is NaN. Where that key is ignored, or an optimiser would take the
construction apart, a call of a function carries the gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec

from graphpatch.control_flow.contexts import control_flow
from graphpatch.differentiation.flow import carries
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.linear import DY, LIVE, Y, construction
from graphpatch.gradients.op_gradients import NO_SECOND
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import FormulaNodes, gradient_ops, joined_shapes
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
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import BOUNDARIES, NEXTS, RESOURCE_VARIABLE
from graphpatch.graph.walk import outputs_there, tensor_named, upstream
from graphpatch.names import op_of
from graphpatch.opdefs import DTYPE_NAMES, HANDLES
from graphpatch.patches.editing import MovedOp, RuleEditor, numbered
from graphpatch.patches.fit import check_fit, naming, refuse_contradicted
from graphpatch.patches.function_carrier import attach, become_filter, gradient_functions
from graphpatch.patches.placement import (
    comes_from_constant,
    refuse_boundary,
    refuse_without_gradient,
    shadow_behind,
)
from graphpatch.patches.target import Target, dtypes_of, known_outputs

# The op type whose registered gradient is dy for each input.
ALIKE = "AddN"
CONSTRUCTION_EMITS = ("auto", "construction")
SECOND = (
    "second derivatives raise LookupError, as a construction does not differentiate the factor of "
    'dy; "emit": "function" does, after register_gradients'
)


class BackwardTensor(msgspec.Struct, frozen=True):
    """The tensor that an output counts as on the way back.

    `repeated`: its shape is not known to be that of the output, to which it is repeated then; a
    tensor that cannot be is an error at run time.
    """

    tensor: str
    repeated: bool = False


def needs_function(node: Node, editor: RuleEditor, emit: str) -> bool:
    """Return whether a function must carry it: TensorFlow would ignore a key, or the rule asks."""
    is_ignored = editor.is_differentiated_whole(node)
    if is_ignored and emit in ("attr", "construction"):
        raise PatchError(
            f"{node} is in a function that a Session differentiates as a whole: TensorFlow ignores "
            f"attrs there, and a construction has another gradient; there a function carries it "
            f"(emit: auto)"
        )
    return is_ignored or emit == "function"


def refuse_in_part(node: Node, outputs: Collection[int], editor: RuleEditor, emit: str) -> None:
    """Raise PatchError where `join` would have to carry some outputs of an op, and not others."""
    flat = known_outputs(node)
    if any(arg.is_ref or arg.dtype is None for arg in flat):
        raise PatchError(f"{node}: its outputs cannot be passed on, as one is a reference")
    others = [n for n, arg in enumerate(flat) if carries(arg) and n not in outputs]
    if others and needs_function(node, editor, emit):
        raise PatchError(
            f"{node}: a function carries all its outputs or none, and output {others[0]} is not "
            f"named"
        )


def join(
    target: Target, counted: Mapping[int, BackwardTensor], editor: RuleEditor, emit: str
) -> None:
    """Let outputs of a target count as other tensors on the way back; those not named stay.

    The last op moves to `NAME/forward`, and no gradient reaches the ops any more. Raises PatchError
    where a function would have to carry some of the outputs alone.
    """
    node, name, noted, flat = target.last, target.last.name, target.noted, target.outputs
    if not needs_function(node, editor, emit):
        moved = MovedOp(node, editor)
        for output, tensor in counted.items():
            condition, stop = _condition(moved, output)
            scope = f"{name}/repeat{numbered(output)}"
            backward = repeated(tensor, stop, scope, node, editor)
            moved.give_on(output, "Select", "join", [condition, stop, backward], ALIKE)
        moved.close()
        editor.report.used("construction")
        if all(n in counted for n, arg in enumerate(flat) if carries(arg)):
            editor.shadow(node)
    else:
        outputs, is_known = sorted(counted), not any(tensor.repeated for tensor in counted.values())
        signature = Signature.of(
            [flat[output].dtype or "" for output in outputs],
            [arg.dtype or "" for arg in flat],
            same_shape=is_known and len(outputs) == 1,
        )
        texts = [f"sum_like(dy{output}, x{n})" for n, output in enumerate(outputs)]
        gradient = InlineFormula(Formula.parse(["dy"] if signature.same_shape else texts))
        functions = gradient_functions(gradient, target, editor, signature)
        attach(target, functions, editor, [counted[output].tensor for output in outputs])
    shadow_behind(target, editor)
    editor.set_reads(node.body.node(name), noted)


def _condition(moved: MovedOp, output: int) -> tuple[str, str]:
    """Return what a Select reads that gives an output on: the condition, and that, stopped.

    The condition is true throughout, of the shape of the output, as the key of the Select asks; it
    is made of tensors, not of constants, and so stands in a v1 loop or branch as it is.
    """
    name, suffix, editor, node = moved.name, numbered(output), moved.editor, moved.node
    stop, dtype = moved.stopped(output), moved.outputs[output].dtype
    same = editor.put_op(f"{name}/same{suffix}", "Equal", [stop, stop], dtype, node)
    return editor.put_op(f"{name}/true{suffix}", "OnesLike", [same], "bool", node), stop


def repeated(
    counted: BackwardTensor, like: str, name: str, beside: Node, editor: RuleEditor
) -> str:
    """Return what an output counts as, repeated to the shape of `like` where that may be another.

    A run in which it cannot be repeated is an error.
    """
    if not counted.repeated:
        return counted.tensor
    dtype = known_outputs(beside)[0].dtype
    shape = editor.put_op(f"{name}/Shape", "Shape", [like], dtype, beside)
    inputs = [counted.tensor, shape]
    return editor.put_op(f"{name}/BroadcastTo", "BroadcastTo", inputs, dtype, beside)


def constructed(
    gradient: Computed, target: Target, editor: RuleEditor, emit: str, filtered: Node | None = None
) -> bool:
    """Let the gradient of a target be this one by a construction; return whether that was done.

    With `emit` "auto" it is done where it is right, and nothing is done elsewhere. `filtered` is
    the op in line with which the target is. Raises PatchError with `emit` "construction" where it
    cannot be done.
    """
    node, place = target.last, filtered or target.last
    known_outputs(node)  # without which a key alone can store a gradient
    if emit not in CONSTRUCTION_EMITS:
        return False
    formula = _adjoint(gradient, target, editor, filtered is not None and not target.more)
    if formula is None:
        reason = "the formula is not known to be linear in dy and to keep the shapes of its inputs"
    else:
        reason = _why_not_constructed(place, node, editor)
    if reason and emit == "construction":
        raise PatchError(f"{target} cannot have this gradient by a construction: {reason}")
    if reason or formula is None:
        return False
    reads, moved = target.reads, MovedOp(node, editor)
    condition, stop = _condition(moved, 0)
    scope, tensors = f"{moved.name}/backward", {DY: stop, Y: stop}
    for number, text in enumerate(reads):
        tensors[f"x{number}"] = tensors[f"{LIVE}x{number}"] = text
    tensor = put_beside(formula, node, tensors, editor, scope=f"{scope}/")
    is_fixed = Y not in formula.varying and len(reads) > 1
    varying = (node.body.producer(tensors[name]) for name in formula.varying)
    if formula.varying and not (is_fixed and all(map(comes_from_constant, varying))):
        editor.report.note(SECOND)
        tensor = _differentiated_once(tensor, scope, node, editor)
    moved.give_on(0, "Select", "join", [condition, stop, tensor], ALIKE)
    editor.report.used("construction")
    editor.shadow(node)
    return True


def _adjoint(
    gradient: Computed, target: Target, editor: RuleEditor, is_filter: bool
) -> FormulaNodes | None:
    """Return the ops whose default gradient is this one; None where there are none.

    Those of one form of targets are made once.
    """
    node, in_function = target.last, not target.last.body.is_main
    op_type = "" if target.is_match else node.op
    dtype = (known_outputs(node)[0].dtype or "") if is_filter else ""

    def nodes() -> FormulaNodes | None:
        with naming(target):
            op = Signature.of_tensor(dtype) if is_filter else target.signature
            return construction(gradient.formula, op, op_type, in_function)

    form = dtype if is_filter else (target.form(gradient.formula), target.more)
    return editor.cached(("construction", gradient.key, form, op_type, in_function), nodes)


def _why_not_constructed(place: Node, node: Node, editor: RuleEditor) -> str:
    """Return why no construction can stand in a place; nothing where one can."""
    if editor.is_differentiated_whole(node):
        return f"function {node.body.label} is differentiated as a whole"
    if place.op in BOUNDARIES or editor.is_in_control_flow(place):
        return "it is in a v1 loop or branch"
    flat = None if place.outputs is None else [*(place.arguments or ()), *place.outputs]
    if flat is None or any(arg.is_ref or arg.dtype is None for arg in flat):
        return "it reads or gives a reference, or a tensor of a dtype that is not known"
    return ""


def _differentiated_once(tensor: str, scope: str, beside: Node, editor: RuleEditor) -> str:
    """Return a tensor that passes dy on to another as SoftsignGrad(dy, 0), which is dy.

    TensorFlow has no gradient of SoftsignGrad: a second derivative raises, as it would be wrong.
    """
    dtype = known_outputs(beside)[0].dtype
    for op, name, key in (("ZerosLike", "zeros", "Identity"), ("Identity", NO_SECOND, "Softsign")):
        tensor = editor.put_op(f"{scope}/{name}", op, [tensor], dtype, beside, key)
    return tensor


def put_beside(
    formula: FormulaNodes,
    node: Node,
    tensors: Mapping[str, str],
    editor: RuleEditor,
    anchor: Sequence[str] = (),
    scope: str = "",
) -> str:
    """Add these nodes next to `node`, under `scope`; return the tensor that is their result.

    `tensors` says which tensors of the graph they read by other names. Nodes that read nothing
    wait for `anchor`.
    """
    names: dict[str, str] = {}

    def renamed(text: str) -> str:
        op = op_of(text)
        return tensors.get(text) or names.get(op, op) + text[len(op) :]

    for new in formula.nodes:
        inputs = [renamed(text) for text in new.input] or anchor
        names[new.name] = editor.add(scope + new.name, new.op, inputs, new.attr, node).name
    return renamed(formula.results[0])


def carry(
    gradient: Gradient, target: Target, editor: RuleEditor, emit: str, filtered: Node | None = None
) -> None:
    """Let the gradient of a target be this one, and say in the editor what the consumer needs.

    The first of these that can stores it: a key, for one op that reads no tensors by name; a
    construction, where it is a formula; functions. `filtered` is the op in line with which an
    Identity is the target: a filter. Raises PatchError where the gradient does not fit the target,
    or where TensorFlow would not look at it.
    """
    node, is_filter = target.last, filtered is not None
    refuse_key(gradient, emit, target.is_match)
    if isinstance(gradient, DefaultGradient):
        _take_off_override(node, editor)
        return
    is_one_op = not (target.is_match or named_tensors(gradient))
    if not is_filter:  # nothing is written down on what is new
        _check_place(target.nodes if not is_one_op else (), node, editor)
    if is_one_op and not isinstance(gradient, PythonGradient):
        gradient = gradient.for_op(node.op) if isinstance(gradient, Computed) else gradient
        if not is_filter or emit == "attr":  # else it is fitted to the one tensor
            check_fit(gradient, target, editor)
        if set_key(gradient, node, editor, emit):
            return
    assert not isinstance(gradient, RegisteredKey), "its key is set"
    if not (is_one_op or isinstance(gradient, PythonGradient)):
        gradient, target = _with_named_tensors(gradient, target, editor)
    name, noted = node.name, target.noted
    is_stored = isinstance(gradient, Computed) and constructed(
        gradient, target, editor, emit, filtered
    )
    if not is_stored and is_filter and is_one_op and not editor.is_restored(node):
        become_filter(gradient, target, editor)
    elif not is_stored:
        functions = gradient_functions(gradient, target, editor)
        refuse_boundary(node)
        attach(target, functions, editor, target.reads)
    shadow_behind(target, editor)
    editor.set_reads(node.body.node(name), noted)


def _check_place(as_one: Sequence[Node], node: Node, editor: RuleEditor) -> None:
    """Raise PatchError where no gradient can be put there; say that an earlier one is replaced."""
    for inside in as_one:
        refuse_boundary(inside)
    refuse_without_gradient(node, editor)
    if replaced := provenance.key_setter(node):
        editor.report.note(
            f"rule {editor.author.rule!r} replaces the gradient that rule {replaced!r} gave some "
            f'of its ops; "taken": false leaves out what earlier rules patched'
        )


def _take_off_override(node: Node, editor: RuleEditor) -> None:
    if node.attr(attrs.OVERRIDE) is None:
        raise PatchError(
            f"{node} has no override to take off; its gradient is TensorFlow's default"
        )
    editor.set_attr(node, attrs.OVERRIDE, None)
    editor.report.used(BUILT_IN)


def refuse_key(gradient: Gradient, emit: str, is_match: bool = False) -> None:
    """Raise PatchError for a gradient that cannot be stored as a key: no consumer could read it."""
    if isinstance(gradient, DefaultGradient | RegisteredKey) and is_match:
        raise PatchError(
            "a match as one op has no gradient under a key: a gradient of the library or a formula "
            "is stored as a function"
        )
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


def set_key(gradient: Computed | RegisteredKey, node: Node, editor: RuleEditor, emit: str) -> bool:
    """Store a gradient as a key in the attr of the op, where one says it; return whether it does.

    Raises PatchError in a body where TensorFlow ignores the attr without a word.
    """
    caller = editor.bodies.place_of(node).ignoring
    if isinstance(gradient, RegisteredKey):
        key, is_built_in = gradient.key, gradient.built_in
    elif emit == "attr" or (emit == "auto" and node.outputs is None):  # its library alone knows it
        key, is_built_in = gradient.key, False
    elif emit == "auto" and caller is None and (exact := built_in_key(gradient, node.opdef)):
        key, is_built_in = exact, True
    else:
        return False
    if caller is not None and not editor.graph.around.is_object_based:
        raise PatchError(
            f"{node} cannot be overridden by an attr: the function is called by {caller}, and "
            f"there TensorFlow ignores the attr silently; a gradient of the library or a formula "
            f'is stored as a function (emit: auto), and "body": "main" leaves functions out'
        )
    if caller is not None:
        editor.report.note(
            f"function {node.body.label}: the new gradient works with GradientTape, after "
            f"tf.saved_model.load; a Session ignores it silently, as {caller.op} calls the function"
        )
    editor.set_attr(node, attrs.OVERRIDE, attrs.text(key))
    needs = "" if is_built_in else key
    editor.report.used("attr" if needs else BUILT_IN, session=needs, tape=needs)
    return True


def _with_named_tensors(
    gradient: Computed, target: Target, editor: RuleEditor
) -> tuple[Computed, Target]:
    """Return the gradient as a formula that reads tensors by name as further inputs of a target.

    Raises PatchError where the formula does not suit the target.
    """
    known_outputs(target.last)
    more = named_inputs(gradient, target, editor)
    with naming(target):
        if more:
            dtypes = [dtype for _, dtype in target.signature.inputs]
            gradient = InlineFormula(gradient.formula.with_more_inputs(dtypes))
            target = msgspec.structs.replace(target, more=more)
        form = target.form(gradient.formula), tuple(dtype for _, dtype in more)
        fit = partial(gradient_ops, gradient.formula, target.signature)
        editor.cached(("fits", gradient.key, form), fit)
    if more and not provenance.is_added(target.last):
        joined = partial(joined_shapes, gradient.formula)
        refuse_contradicted(
            [target], gradient.formula, lambda target: joined(target.signature), in_model=True
        )
    return gradient, target


# Tensors of the graph that a formula reads by name: `tensor("global_step:0")`. What carries the
# gradient of an op reads them forward, where the op stands. So each must be in the op's body and in
# the same loop and branch, and must not be computed from the op.


def named_tensors(gradient: Gradient) -> tuple[str, ...]:
    """Return the tensors that a gradient reads by name."""
    return gradient.formula.tensors if isinstance(gradient, InlineFormula) else ()


def named_inputs(
    gradient: Gradient, target: Target, editor: RuleEditor
) -> tuple[tuple[str, str], ...]:
    """Return what a gradient reads by name, with dtypes; of a variable its value, read beside it.

    Raises what `check_named` raises.
    """
    node, inputs = target.last, []
    for text, dtype, is_handle in check_named(gradient, target, editor):
        if is_handle:
            read = (f"{node.name}/read", "ReadVariableOp", [text], {"dtype": attrs.dtype(dtype)})
            text = editor.add(*read, node, before=True).tensor(0)
        inputs.append((text, dtype))
    return tuple(inputs)


def check_named(
    gradient: Gradient, target: Target, editor: RuleEditor
) -> list[tuple[str, str, bool]]:
    """Return the tensors that a gradient of this target reads by name, as inputs spell them.

    With each its dtype, and whether it is the handle of a variable, of whose value the dtype is.
    Raises PatchError where what carries the gradient cannot read one of them. Of one patch the
    first answer holds, whatever it put in the place of the ops since.
    """
    asked = "named", target.last.body.label, editor.patched
    return [
        editor.cached((*asked, name), partial(_checked, name, target, editor))
        for name in named_tensors(gradient)
    ]


def _checked(name: str, target: Target, editor: RuleEditor) -> tuple[str, str, bool]:
    node, body = target.last, target.last.body
    reads = f"{node}: the formula reads tensor({name!r})"
    tensor = tensor_named(body, name)
    if tensor is None:
        where = "the graph" if body.is_main else f"function {body.label}"
        near = did_you_mean(name.partition(":")[0], [*body.by_name, *body.arguments])
        reason = outputs_there([body], name) or f"{where} has no such tensor{near}"
        raise PatchError(f"{reads}, and {reason}")
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
    if producer is not None and editor.bodies.in_control_flow(body):
        flow = editor.cached(("contexts", body.label), lambda: control_flow(body))
        if flow.given(producer.index, str(tensor)) is not flow.context(node.index):
            raise PatchError(
                f"{reads}, which is not in the same v1 loop or branch; name a tensor that is, such "
                f"as the Enter or the Switch by which it comes in"
            )
    if producer is not None:
        known_outputs(producer)
    wiring = Wiring(body)
    index, output = wiring.tensor(str(tensor))
    (dtype,) = dtypes_of(producer, [wiring.form(index).outputs[output]])
    if dtype not in HANDLES:
        return str(tensor), dtype, False
    value = producer.attr("dtype") if producer is not None else None
    if producer is None or producer.op != RESOURCE_VARIABLE or value is None:
        raise PatchError(f"{reads}, which is a {dtype}; name the tensor that its value is read to")
    return str(tensor), DTYPE_NAMES[value.type], True
