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
from collections.abc import Mapping, Sequence

import msgspec

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import Argument, function_def, gradient_function, typed_node
from graphpatch.gradients.spec import Computed, LibraryGradient
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.functions import NO_INLINE
from graphpatch.graph.graph import Restored
from graphpatch.names import fresh, op_of
from graphpatch.opdefs import DIFFERENTIABLE, DTYPE_NAMES, NO_NUMBERS
from graphpatch.protos import AttrValue, FunctionDef

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


class GradientFunction(msgspec.Struct, frozen=True, eq=False):
    """A gradient for one op as a function (x..., y..., dy...) -> dx..., and its name for people.

    It gives dx0, ... of the inputs that have a gradient; `library` is what it calls. `newer` are op
    types in it that TensorFlow 1.15 does not know.
    """

    name: str
    function: FunctionDef
    library: tuple[FunctionDef, ...] = ()
    newer: tuple[str, ...] = ()


class AttachedFunctions(msgspec.Struct, frozen=True, eq=False):
    """The functions for one gradient on one kind of op.

    `read` are the op's inputs that `attach` takes, in its order; `stopped` those of them that get
    no gradient, before which a StopGradient stands. `key` is what a tape looks up, `library` what
    the gradient function calls, and `computed` that function without the zeros that it returns.
    """

    attach: FunctionDef
    gradient: FunctionDef
    computed: FunctionDef
    key: str
    read: tuple[int, ...]
    stopped: frozenset[int]
    library: tuple[FunctionDef, ...]


def computed_gradient(gradient: Computed, signature: Signature) -> GradientFunction:
    """Return the gradient function of a formula for an op of this signature.

    Raises FormulaError where the formula does not suit the op.
    """
    name = gradient.name if isinstance(gradient, LibraryGradient) else "formula"
    return GradientFunction(name, gradient_function(gradient.formula, signature))


def guard_gradient(dtype: str) -> GradientFunction:
    """Return the gradient of `guard(x0)`, which gives on x0 and, in a Session, dy as it comes.

    Where a runtime drops GradientDefs, the gradient of its body raises. Nothing of it is left in
    the forward pass of a Session, as the body of `attach` does not read x.
    """
    function = gradient_function(Formula.parse("dy"), Signature.of_tensor(dtype))
    return GradientFunction(f"{GUARD}_{dtype}", function)


def guard_key(functions: AttachedFunctions, dtype: str) -> str:
    """Return the key of a call of `guard` that goes with a call of `attach`.

    It tells the gradient: to register one gradient must not make the guards of others silent.
    """
    return f"{functions.key}_{GUARD}_{dtype}"


def is_guard(key: str) -> bool:
    """Return whether a key is that of a `guard`."""
    return key.startswith(FUNCTION_PREFIX) and _GUARD_KEY.search(key) is not None


def attached(
    gradient: GradientFunction, is_kept: bool = False, is_filter: bool = False
) -> AttachedFunctions:
    """Return the functions that carry a gradient for the op that it is for.

    `is_kept`: calls of `attach` are never inlined, which costs the forward pass a call each.
    `is_filter`: x0 is y0 as well, the tensor that `attach(x0)` gives on. Their names depend on what
    they do alone, so that the same gradient on like ops is one pair of functions. Raises
    FormulaError where the gradient reads what no function of a GradientDef can take.
    """
    computed = _scoped(gradient.function, {"y0": "x0"} if is_filter else {})
    flowing = {int(name[2:]) for name in computed.ret}
    used = {op_of(text) for node in computed.node_def for text in node.input}
    arguments, results = list[Argument](), list[tuple[str, int, str]]()
    nodes, names = list(computed.node_def), {node.name for node in computed.node_def}
    for arg in computed.signature.input_arg:
        kind, place = arg.name[0], int(arg.name.lstrip("dxy"))
        is_unread = kind == "x" and place not in flowing and arg.name not in used
        if is_unread or (is_filter and kind == "y"):
            continue
        arguments.append((arg.name, arg.type))
        if DTYPE_NAMES[arg.type] in NO_NUMBERS:
            dtype = DTYPE_NAMES[arg.type]
            raise FormulaError(f"{arg.name} is {dtype}; a gradient function cannot take it")
        if kind == "x" and place in flowing:
            results.append((f"dx{place}", arg.type, computed.ret[f"dx{place}"]))
        elif kind != "d":
            name = fresh(f"{FORMULA_SCOPE}/ZerosLike", names)
            names.add(name)
            nodes.append(typed_node(name, "ZerosLike", [arg.name], arg.type))
            results.append((f"{'d' if kind == 'x' else 'g'}{arg.name}", arg.type, f"{name}:y:0"))
    function = function_def("", arguments, nodes, results)
    function.signature.is_stateful = computed.signature.is_stateful
    label = re.sub(r"\W", "_", gradient.name)
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{label}_{content}_gradient"
    taken = [(name, dtype) for name, dtype in arguments if name[0] in "xy"]
    passed = [(name, dtype) for name, dtype in taken if name[0] == "y"] or taken
    attach = _giving_on(f"graphpatch_{label}_{content}{'_kept' * is_kept}", taken, passed, label)
    if is_kept:
        attach.attr[NO_INLINE].b = True
    read = tuple(int(name[1:]) for name, _ in taken if name[0] == "x")
    key = f"{FUNCTION_PREFIX}{label}_{content}"
    stopped = frozenset(read) - flowing
    return AttachedFunctions(attach, function, computed, key, read, stopped, gradient.library)


