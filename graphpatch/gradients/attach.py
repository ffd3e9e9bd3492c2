"""The functions that carry a gradient in a file: one attaches it, the other computes it.

`attach(x..., y...)` gives on y, the op's own outputs, bit for bit. A GradientDef names its
gradient function, which TensorFlow calls in a Session with (x..., y..., dy...). Where a runtime
drops GradientDefs (a tape), the body of `attach` raises instead of passing another gradient on.
XLA does not compute what nobody needs, such as the gradient of y, which would raise. So each x
with a gradient comes through a call of `guard`, whose body raises when dx passes it.

In a TF2 SavedModel `attach` is left to a Session; on a tape its gradient is that of y alone, which
goes on to `tape(x..., y...)`, called by PartitionedCall. That gives y on too, by an op of the
arguments whose registered gradient captures them: TensorFlow restores the call with the graph that
they are tensors of, inside While and If as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import msgspec

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES, NO_NUMBERS
from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.lowering import gradient_function
from graphpatch.gradients.program import chosen_formulas
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, LibraryGradient
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.functions import NO_INLINE
from graphpatch.graph.graph import Restored
from graphpatch.names import fresh, op_of
from graphpatch.protos import AttrValue, FunctionDef, NodeDef, OpDef

FUNCTION_PREFIX = "graphpatch/"
FORMULA_SCOPE = "formula"
GUARD = "guard"
CARRY = "carry"
PASS = f"{FUNCTION_PREFIX}pass_"

_GUARD_KEY = re.compile(rf"_[0-9a-f]{{8}}_{GUARD}_[a-z]+\d+$", re.ASCII)

_DROPPED = (
    "the gradient {} that this file carries was dropped by the runtime; call "
    "graphpatch.register_gradients with the file first"
)


class AttachedFunctions(msgspec.Struct, frozen=True, eq=False):
    """The functions for one gradient on one kind of op.

    `read` are the op's inputs that `attach` takes, in its order; `stopped` those of them that get
    no gradient, before which a StopGradient stands. `key` is what a tape looks up, `library` what
    the gradient function calls.
    """

    attach: FunctionDef
    gradient: FunctionDef
    key: str
    read: tuple[int, ...]
    stopped: frozenset[int]
    library: tuple[FunctionDef, ...] = ()


def attached_functions(
    gradient: Computed, signature: Signature, is_kept: bool = False
) -> AttachedFunctions:
    """Return the functions that carry this gradient for an op of this signature.

    `kept`: calls of `attach` are never inlined, which costs the forward pass a call each.
    Their names depend on what they do alone, so that the same gradient on like ops is one pair of
    functions. Raises FormulaError where the formula does not suit the op.
    """
    formula = gradient.formula
    flowing = {int(name[1:]) for (name, _), *_ in chosen_formulas(formula, signature)}
    read = [
        place
        for place, (name, _) in enumerate(signature.inputs)
        if place in flowing or name in formula.variables or formula.reads_op
    ]
    inputs = [signature.inputs[place] for place in read]
    op = (signature.attrs, signature.same_shape, signature.op_type, signature.more)
    function = gradient_function("", formula, inputs, signature.outputs, *op)
    outputs = {name: name for name, _ in signature.outputs}
    stopped = frozenset(read) - flowing
    return _pair(_gradient_label(gradient), function, outputs, tuple(read), stopped, is_kept)


def filter_functions(gradient: Computed, dtype: str, is_kept: bool = False) -> AttachedFunctions:
    """Return the functions that filter what flows back through a tensor: `attach(x0)` gives on x0.

    Raises FormulaError where the formula does not suit one tensor of this dtype.
    """
    function = gradient_function(
        "", gradient.formula, [("x0", dtype)], [("y0", dtype)], same_shape=True
    )
    _merge_output_into_input(function)
    return _pair(_gradient_label(gradient), function, {"y0": "x0"}, (0,), frozenset(), is_kept)


def guard_functions(dtype: str) -> AttachedFunctions:
    """The functions of `guard(x0)`, which gives on x0 and, in a Session, its gradient as it comes.

    Where a runtime drops GradientDefs, the gradient of its body raises. Nothing of it is left in
    the forward pass of a Session, as the body of `attach` does not read x.
    """
    dtypes = ([("x0", dtype)], [("y0", dtype)])
    function = gradient_function("", Formula.parse("dy"), *dtypes, same_shape=True)
    _merge_output_into_input(function)
    return _pair(f"{GUARD}_{dtype}", function, {"y0": "x0"}, (0,), frozenset(), False)


def guard_key(functions: AttachedFunctions, dtype: str) -> str:
    """Return the key of a call of `guard` that goes with a call of `attach`.

    It tells the gradient: to register one gradient must not make the guards of others silent.
    """
    return f"{functions.key}_{GUARD}_{dtype}"


def is_guard(key: str) -> bool:
    """Return whether a key is that of a `guard`."""
    return key.startswith(FUNCTION_PREFIX) and _GUARD_KEY.search(key) is not None


def _gradient_label(gradient: Computed) -> str:
    return gradient.name if isinstance(gradient, LibraryGradient) else "formula"


def _merge_output_into_input(function: FunctionDef) -> None:
    """Let x0 be y0 as well: of a filter both are the tensor, and nothing flows back to y0."""
    del function.ret["gy0"]
    for args, name in (
        (function.signature.input_arg, "y0"),
        (function.signature.output_arg, "gy0"),
    ):
        args.remove(next(arg for arg in args if arg.name == name))
    for node in function.node_def:
        node.input[:] = ["x0" if text == "y0" else text for text in node.input]
    _drop_unread(function)


def _drop_unread(function: FunctionDef) -> None:
    """Take out the ops of a function that nothing needs."""
    read = {op_of(text) for node in function.node_def for text in node.input}
    read |= {op_of(text) for text in function.ret.values()}
    needed = [node for node in function.node_def if node.name in read]
    if len(needed) < len(function.node_def):
        del function.node_def[:]
        function.node_def.extend(needed)
        _drop_unread(function)


def _scoped(function: FunctionDef) -> None:
    """Put the ops of a function into a scope of its own.

    Where TensorFlow inlines it in a v1 loop, its names stand beside those of ops that the
    gradient of the loop adds (`Const`), and TensorFlow aborts where two are the same.
    """
    names = {node.name for node in function.node_def}
    for node in function.node_def:
        node.name = f"{FORMULA_SCOPE}/{node.name}"
        node.input[:] = [_in_scope(text, names) for text in node.input]
    for key, text in sorted(function.ret.items()):
        function.ret[key] = _in_scope(text, names)


def _in_scope(text: str, names: set[str]) -> str:
    if op_of(text) not in names:
        return text
    return f"^{FORMULA_SCOPE}/{text[1:]}" if text.startswith("^") else f"{FORMULA_SCOPE}/{text}"


def _pair(
    name: str,
    function: FunctionDef,
    outputs: Mapping[str, str],
    read: tuple[int, ...],
    stopped: frozenset[int],
    is_kept: bool,
    library: tuple[FunctionDef, ...] = (),
) -> AttachedFunctions:
    """Return the gradient function under its name, with the `attach` that it belongs to.

    `given` says which argument each output of `attach` gives on; `name` is for people to read.
    """
    _scoped(function)
    label = re.sub(r"\W", "_", name)
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{label}_{content}_gradient"
    attach = FunctionDef()
    attach.signature.name = f"graphpatch_{label}_{content}" + ("_kept" if is_kept else "")
    if is_kept:
        attach.attr[NO_INLINE].b = True
    upstream = {f"d{name}" for name in outputs}
    args = [arg for arg in function.signature.input_arg if arg.name not in upstream]
    attach.signature.input_arg.extend(args)
    types = {arg.name: arg.type for arg in args}
    for place, argument in enumerate(outputs.values()):
        attach.signature.output_arg.add(name=f"out{place}", type=types[argument])
        attach.node_def.append(_given_on(argument, types[argument], label))
        attach.ret[f"out{place}"] = f"{attach.node_def[-1].name}:output:0"
    return AttachedFunctions(
        attach, function, f"{FUNCTION_PREFIX}{label}_{content}", read, stopped, library
    )


def _given_on(argument: str, dtype: int, label: str) -> NodeDef:
    """An op that gives an argument on; one that carries a gradient raises if it is asked for it."""
    flows = DTYPE_NAMES[dtype] in DIFFERENTIABLE
    node = NodeDef(name=f"given_{argument}", op="PreventGradient" if flows else "Identity")
    node.input.append(argument)
    node.attr["T"].type = dtype
    if flows:
        node.attr["message"].s = _DROPPED.format(label).encode()
    return node


class TapeFunctions(msgspec.Struct, frozen=True, eq=False):
    """The function `tape`, the gradient of the op in it, and that of a call of `attach`."""

    tape: FunctionDef
    gradient: Restored
    passing: Restored


def tape_functions(functions: AttachedFunctions) -> TapeFunctions:
    """Return the functions for a tape that go with those for a Session."""
    base = functions.gradient.signature.name.removesuffix("_gradient")
    inputs = [arg for arg in functions.attach.signature.input_arg if arg.name[0] == "x"]
    outputs = [arg for arg in functions.attach.signature.input_arg if arg.name[0] == "y"]
    tape = _tape(f"{base}_tape", f"{functions.key}_tape", inputs, outputs)
    flowing = {f"x{slot}" for slot in set(functions.read) - functions.stopped}
    gradient = _gradient_function(
        f"{base}_tape_gradient", functions.gradient, inputs, outputs, flowing
    )
    results = tuple(f"d{arg.name}" if arg.name in flowing else "" for arg in inputs)
    captured = tuple(arg.name for arg in (*inputs, *outputs))
    of = tape.signature.name
    return TapeFunctions(
        tape,
        Restored(f"{functions.key}_tape", gradient, ("",) * len(outputs) + results, captured, of),
        _passing(f"{base}_pass_gradient", functions.key, len(inputs), outputs),
    )


def _tape(
    name: str, key: str, inputs: list[OpDef.ArgDef], outputs: list[OpDef.ArgDef]
) -> FunctionDef:
    tape = FunctionDef()
    tape.signature.name = name
    tape.signature.input_arg.extend([*inputs, *outputs])
    tape.node_def.extend(_given_on(arg.name, arg.type, name) for arg in outputs)
    read = [*(f"{node.name}:output:0" for node in tape.node_def), *(arg.name for arg in inputs)]
    carry = tape.node_def.add(name=CARRY, op="IdentityN", input=read)
    carry.attr["T"].list.type.extend(arg.type for arg in (*outputs, *inputs))
    carry.attr[OVERRIDE].s = key.encode()
    for place, arg in enumerate(outputs):
        tape.signature.output_arg.add(name=f"out{place}", type=arg.type)
        tape.ret[f"out{place}"] = f"{CARRY}:output:{place}"
    return tape


def _gradient_function(
    name: str,
    function: FunctionDef,
    inputs: list[OpDef.ArgDef],
    outputs: list[OpDef.ArgDef],
    flowing: set[str],
) -> FunctionDef:
    """(dy..., du..., x..., y...) -> dx..., where du are the unread gradients of the copies of x."""
    result = FunctionDef()
    result.CopyFrom(function)
    result.signature.name = name
    args = result.signature.input_arg
    del args[:]
    for arg in outputs:
        args.add(name=f"d{arg.name}", type=arg.type)
    for arg in inputs:
        args.add(name=f"unread_{arg.name}", type=arg.type)
    args.extend([*inputs, *outputs])
    _keep_results(result, {f"d{name}" for name in flowing})
    return result


def _keep_results(function: FunctionDef, names: Iterable[str]) -> None:
    results = [arg for arg in function.signature.output_arg if arg.name in names]
    for arg in function.signature.output_arg:
        if arg not in results:
            del function.ret[arg.name]
    del function.signature.output_arg[:]
    function.signature.output_arg.extend(results)
    _drop_unread(function)


def passed_on(dtype: int) -> Restored:
    """Return the gradient of the op between `tape` and `attach`: what comes, as it is."""
    name = DTYPE_NAMES[dtype]
    argument = OpDef.ArgDef(name="y0", type=dtype)
    return _passing(f"graphpatch_pass_{name}_gradient", f"{PASS}{name}", 0, [argument])


def _passing(name: str, key: str, inputs: int, outputs: list[OpDef.ArgDef]) -> Restored:
    """Return the gradient of y alone: dy as it comes, for each y that carries one."""
    function = FunctionDef()
    function.signature.name = name
    results = [""] * inputs
    for arg in outputs:
        function.signature.input_arg.add(name=f"d{arg.name}", type=arg.type)
        flows = DTYPE_NAMES[arg.type] in DIFFERENTIABLE
        results.append(f"g{arg.name}" if flows else "")
        if flows:
            node = function.node_def.add(name=f"{FORMULA_SCOPE}/{arg.name}", op="Identity")
            node.input.append(f"d{arg.name}")
            node.attr["T"].type = arg.type
            function.signature.output_arg.add(name=f"g{arg.name}", type=arg.type)
            function.ret[f"g{arg.name}"] = f"{node.name}:output:0"
    return Restored(key, function, tuple(results))


class OpDtypes(msgspec.Struct, frozen=True, eq=False):
    """The op that a gradient function is traced for: the dtypes of its inputs and outputs by name.

    `attrs` are those that the NodeDef carries, large tensors left out.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, AttrValue]
    device: str = ""

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}"


