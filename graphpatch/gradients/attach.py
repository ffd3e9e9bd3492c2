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
from collections.abc import Mapping

import msgspec

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES, NO_NUMBERS
from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import chosen_formulas, gradient_function
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

    `is_kept`: calls of `attach` are never inlined, which costs the forward pass a call each.
    Their names depend on what they do alone, so that the same gradient on like ops is one pair of
    functions. Raises FormulaError where the formula does not suit the op.
    """
    formula = gradient.formula
    flowing = {int(name[1:]) for (name, _), *_ in chosen_formulas(formula, signature)}
    read = tuple(
        place
        for place, (name, _) in enumerate(signature.inputs)
        if place in flowing or name in formula.variables or formula.reads_op
    )
    function = gradient_function(formula, signature, read=read)
    stopped = frozenset(read) - flowing
    return _attached(_gradient_label(gradient), function, is_kept, read, stopped)


def filter_functions(gradient: Computed, dtype: str, is_kept: bool = False) -> AttachedFunctions:
    """Return the functions that filter what flows back through a tensor: `attach(x0)` gives on x0.

    Raises FormulaError where the formula does not suit one tensor of this dtype.
    """
    return _filter(_gradient_label(gradient), gradient.formula, dtype, is_kept)


def guard_functions(dtype: str) -> AttachedFunctions:
    """The functions of `guard(x0)`, which gives on x0 and, in a Session, its gradient as it comes.

    Where a runtime drops GradientDefs, the gradient of its body raises. Nothing of it is left in
    the forward pass of a Session, as the body of `attach` does not read x.
    """
    return _filter(f"{GUARD}_{dtype}", Formula.parse("dy"), dtype, is_kept=False)


def _filter(name: str, formula: Formula, dtype: str, is_kept: bool) -> AttachedFunctions:
    function = gradient_function(formula, Signature.of_tensor(dtype), is_filter=True)
    return _attached(name, function, is_kept)


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


def _attached(
    name: str,
    function: FunctionDef,
    is_kept: bool,
    read: tuple[int, ...] = (0,),
    stopped: frozenset[int] = frozenset(),
    library: tuple[FunctionDef, ...] = (),
) -> AttachedFunctions:
    """Return the gradient function under its name, with the `attach` that it belongs to.

    `attach` gives each y on, and x0 of a filter, which has no y; `name` is for people to read.
    """
    _scope(function)
    label = re.sub(r"\W", "_", name)
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{label}_{content}_gradient"
    attach = FunctionDef()
    attach.signature.name = f"graphpatch_{label}_{content}" + ("_kept" if is_kept else "")
    if is_kept:
        attach.attr[NO_INLINE].b = True
    args = [arg for arg in function.signature.input_arg if arg.name[0] in "xy"]
    attach.signature.input_arg.extend(args)
    for place, arg in enumerate([arg for arg in args if arg.name[0] == "y"] or args):
        attach.node_def.append(_giving_on(arg, label))
        _return(attach, f"out{place}", arg.type, f"{attach.node_def[-1].name}:output:0")
    key = f"{FUNCTION_PREFIX}{label}_{content}"
    return AttachedFunctions(attach, function, key, read, stopped, library)


def _scope(function: FunctionDef) -> None:
    """Put the ops of a function into a scope of its own.

    Where TensorFlow inlines it in a v1 loop, its names stand beside those of ops that the
    gradient of the loop adds (`Const`), and TensorFlow aborts where two are the same.
    """
    names = {node.name for node in function.node_def}

    def scoped(text: str) -> str:
        if op_of(text) not in names:
            return text
        control = "^" if text.startswith("^") else ""
        return f"{control}{FORMULA_SCOPE}/{text.removeprefix('^')}"

    for node in function.node_def:
        node.name = f"{FORMULA_SCOPE}/{node.name}"
        node.input[:] = map(scoped, node.input)
    for key, text in sorted(function.ret.items()):
        function.ret[key] = scoped(text)


def _giving_on(arg: OpDef.ArgDef, label: str) -> NodeDef:
    """An op that gives an argument on; one that carries a gradient raises if it is asked for it."""
    flows = DTYPE_NAMES[arg.type] in DIFFERENTIABLE
    kind = "PreventGradient" if flows else "Identity"
    node = NodeDef(name=f"given_{arg.name}", op=kind, input=[arg.name])
    node.attr["T"].type = arg.type
    if flows:
        node.attr["message"].s = _DROPPED.format(label).encode()
    return node


def _return(function: FunctionDef, name: str, dtype: int, tensor: str) -> None:
    """Let a function return a tensor, too."""
    function.signature.output_arg.add(name=name, type=dtype)
    function.ret[name] = tensor


class TapeFunctions(msgspec.Struct, frozen=True, eq=False):
    """The function `tape`, the gradient of the op in it, and that of a call of `attach`."""

    tape: FunctionDef
    gradient: Restored
    passing: Restored


def tape_functions(functions: AttachedFunctions) -> TapeFunctions:
    """Return the functions for a tape that go with those for a Session.

    The gradient is (dy..., du..., x..., y...) -> dx..., where du are the gradients of the copies of
    x, which nothing reads.
    """
    base, key = functions.gradient.signature.name.removesuffix("_gradient"), f"{functions.key}_tape"
    args = functions.attach.signature.input_arg
    inputs, outputs = ([arg for arg in args if arg.name[0] == kind] for kind in "xy")
    flowing = {f"dx{slot}" for slot in set(functions.read) - functions.stopped}
    gradient = FunctionDef()
    gradient.CopyFrom(functions.gradient)
    gradient.signature.name = f"{base}_tape_gradient"
    del gradient.signature.input_arg[:]
    for prefix, of in (("d", outputs), ("unread_", inputs), ("", [*inputs, *outputs])):
        for arg in of:
            gradient.signature.input_arg.add(name=f"{prefix}{arg.name}", type=arg.type)
    _return_only(gradient, flowing)
    names = [f"d{arg.name}" for arg in inputs]
    results = ("",) * len(outputs) + tuple(name if name in flowing else "" for name in names)
    captured = tuple(arg.name for arg in (*inputs, *outputs))
    return TapeFunctions(
        _tape(f"{base}_tape", key, inputs, outputs),
        Restored(key, gradient, results, captured, f"{base}_tape"),
        _passing(f"{base}_pass_gradient", functions.key, len(inputs), outputs),
    )


def _tape(
    name: str, key: str, inputs: list[OpDef.ArgDef], outputs: list[OpDef.ArgDef]
) -> FunctionDef:
    tape = FunctionDef(node_def=[_giving_on(arg, name) for arg in outputs])
    tape.signature.name = name
    tape.signature.input_arg.extend([*inputs, *outputs])
    read = [*(f"{node.name}:output:0" for node in tape.node_def), *(arg.name for arg in inputs)]
    carry = tape.node_def.add(name=CARRY, op="IdentityN", input=read)
    carry.attr["T"].list.type.extend(arg.type for arg in (*outputs, *inputs))
    carry.attr[OVERRIDE].s = key.encode()
    for place, arg in enumerate(outputs):
        _return(tape, f"out{place}", arg.type, f"{CARRY}:output:{place}")
    return tape


def _return_only(function: FunctionDef, names: set[str]) -> None:
    """Take out the other results of a function, and the ops that nothing needs then."""
    results = [arg for arg in function.signature.output_arg if arg.name in names]
    for name in set(function.ret) - names:
        del function.ret[name]
    del function.signature.output_arg[:]
    function.signature.output_arg.extend(results)
    count = -1
    while count != len(function.node_def):
        count = len(function.node_def)
        texts = [text for node in function.node_def for text in node.input]
        read = {op_of(text) for text in [*texts, *function.ret.values()]}
        needed = [node for node in function.node_def if node.name in read]
        del function.node_def[:]
        function.node_def.extend(needed)


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
            name, read = f"{FORMULA_SCOPE}/{arg.name}", [f"d{arg.name}"]
            node = function.node_def.add(name=name, op="Identity", input=read)
            node.attr["T"].type = arg.type
            _return(function, f"g{arg.name}", arg.type, f"{name}:output:0")
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
    function = traced.function
    texts = [text for node in function.node_def for text in node.input]
    names = {op_of(text) for text in [*texts, *function.ret.values()]}
    inputs = [arg.name for arg in function.signature.input_arg if arg.name[0] == "x"]
    flowing = {int(arg.name[2:]) for arg in function.signature.output_arg}
    read = tuple(n for n, name in enumerate(inputs) if n in flowing or name in names)
    function = _with_zeros(function, {f"x{place}" for place in read})
    stopped = frozenset(read) - flowing
    return _attached(traced.name, function, is_kept, read, stopped, traced.library)


def filtering_traced(traced: TracedFunction, is_kept: bool) -> AttachedFunctions:
    """The functions that filter what flows back through the tensor that it was traced for."""
    function = _with_zeros(traced.function, {"x0"})
    for node in function.node_def:  # of a filter x0 is y0 as well
        node.input[:] = ["x0" if text == "y0" else text for text in node.input]
    args = [arg for arg in function.signature.input_arg if arg.name != "y0"]
    del function.signature.input_arg[:]
    function.signature.input_arg.extend(args)
    _return_only(function, {"dx0"})
    return _attached(traced.name, function, is_kept, library=traced.library)


def _with_zeros(traced: FunctionDef, inputs: set[str]) -> FunctionDef:
    """Return the function with these inputs alone, and a result for each of them and each y.

    A result is zeros where none was traced.
    """
    function = FunctionDef()
    function.CopyFrom(traced)
    signature = function.signature
    args = [arg for arg in signature.input_arg if arg.name[0] != "x" or arg.name in inputs]
    del signature.input_arg[:], signature.output_arg[:]
    signature.input_arg.extend(args)
    for arg in args:
        if arg.name[0] == "d":
            continue
        if DTYPE_NAMES[arg.type] in NO_NUMBERS:
            dtype = DTYPE_NAMES[arg.type]
            raise FormulaError(f"{arg.name} is {dtype}; a gradient function cannot take it")
        result = f"{'d' if arg.name[0] == 'x' else 'g'}{arg.name}"
        signature.output_arg.add(name=result, type=arg.type)
        if result not in function.ret:
            name = fresh(f"zeros_{arg.name}", {node.name for node in function.node_def})
            zeros = function.node_def.add(name=name, op="ZerosLike", input=[arg.name])
            zeros.attr["T"].type = arg.type
            function.ret[result] = f"{name}:y:0"
    return function
