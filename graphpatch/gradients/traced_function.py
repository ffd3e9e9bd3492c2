"""A gradient function of the user's, as TensorFlow traced it, made ready to be carried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import FunctionDef

from graphpatch.dtypes import DTYPE_NAMES, NO_NUMBERS
from graphpatch.errors import FormulaError
from graphpatch.gradients.attach import AttachedFunctions, merge_output_into_input, pair
from graphpatch.names import fresh, op_of


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


def attached_traced(traced: TracedFunction, kept: bool) -> AttachedFunctions:
    """The functions that carry the gradient for the op that it was traced for.

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
    given = {name: name for name in outputs}
    stopped = frozenset(read) - flowing
    return pair(traced.name, function, given, tuple(read), stopped, kept, traced.library)


def filtering_traced(traced: TracedFunction, kept: bool) -> AttachedFunctions:
    """The functions that filter what flows back through the tensor that it was traced for."""
    function = FunctionDef()
    function.CopyFrom(traced.function)
    _return_all(function, [0])
    merge_output_into_input(function)
    return pair(traced.name, function, {"y0": "x0"}, (0,), frozenset(), kept, traced.library)


def _input_place(argument: str) -> int:
    """Which input an argument x1, or a result dx1, belongs to."""
    return int(argument.lstrip("dx"))


def _arguments_read(function: FunctionDef) -> set[str]:
    """The arguments that the ops of a function read."""
    arguments = {arg.name for arg in function.signature.input_arg}
    texts = [text for node in function.node_def for text in node.input]
    return {op_of(text) for text in [*texts, *function.ret.values()]} & arguments


def _keep(function: FunctionDef, read: Iterable[int]) -> None:
    """Take out the inputs of the op that are neither read nor have a gradient."""
    inputs = {f"x{place}" for place in read}
    kept = [a for a in function.signature.input_arg if a.name[0] != "x" or a.name in inputs]
    del function.signature.input_arg[:]
    function.signature.input_arg.extend(kept)


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