def _scoped(function: FunctionDef, renamed: Mapping[str, str]) -> FunctionDef:
    """Return a function with its ops in a scope of their own, and arguments by other names.

    Where TensorFlow inlines it in a v1 loop, its names stand beside those of ops that the gradient
    of the loop adds (`Const`), and TensorFlow aborts where two are the same.
    """
    scoped = FunctionDef()
    scoped.CopyFrom(function)
    names = {node.name for node in function.node_def}

    def spelled(text: str) -> str:
        if op_of(text) not in names:
            return renamed.get(text, text)
        control = "^" if text.startswith("^") else ""
        return f"{control}{FORMULA_SCOPE}/{text.removeprefix('^')}"

    for node in scoped.node_def:
        node.name = f"{FORMULA_SCOPE}/{node.name}"
        node.input[:] = map(spelled, node.input)
    for key, text in function.ret.items():
        scoped.ret[key] = spelled(text)
    return scoped


def _giving_on(
    name: str, taken: Sequence[Argument], passed: Sequence[Argument], label: str
) -> FunctionDef:
    """Return a function that gives arguments on, and raises where it is asked for a gradient."""
    nodes, results = [], []
    for place, (argument, dtype) in enumerate(passed):
        flows = DTYPE_NAMES[dtype] in DIFFERENTIABLE
        kind = "PreventGradient" if flows else "Identity"
        nodes.append(typed_node(f"given_{argument}", kind, [argument], dtype))
        if flows:
            nodes[-1].attr["message"].s = _DROPPED.format(label).encode()
        results.append((f"out{place}", dtype, f"given_{argument}:output:0"))
    return function_def(name, taken, nodes, results)


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
    taken = [(arg.name, arg.type) for arg in functions.attach.signature.input_arg]
    inputs, outputs = ([pair for pair in taken if pair[0][0] == kind] for kind in "xy")
    tape = _giving_on(f"{base}_tape", taken, outputs, f"{base}_tape")
    read = [*(tape.ret[f"out{place}"] for place in range(len(outputs))), *dict(inputs)]
    carry = tape.node_def.add(name=CARRY, op="IdentityN", input=read)
    carry.attr["T"].list.type.extend(dtype for _, dtype in (*outputs, *inputs))
    carry.attr[OVERRIDE].s = key.encode()
    for place in range(len(outputs)):
        tape.ret[f"out{place}"] = f"{CARRY}:output:{place}"
    computed = functions.computed
    arguments = [
        *((f"d{name}", dtype) for name, dtype in outputs),
        *((f"unread_{name}", dtype) for name, dtype in inputs),
        *taken,
    ]
    flowing = [(f"d{name}", dtype) for name, dtype in inputs if f"d{name}" in computed.ret]
    results = [(dx, dtype, computed.ret[dx]) for dx, dtype in flowing]
    gradient = function_def(f"{base}_tape_gradient", arguments, computed.node_def, results)
    gradient.signature.is_stateful = computed.signature.is_stateful
    names = (f"d{name}" if f"d{name}" in computed.ret else "" for name, _ in inputs)
    restored = ("",) * len(outputs) + tuple(names)
    return TapeFunctions(
        tape,
        Restored(key, gradient, restored, tuple(dict(taken)), f"{base}_tape"),
        _passing(f"{base}_pass_gradient", functions.key, len(inputs), outputs),
    )


def passed_on(dtype: int) -> Restored:
    """Return the gradient of the op between `tape` and `attach`: what comes, as it is."""
    name = DTYPE_NAMES[dtype]
    return _passing(f"graphpatch_pass_{name}_gradient", f"{PASS}{name}", 0, [("y0", dtype)])


def _passing(name: str, key: str, inputs: int, outputs: Sequence[Argument]) -> Restored:
    """Return the gradient of y alone: dy as it comes, for each y that carries one."""
    flowing = [pair for pair in outputs if DTYPE_NAMES[pair[1]] in DIFFERENTIABLE]
    scoped = {output: f"{FORMULA_SCOPE}/{output}" for output, _ in flowing}
    function = function_def(
        name,
        [(f"d{output}", dtype) for output, dtype in outputs],
        [
            typed_node(scoped[output], "Identity", [f"d{output}"], dtype)
            for output, dtype in flowing
        ],
        [(f"g{output}", dtype, f"{scoped[output]}:output:0") for output, dtype in flowing],
    )
    results = (f"g{output}" if output in scoped else "" for output, _ in outputs)
    return Restored(key, function, ("",) * inputs + tuple(results))


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