class TracedFunction(msgspec.Struct, frozen=True, eq=False):
    """What became of the Python function `name` for one op.

    `function` is (x..., y..., dy...) -> dx... with dx0, ... of the inputs that have a gradient;
    `library` is what it calls. `newer` are op types that TensorFlow 1.15 does not know.
    """

    name: str
    function: FunctionDef
    library: tuple[FunctionDef, ...] = ()
    newer: tuple[str, ...] = ()


def attached_traced(traced: TracedFunction, is_kept: bool) -> AttachedFunctions:
    """Return the functions that carry the gradient for the op that it was traced for.

    Raises FormulaError where it reads what no function of a GradientDef can take.
    """
    function = FunctionDef()
    function.CopyFrom(traced.function)
    flowing = {_input_place(arg.name) for arg in function.signature.output_arg}
    read = sorted(
        flowing | {_input_place(text) for text in _arguments_read(function) if text[0] == "x"}
    )
    _keep(function, read)
    _return_all(function, read)
    outputs = [arg.name for arg in function.signature.input_arg if arg.name[0] == "y"]
    same = {name: name for name in outputs}
    stopped = frozenset(read) - flowing
    return _pair(traced.name, function, same, tuple(read), stopped, is_kept, traced.library)


def filtering_traced(traced: TracedFunction, is_kept: bool) -> AttachedFunctions:
    """The functions that filter what flows back through the tensor that it was traced for."""
    function = FunctionDef()
    function.CopyFrom(traced.function)
    _return_all(function, [0])
    _merge_output_into_input(function)
    return _pair(traced.name, function, {"y0": "x0"}, (0,), frozenset(), is_kept, traced.library)


