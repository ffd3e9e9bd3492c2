"""The two functions that carry a gradient in a file: one attaches it, the other computes it.

`attach(x..., y...)` gives on y, the op's own outputs, bit for bit. A GradientDef names its
gradient function, which TensorFlow calls in a Session with (x..., y..., dy...). Where a runtime
drops GradientDefs (a tape), the body of `attach` raises instead of passing another gradient on.
XLA does not compute what nobody needs, such as the gradient of y, which would raise. So each x
with a gradient comes through a call of `guard`, whose body raises when dx passes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functiondef_form import gradient_function
from graphpatch.gradients.gradient_program import choose
from graphpatch.gradients.signature import Signature
from graphpatch.gradients.spec import Computed, LibraryGradient
from graphpatch.graph.calls import NO_INLINE
from graphpatch.names import op_of

FUNCTION_PREFIX = "graphpatch/"
FORMULA_SCOPE = "formula"
GUARD = "guard"

_GUARD_KEY = re.compile(rf"_[0-9a-f]{{8}}_{GUARD}_[a-z]+\d+$", re.ASCII)


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
    gradient: Computed, signature: Signature, kept: bool = False
) -> AttachedFunctions:
    """The functions that carry this gradient for an op of this signature.

    `kept`: calls of `attach` are never inlined, which costs the forward pass a call each.
    Their names depend on what they do alone, so that the same gradient on like ops is one pair of
    functions. Raises FormulaError where the formula does not suit the op.
    """
    formula = gradient.formula
    chosen = choose(formula, signature)
    flowing = {place for place, one in enumerate(chosen) if one is not None}
    read = [
        place
        for place, (name, _) in enumerate(signature.inputs)
        if place in flowing or name in formula.variables or formula.reads_op
    ]
    inputs = [signature.inputs[place] for place in read]
    op = (signature.attrs, signature.same_shape, signature.op_type)
    function = gradient_function("", formula, inputs, signature.outputs, *op)
    given = {name: name for name, _ in signature.outputs}
    stopped = frozenset(read) - flowing
    return pair(_gradient_label(gradient), function, given, tuple(read), stopped, kept)


def filter_functions(gradient: Computed, dtype: str, kept: bool = False) -> AttachedFunctions:
    """The functions that filter what flows back through a tensor: `attach(x0)` gives on x0.

    Raises FormulaError where the formula does not suit one tensor of this dtype.
    """
    function = gradient_function(
        "", gradient.formula, [("x0", dtype)], [("y0", dtype)], same_shape=True
    )
    merge_output_into_input(function)
    return pair(_gradient_label(gradient), function, {"y0": "x0"}, (0,), frozenset(), kept)


def guard_functions(dtype: str) -> AttachedFunctions:
    """The functions of `guard(x0)`, which gives on x0 and, in a Session, its gradient as it comes.

    Where a runtime drops GradientDefs, the gradient of its body raises. Nothing of it is left in
    the forward pass of a Session, as the body of `attach` does not read x.
    """
    one = ([("x0", dtype)], [("y0", dtype)])
    function = gradient_function("", Formula.parse("dy"), *one, same_shape=True)
    merge_output_into_input(function)
    return pair(f"{GUARD}_{dtype}", function, {"y0": "x0"}, (0,), frozenset(), False)


def guard_key(found: AttachedFunctions, dtype: str) -> str:
    """The key of a call of `guard` that goes with a call of `attach`.

    It tells the gradient: to register one gradient must not make the guards of others silent.
    """
    return f"{found.key}_{GUARD}_{dtype}"


def is_guard(key: str) -> bool:
    """Whether a key is that of a `guard`."""
    return key.startswith(FUNCTION_PREFIX) and _GUARD_KEY.search(key) is not None


def _gradient_label(gradient: Computed) -> str:
    return gradient.name if isinstance(gradient, LibraryGradient) else "formula"


def merge_output_into_input(function: FunctionDef) -> None:
    """Let x0 be y0 as well: of a filter both are the tensor, and nothing flows back to y0."""
    del function.ret["gy0"]
    for args, name in (
        (function.signature.input_arg, "y0"),
        (function.signature.output_arg, "gy0"),
    ):
        args.remove(next(arg for arg in args if arg.name == name))
    for node in function.node_def:
        node.input[:] = ["x0" if text == "y0" else text for text in node.input]
    drop_unread(function)


def drop_unread(function: FunctionDef) -> None:
    """Take out the ops of a function that nothing needs."""
    read = {op_of(text) for node in function.node_def for text in node.input}
    read |= {op_of(text) for text in function.ret.values()}
    kept = [node for node in function.node_def if node.name in read]
    if len(kept) < len(function.node_def):
        del function.node_def[:]
        function.node_def.extend(kept)
        drop_unread(function)


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


def pair(
    name: str,
    function: FunctionDef,
    given: Mapping[str, str],
    read: tuple[int, ...],
    stopped: frozenset[int],
    kept: bool,
    library: tuple[FunctionDef, ...] = (),
) -> AttachedFunctions:
    """The gradient function under its name, with the `attach` that it belongs to.

    `given` says which argument each output of `attach` gives on; `name` is for people to read.
    """
    _scoped(function)
    label = re.sub(r"\W", "_", name)
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{label}_{content}_gradient"
    attach = FunctionDef()
    attach.signature.name = f"graphpatch_{label}_{content}" + ("_kept" if kept else "")
    if kept:
        attach.attr[NO_INLINE].b = True
    upstream = {f"d{name}" for name in given}
    args = [arg for arg in function.signature.input_arg if arg.name not in upstream]
    attach.signature.input_arg.extend(args)
    types = {arg.name: arg.type for arg in args}
    for place, argument in enumerate(given.values()):
        attach.signature.output_arg.add(name=f"out{place}", type=types[argument])
        attach.node_def.append(given_on(argument, types[argument], label))
        attach.ret[f"out{place}"] = f"{attach.node_def[-1].name}:output:0"
    return AttachedFunctions(
        attach, function, f"{FUNCTION_PREFIX}{label}_{content}", read, stopped, library
    )


def given_on(argument: str, dtype: int, label: str) -> NodeDef:
    """An op that gives an argument on; one that carries a gradient raises if it is asked for it."""
    flows = DTYPE_NAMES[dtype] in DIFFERENTIABLE
    node = NodeDef(name=f"given_{argument}", op="PreventGradient" if flows else "Identity")
    node.input.append(argument)
    node.attr["T"].type = dtype
    if flows:
        node.attr["message"].s = _DROPPED.format(label).encode()
    return node


_DROPPED = (
    "the gradient {} that this file carries was dropped by the runtime; call "
    "graphpatch.register_gradients with the file first"
)
