"""Small graphs, by hand, of what the ready patterns stand for, and of what comes near to it."""

from __future__ import annotations

from typing import Any

from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs


class Net:
    """A graph as it grows; ops are named by their type and number."""

    def __init__(self) -> None:
        self.nodes: list[NodeDef] = []

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A new op; its name."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(graphs.node(name, op, *inputs, **attrs))
        return name

    def x(self) -> str:
        return self("Placeholder")

    def const(self, value: float | list[int], dtype: str = "float32") -> str:
        name = self("Const", dtype=dtype)
        tensor = self.nodes[-1].attr["value"].tensor
        tensor.dtype = DTYPE_NUMBERS[dtype]
        if isinstance(value, list):
            tensor.tensor_shape.dim.add(size=len(value))
            tensor.int_val.extend(value)
        else:
            tensor.float_val.append(value)
        return name

    def axes(self, *axes: int) -> str:
        return self.const(list(axes), "int32")

    def variable(self) -> str:
        return self("Identity", self("VariableV2"))

    def resource(self) -> str:
        return self("ReadVariableOp", self("VarHandleOp"))

    @property
    def graph_def(self) -> GraphDef:
        return graphs.graphdef(*self.nodes)


def scaled_and_shifted(net: Net, x: str, mean: str, variance: str, parts: str = "gb") -> str:
    """As tf.nn.batch_normalization has it; `parts` are those that are there: gamma, beta."""
    scale = net("Rsqrt", net("AddV2", variance, net.const(1e-3)))
    scale = net("Mul", scale, net.variable()) if "g" in parts else scale
    mul = net("Mul", x, scale)
    if "b" in parts:
        return net("AddV2", mul, net("Sub", net.variable(), net("Mul", mean, scale)))
    return net("AddV2", mul, net("Mul", net("Neg", mean), scale))


def keras_norm(net: Net, x: str, mean: str, variance: str, parts: str = "gb") -> str:
    """As Keras 3 has a layer norm."""
    scale = net("Rsqrt", net("AddV2", variance, net.const(1e-3)))
    scale = net("Mul", scale, net("Reshape", net.resource(), net.axes(1, -1))) if parts else scale
    shift = net("Mul", net("Neg", mean), scale)
    shift = net("AddV2", shift, net.resource()) if "b" in parts else shift
    return net("AddV2", net("Mul", x, scale), shift)


def moments(net: Net, x: str, *axes: int, stop: bool = True) -> tuple[str, str]:
    """As tf.nn.moments has them, with dimensions kept."""
    mean = net("Mean", x, net.axes(*axes))
    fixed = net("StopGradient", mean) if stop else mean
    return mean, net("Mean", net("SquaredDifference", x, fixed), net.axes(*axes))


def sums(net: Net, x: str, *axes: int) -> tuple[str, str]:
    """As tf.nn.moments had them up to TensorFlow 1.1."""
    count = net("Reciprocal", net.x())
    mean = net("Mul", net("Sum", x, net.axes(*axes)), count)
    average = net("Mul", net("Sum", net("Square", x), net.axes(*axes)), count)
    return mean, net("Sub", average, net("Square", mean))


def centered(net: Net, x: str, how: str, root: str, parts: str = "gb") -> str:
    """A layer norm by hand: (x - mean) / sqrt(variance + epsilon) * gamma + beta."""
    if how in {"stopped", "plain"}:
        mean, variance = moments(net, x, -1, stop=how == "stopped")
        offset = net("Sub", x, mean)
    else:
        mean = net("Mean", x, net.axes(-1))
        offset = net("Sub", x, mean)
        again = offset if how == "squared" else net("Sub", x, mean)
        variance = net("Mean", net("Square", again), net.axes(-1))
    total = net("Add", variance, net.const(1e-6))
    if root == "Rsqrt":
        norm = net("Mul", offset, net("Rsqrt", total))
    else:
        power = [net.const(0.5)] if root == "Pow" else []
        norm = net("RealDiv", offset, net(root, total, *power))
    norm = net("Mul", net.variable(), norm) if "g" in parts else norm
    return net("Add", norm, net.variable()) if "b" in parts else norm


def noise(net: Net, ranged: bool = True) -> str:
    """As tf.random_uniform has it; without a range as an optimiser leaves it."""
    drawn = net("RandomUniform", net.axes(2, 6))
    if not ranged:
        return drawn
    return net("Add", net("Mul", drawn, net("Sub", net.const(1), net.const(0))), net.const(0))


def gelu(net: Net, cdf: str, order: str, constants: tuple[float, float, float]) -> str:
    """0.5 * x * (1 + cdf), multiplied in one of three orders."""
    x = net.x()
    one, half, slope = constants
    inner = {"RealDiv": "Erf", "Sqrt": "Erf", "Mul": "Erf"}.get(cdf)
    if inner is None:
        cube = _cube(net, x, cdf)
        inside = net("AddV2", x, net("Mul", net.const(0.044715), cube))
        curve = net("Tanh", net("Mul", net.const(slope * 0.7978846), inside))
    elif cdf == "Mul":
        curve = net("Erf", net("Mul", x, net.const(slope * 0.7071068)))
    else:
        root = net.const(slope * 1.4142136) if cdf == "RealDiv" else net("Sqrt", net.const(2))
        curve = net("Erf", net("RealDiv", x, root))
    whole = net("AddV2", net.const(one), curve)
    if order == "half of whole":
        return net("Mul", x, net("Mul", net.const(half), whole))
    if order == "half of x":
        return net("Mul", net("Mul", net.const(half), x), whole)
    return net("Mul", net.const(half), net("Mul", x, whole))


def _cube(net: Net, x: str, how: str) -> str:
    if how == "Pow":
        return net("Pow", x, net.const(3))
    square = net("Square", x) if how == "Square" else net("Mul", x, x)
    return net("Mul", square, x)


def hard_swish(net: Net, clip: str, order: str, three: float = 3, six: float = 6) -> str:
    """x * relu6(x + 3) / 6, clipped in one of three ways and multiplied in one of four orders."""
    x = net.x()
    shifted = net("Add", x, net.const(three))
    if clip == "Relu6":
        gate = net("Relu6", shifted)
    elif clip == "ClipByValue":
        gate = net("ClipByValue", shifted, net.const(0), net.const(six))
    else:
        gate = net("Maximum", net("Minimum", shifted, net.const(six)), net.const(0))
    op, by = ("RealDiv", six) if "divided" in order else ("Mul", 1 / six)
    if "first" in order:
        return net("Mul", x, net(op, gate, net.const(by)))
    return net(op, net("Mul", x, gate), net.const(by))