def _input_place(argument: str) -> int:
    """Return which input an argument x1, or a result dx1, belongs to."""
    return int(argument.lstrip("dx"))


def _arguments_read(function: FunctionDef) -> set[str]:
    """Return the arguments that the ops of a function read."""
    arguments = {arg.name for arg in function.signature.input_arg}
    texts = [text for node in function.node_def for text in node.input]
    return {op_of(text) for text in [*texts, *function.ret.values()]} & arguments


def _keep(function: FunctionDef, read: Iterable[int]) -> None:
    """Take out the inputs of the op that are neither read nor have a gradient."""
    inputs = {f"x{place}" for place in read}
    read_arguments = [
        a for a in function.signature.input_arg if a.name[0] != "x" or a.name in inputs
    ]
    del function.signature.input_arg[:]
    function.signature.input_arg.extend(read_arguments)


def _return_all(function: FunctionDef, read: Iterable[int]) -> None:
    """Return dx of each input that is read, and gy of each output: zeros where none was traced."""
    signature = function.signature
    types = {arg.name: arg.type for arg in signature.input_arg}
    wanted = {f"dx{place}": f"x{place}" for place in read}
    wanted |= {f"g{name}": name for name in types if name[0] == "y"}
    del signature.output_arg[:]
    for result, like in wanted.items():
        dtype = DTYPE_NAMES[types[like]]
        if dtype in NO_NUMBERS:
            raise FormulaError(f"{like} is {dtype}; a gradient function cannot take it")
        signature.output_arg.add(name=result, type=types[like])
        if result not in function.ret:
            name = fresh(f"zeros_{like}", {node.name for node in function.node_def})
            zeros = function.node_def.add(name=name, op="ZerosLike", input=[like])
            zeros.attr["T"].type = types[like]
            function.ret[result] = f"{name}:y:0"
