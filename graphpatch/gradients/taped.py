"""What a TF2 SavedModel holds besides, so that a tape finds the gradients in the file.

`attach` is left to a Session, which honours the GradientDef; on a tape its gradient is that of
y alone, which goes on to `tape(x..., y...)`, called by PartitionedCall. That gives y on too, by an
op of the arguments whose registered gradient captures them: TensorFlow restores the call with
the graph that they are tensors of, inside While and If as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.op_def_pb2 import OpDef

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.gradients.attach import (
    FORMULA_SCOPE,
    FUNCTION_PREFIX,
    AttachedFunctions,
    drop_unread,
    given_on,
)
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.graph import Restored

CARRY = "carry"
PASS = f"{FUNCTION_PREFIX}pass_"


class TapeFunctions(msgspec.Struct, frozen=True, eq=False):
    """The function `tape`, the gradient of the op in it, and that of a call of `attach`."""

    tape: FunctionDef
    gradient: Restored
    passing: Restored


def tape_functions(found: AttachedFunctions) -> TapeFunctions:
    """The functions for a tape that go with those for a Session."""
    base = found.gradient.signature.name.removesuffix("_gradient")
    inputs = [arg for arg in found.attach.signature.input_arg if arg.name[0] == "x"]
    outputs = [arg for arg in found.attach.signature.input_arg if arg.name[0] == "y"]
    tape = _tape(f"{base}_tape", f"{found.key}_tape", inputs, outputs)
    flowing = {f"x{slot}" for slot in set(found.read) - found.stopped}
    gradient = _gradient_function(f"{base}_tape_gradient", found.gradient, inputs, outputs, flowing)
    results = tuple(f"d{arg.name}" if arg.name in flowing else "" for arg in inputs)
    captured = tuple(arg.name for arg in (*inputs, *outputs))
    of = tape.signature.name
    return TapeFunctions(
        tape,
        Restored(f"{found.key}_tape", gradient, ("",) * len(outputs) + results, captured, of),
        _passing(f"{base}_pass_gradient", found.key, len(inputs), outputs),
    )


def _tape(
    name: str, key: str, inputs: list[OpDef.ArgDef], outputs: list[OpDef.ArgDef]
) -> FunctionDef:
    tape = FunctionDef()
    tape.signature.name = name
    tape.signature.input_arg.extend([*inputs, *outputs])
    tape.node_def.extend(given_on(arg.name, arg.type, name) for arg in outputs)
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
    found = FunctionDef()
    found.CopyFrom(function)
    found.signature.name = name
    args = found.signature.input_arg
    del args[:]
    for arg in outputs:
        args.add(name=f"d{arg.name}", type=arg.type)
    for arg in inputs:
        args.add(name=f"unread_{arg.name}", type=arg.type)
    args.extend([*inputs, *outputs])
    _keep_results(found, {f"d{name}" for name in flowing})
    return found


def _keep_results(function: FunctionDef, kept: Iterable[str]) -> None:
    results = [arg for arg in function.signature.output_arg if arg.name in kept]
    for arg in function.signature.output_arg:
        if arg not in results:
            del function.ret[arg.name]
    del function.signature.output_arg[:]
    function.signature.output_arg.extend(results)
    drop_unread(function)


def passed_on(dtype: int) -> Restored:
    """The gradient of the op between `tape` and `attach`: what comes, as it is."""
    name = DTYPE_NAMES[dtype]
    given = OpDef.ArgDef(name="y0", type=dtype)
    return _passing(f"graphpatch_pass_{name}_gradient", f"{PASS}{name}", 0, [given])


def _passing(name: str, key: str, inputs: int, outputs: list[OpDef.ArgDef]) -> Restored:
    """The gradient of y alone: dy as it comes, for each y that carries one."""
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
