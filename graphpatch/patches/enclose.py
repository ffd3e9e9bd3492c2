"""An op put into a function of its own, through which no gradient flows.

Where a Session differentiates a function as a whole, a StopGradient passes zeros on to the op that
it reads, whose own gradient is then computed: there may be none, and of zeros it may be NaN (0
times infinity), which would be added to the new gradient. A call of a function that the library
gives another gradient, zeros, is not looked into.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from graphpatch.dtypes import HANDLES
from graphpatch.errors import PatchError
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.body import Node
from graphpatch.graph.calls import NO_INLINE
from graphpatch.graph.edit import OUTPUT_SHAPES, Editor
from graphpatch.graph.record import PROVENANCE_ATTR
from graphpatch.graph.wire import piece_bytes
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args

# Ops that have a gradient in functions, of which the gradient of zeros is zeros.
HARMLESS = frozenset({"Identity", "Relu", "Relu6", "Sigmoid", "Tanh"})

# Ops that oneDNN computes where calls are inlined, not quite to the same bits as TensorFlow's own
# kernels. These have a gradient in functions,
IN_PLACE = frozenset(
    "AvgPool BatchMatMul BatchMatMulV2 Concat ConcatV2 Conv2D MatMul MaxPool Softmax"
    " Transpose".split()
)
# and these have none.
IMMOVABLE = frozenset(
    "AvgPool3D Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2"
    " Conv3DBackpropInputV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter"
    " DepthwiseConv2dNativeBackpropInput Einsum FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"
    " MaxPool3D".split()
)

# Ops that TensorFlow computes together with others, as oneDNN does with Mul(x, Sigmoid(x)), to
# other bits than one by one. They have a gradient in functions.
FUSED = frozenset({"Add", "AddV2", "Maximum", "Mul", "Sub"})


def needs_none(node: Node) -> bool:
    """Whether zeros may flow back into an op, as they do no harm or cannot be kept from it."""
    flat = [*(node.arguments or []), *(node.outputs or [])]
    opaque = any(arg.is_ref or arg.dtype is None or arg.dtype in HANDLES for arg in flat)
    return opaque or node.op in HARMLESS or not any(map(op_args.carries, node.arguments or []))


def enclose(node: Node, editor: Editor) -> str:
    """Let an op be a call of a function that does what it did; the name of its gradient function.

    Raises PatchError for an op that would not give the same bits there.
    """
    if node.op in IMMOVABLE:
        raise PatchError(
            f"{node}: TensorFlow has no gradient of {node.op} in a function that a Session "
            f"differentiates as a whole, and asks for it even where it is overridden; inline the "
            f'function into the main graph first ("body": "main" leaves functions out)'
        )
    inputs, outputs = node.arguments or [], node.outputs or []
    function = _single_op_function(node, inputs, outputs)
    zeros = _zeros_gradient(function)
    editor.add_function(zeros)
    editor.add_function(function, gradient=zeros.signature.name)
    editor.become(node, function.signature.name)
    return str(zeros.signature.name)


def _single_op_function(
    node: Node, inputs: Sequence[FlatArg], outputs: Sequence[FlatArg]
) -> FunctionDef:
    function = FunctionDef()
    function.attr[NO_INLINE].b = True
    function.signature.is_stateful = node.opdef is not None and node.opdef.stateful
    for place, arg in enumerate(inputs):
        function.signature.input_arg.add(name=f"x{place}", type=DTYPE_NUMBERS[arg.dtype or ""])
    for place, arg in enumerate(outputs):
        function.signature.output_arg.add(name=f"y{place}", type=DTYPE_NUMBERS[arg.dtype or ""])
        function.ret[f"y{place}"] = f"op:{arg.name}:{arg.index}"
    names = [arg.name for arg in function.signature.input_arg]
    function.node_def.append(_untied(node, names))
    content = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:8]
    function.signature.name = f"graphpatch_{node.op}_{content}"
    return function


def _untied(node: Node, inputs: Sequence[str]) -> NodeDef:
    """The op itself, without what ties it to the ops around it."""
    found = NodeDef.FromString(b"".join(map(piece_bytes, node.body.payload(node.index))))
    found.name, found.input[:] = "op", inputs
    for key in ("_class", OUTPUT_SHAPES, PROVENANCE_ATTR):
        found.attr.pop(key, None)
    return found


def _zeros_gradient(function: FunctionDef) -> FunctionDef:
    """The gradient function (x..., dy...) -> zeros like x..."""
    zeros, forward = FunctionDef(), function.signature
    zeros.signature.name = f"{forward.name}_gradient"
    zeros.signature.input_arg.extend(forward.input_arg)
    for arg in forward.output_arg:
        zeros.signature.input_arg.add(name=f"d{arg.name}", type=arg.type)
    for arg in forward.input_arg:
        zeros.signature.output_arg.add(name=f"d{arg.name}", type=arg.type)
        node = NodeDef(name=f"zeros/{arg.name}", op="ZerosLike", input=[arg.name])
        node.attr["T"].type = arg.type
        zeros.node_def.append(node)
        zeros.ret[f"d{arg.name}"] = f"{node.name}:y:0"
    return zeros
