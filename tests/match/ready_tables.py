"""What the ready patterns must find, and what comes near and they must not: a table of each.

A graph is a text, as NumPy would compute it: `s = Sigmoid(x); s * x`.
"""

from __future__ import annotations

import ast
import re
from itertools import product

from graphpatch.protos import GraphDef, NodeDef
from tests import graphs

BINARY = {ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "RealDiv", ast.Pow: "Pow"}
COMPARED = {ast.Gt: "Greater", ast.GtE: "GreaterEqual", ast.Lt: "Less"}


class Net:
    """The graph of a text; names that begin with w are variables, with r resources, others fed."""

    def __init__(self, text: str, plus: str = "AddV2") -> None:
        self.nodes: list[NodeDef] = []
        self.plus = plus
        self.named: dict[str, str] = {}
        for statement in ast.parse(text).body:
            assert isinstance(statement, ast.Assign | ast.Expr)
            self.last = self.made(statement.value)
            if isinstance(statement, ast.Assign):
                self.named[ast.unparse(statement.targets[0])] = self.last

    def __call__(self, op: str, *inputs: str) -> str:
        """A new op; its name."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(graphs.node(name, op, *inputs))
        return name

    def made(self, part: ast.expr) -> str:
        """The op that gives the value of an expression."""
        match part:
            case ast.Name(id=name):
                if name not in self.named:
                    self.named[name] = self.end(name[0])
                return self.named[name]
            case ast.Call(func=func, args=args):
                return self(ast.unparse(func), *map(self.made, args))
            case ast.BinOp(left=left, op=op, right=right):
                return self(BINARY.get(type(op), self.plus), self.made(left), self.made(right))
            case ast.Compare(left=left, ops=[compared], comparators=[right]):
                return self(COMPARED[type(compared)], self.made(left), self.made(right))
            case ast.UnaryOp(operand=operand) if not isinstance(operand, ast.Constant):
                return self("Neg", self.made(operand))
        return self.const(ast.literal_eval(part))

    def end(self, letter: str) -> str:
        """What a name stands for that nothing computes."""
        if letter == "w":
            return self("Identity", self("VariableV2"))
        return self("ReadVariableOp", self("VarHandleOp")) if letter == "r" else self("Placeholder")

    def const(self, value: float | list[int]) -> str:
        """A number in float32, or a list of integers."""
        name = f"Const_{len(self.nodes)}"
        if isinstance(value, list):
            made = graphs.listed(name, *value, dtype="int32", shape=[len(value)])
        else:
            made = graphs.listed(name, value)
        self.nodes.append(made)
        return name

    @property
    def graph_def(self) -> GraphDef:
        return graphs.graphdef(*self.nodes)


CONV = "BiasAdd(Conv2D(x, w), w1)"
GIVEN = "m = w2; v = w3"


def moments(axes: str, x: str = "x") -> str:
    """As tf.nn.moments has them, with dimensions kept."""
    return f"m = Mean({x}, [{axes}]); v = Mean(SquaredDifference({x}, StopGradient(m)), [{axes}])"


def sums(axes: str, x: str = "x") -> str:
    """As tf.nn.moments had them up to TensorFlow 1.1."""
    total = f"Sum(Square({x}), [{axes}])"
    return f"c = Reciprocal(z); m = Sum({x}, [{axes}]) * c; v = {total} * c - Square(m)"


def normed(stats: str, parts: str = "gb") -> str:
    """As tf.nn.batch_normalization has it; `parts` are those that are there: gamma, beta."""
    scale = " * w" if "g" in parts else ""
    shift = "w1 - m * s" if "b" in parts else "-m * s"
    return f"{stats}; s = Rsqrt(v + 0.001){scale}; x * s + ({shift})"


def keras_norm(stats: str, parts: str = "gb") -> str:
    """As Keras 3 has a layer norm."""
    scale = " * Reshape(r, [1, -1])" if parts else ""
    shift = "-m * s + r1" if "b" in parts else "-m * s"
    return f"{stats}; s = Rsqrt(v + 0.001){scale}; x * s + ({shift})"


HOW = {
    "stopped": f"{moments('-1')}; d = x - m",
    "plain": "m = Mean(x, [-1]); v = Mean(SquaredDifference(x, m), [-1]); d = x - m",
    "squared": "d = x - Mean(x, [-1]); v = Mean(Square(d), [-1])",
    "squared again": "m = Mean(x, [-1]); d = x - m; v = Mean(Square(x - m), [-1])",
}
ROOTS = {
    "Rsqrt": "d * Rsqrt(v + 1e-6)",
    "Sqrt": "d / Sqrt(v + 1e-6)",
    "Pow": "d / (v + 1e-6) ** 0.5",
}
BY_HAND = {"gb": "w * ({}) + w1", "g": "w * ({})", "b": "{} + w1", "": "{}"}
BELOW = {
    "minimum": "w * Minimum(0, x)",
    "minimum of scaled": "Minimum(w * x, 0)",
    "turned": "-w * Relu(-x)",
    "turned twice": "w * -Relu(-x)",
    "turned at last": "-(w * Relu(-x))",
    "half last": "(x - Abs(x)) * w * 0.5",
    "half first": "(x - Abs(x)) * 0.5 * w",
    "half a slope": "w * 0.5 * (x - Abs(x))",
    "divided": "(x - Abs(x)) * w / 2",
}
"""The slope w times the negative part of x, as people write it."""
ABOVE = {"": "Relu(x)", ", maximum": "Maximum(x, 0)"}
CLIPS = {
    "Relu6": "Relu6(x + 3)",
    "Maximum": "Maximum(Minimum(x + 3, 6), 0)",
    "ClipByValue": "ClipByValue(x + 3, 0, 6)",
}
SIXTHS = ("x * {} / 6", "x * {} * 0.16666667", "x * ({} / 6)", "x * ({} * 0.16666667)")
TANH = "Tanh(0.7978846 * (x + 0.044715 * {}))"
CDFS = (
    *("Erf(x / 1.4142136)", "Erf(x / Sqrt(2))", "Erf(x * 0.7071068)"),
    *(TANH.format(cube) for cube in ("x ** 3", "(Square(x) * x)", "(x * x * x)")),
)
HALVES = ("x * (0.5 * (1 + {}))", "0.5 * x * (1 + {})", "0.5 * (x * (1 + {}))")
DRAWN = "RandomUniform([2, 6])"
RANGED = f"{DRAWN} * (1 - 0) + 0"
HEADS = {
    "log negated": "Sum(y * -{}, [1])",
    "labels negated": "Sum(-y * {}, [1])",
    "each negated": "Mean(-(y * {}), [0, 1])",
    "sum negated": "-Sum(y * {}, [1])",
    "mean negated": "-Mean(Sum(y * {}, [1]), [0])",
}
GUARDED = (
    "Softmax(x) + 1e-7",
    "Maximum(Softmax(x), 1e-7)",
    "Maximum(Minimum(Softmax(x), 1e-7), 1e-7)",
    "Maximum(Minimum(Softmax(x) / 1e-7, 1e-7), 1e-7)",
)
NORMS = "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 BatchNormWithGlobalNormalization"
FAKES = (
    "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel"
    " QuantizeAndDequantizeV2 QuantizeAndDequantizeV3"
)
LOSSES = "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"

# What each text computes must match the pattern before the colon, in its last op, and no other.
FOUND: dict[str, str] = {
    "conv_bias_activation: Conv2D": f"Relu({CONV})",
    "conv_bias_activation: commuted": "Relu6(w + DepthwiseConv2dNative(x, w1))",
    "conv_bias_activation: transposed": "LeakyRelu(BiasAdd(Conv2DBackpropInput(x, w, y), r))",
    "conv_bias_activation: 1d, dilated":
        "Relu(BiasAdd(BatchToSpaceND(Squeeze(Conv2D(x, w)), [2], [0, 1]), w1))",
    "conv_bias_activation: 3d, reshaped":
        "Elu(Reshape(BiasAdd(Reshape(Conv3D(x, w), [1, 2]), w1), [1]))",
    "conv_bias_activation: squeezed": f"Tanh(Squeeze({CONV}))",
    "dense_bias_activation: MatMul": "Sigmoid(BiasAdd(MatMul(x, r), r1))",
    "dense_bias_activation: reshaped": "Softmax(Reshape(MatMul(x, w), [1]) + 1)",
    "dense_bias_activation: in a loop": "Tanh(Enter(Identity(1)) + MatMul(x, y))",
    "folded_batch_norm: convolution": "Conv2D(x, 1) * 2 + 3",
    "folded_batch_norm: commuted": "Identity(2) * MatMul(x, 1) - 3",
    **{f"batch_norm: inference {parts}": normed(GIVEN, parts) for parts in BY_HAND},
    "batch_norm: training": normed(f"{moments('0, 1, 2')}; m = Squeeze(m); v = Squeeze(v)"),
    "batch_norm: dimensions kept": normed(moments("0")),
    "batch_norm: old, dimensions kept": normed(sums("0, 1, 2")),
    **{f"fused_batch_norm: {op}": f"{op}(x, x1, x2, x3, x4)" for op in NORMS.split()},
    **{f"layer_norm: tf {parts}": normed(moments("1, 2, 3"), parts) for parts in BY_HAND},
    **{f"layer_norm: keras {parts}": keras_norm(moments("-1"), parts) for parts in BY_HAND},
    "layer_norm: old": normed(sums("1, 2")),
    **{f"layer_norm: {how}, {root}": f"{HOW[how]}; w * ({ROOTS[root]}) + w1"
       for how, root in product(HOW, ROOTS)},
    **{f"layer_norm: by hand {parts}": f"{HOW['squared']}; {whole.format(ROOTS['Rsqrt'])}"
       for parts, whole in BY_HAND.items()},
    "leaky_relu: maximum": "Maximum(0.2 * x, x)",
    "leaky_relu: variable": "Maximum(w * x, x)",
    "leaky_relu_by_abs: sum": "0.6 * x + 0.4 * Abs(x)",
    "prelu: Select": "Select(x > 0, x, x * w)",
    "prelu: SelectV2": "SelectV2(x >= 0, x, x * w)",
    "prelu: Less": "Select(x < 0, x * w, x)",
    **{f"prelu: {below}{above}": f"{ABOVE[above]} + {BELOW[below]}"
       for below, above in product(BELOW, ABOVE)},
    "prelu: difference": "Relu(x) - w * Relu(-x)",
    "prelu: difference, slope inside": "Relu(x) - Relu(-(x * w))",
    "prelu_of_negated_slope: sum": "Relu(x) + -0.2 * Relu(-x)",
    "prelu_of_negated_slope: difference": "Relu(x) - Relu(x * -0.2)",
    **{f"prelu_of_half_slope: {part}": f"{part} + (x - Abs(x)) * 0.1" for part in ABOVE.values()},
    "masked_relu: Greater": "x * Cast(x > 0)",
    "swish: plain": "Sigmoid(x) * x",
    "swish: constant beta": "Sigmoid(1 * x) * x",
    "swish: trained beta": "Sigmoid(r * x) * x",
    **{f"hard_swish: {clip}, {whole}": whole.format(CLIPS[clip])
       for clip, whole in product(CLIPS, SIXTHS)},
    **{f"gelu: {whole}, {cdf}": whole.format(cdf) for whole, cdf in product(HALVES, CDFS)},
    "gelu: erfc": "0.5 * x * Erfc(-x * 0.7071068)",
    "dropout: floor": f"k = 0.7; x / k * Floor(k + ({RANGED}))",
    "dropout: floor, folded range": f"k = 0.7; x / k * Floor(k + {DRAWN})",
    "dropout: cast": f"q = 0.3; x * (1 / (1 - q)) * Cast({RANGED} >= q)",
    "dropout: cast, constant": f"x * 1.4 * Cast({RANGED} >= 0.3)",
    "dropout: select": f"SelectV2({DRAWN} >= 0.3, x * 1.4, 0)",
    "dropout: select, rate fed": f"SelectV2({DRAWN} >= 0.3, x / (1 - y), 0)",
    **{f"fake_quantization: {op}": f"{op}(x, y, z)" for op in FAKES.split()},
    **{f"softmax_cross_entropy: {op}": f"{op}(x, y)" for op in LOSSES.split()},
    **{f"softmax_cross_entropy: {log}, {head}": HEADS[head].format(log)
       for log, head in product(("Log(Softmax(x))", "LogSoftmax(x)"), HEADS)},
    **{f"softmax_cross_entropy: {text}": HEADS["sum negated"].format(f"Log({text})")
       for text in GUARDED},
}  # fmt: skip

OTHER = re.compile(r"\bx\b")  # y in its place is another tensor

# What comes near the pattern before the colon, and is another thing.
MISSED: dict[str, str] = {
    "conv_bias_activation: two branches": "Relu(Conv2D(x, w) + Identity(y))",
    "conv_bias_activation: a batch norm between": f"Relu(FusedBatchNorm({CONV}, w2, w3, w4, w5))",
    "conv_bias_activation: no activation": f"MaxPool({CONV})",
    "dense_bias_activation: two products": "Tanh(MatMul(x, w) + MatMul(y, w1))",
    "dense_bias_activation: split between": "Sigmoid(Split([1], BiasAdd(MatMul(x, y), w)))",
    "folded_batch_norm: of an input": "x * 2 - 1",
    "folded_batch_norm: a gate": "Conv2D(x, 1) * y + 3",
    "folded_batch_norm: single ops": normed(GIVEN),
    "batch_norm: layer norm": normed(moments("-1")),
    "batch_norm: old instance norm": normed(sums("1, 2")),
    "batch_norm: another scale": "x * Rsqrt(y + 1) + (x1 - x2 * Rsqrt(x3 + 1))",
    "batch_norm: mean minus beta": "s = Rsqrt(y + 1); x * s + (x1 * s - x2)",
    "fused_batch_norm: its gradient": "FusedBatchNormGrad(x, x1, x2, x3, x4)",
    "layer_norm: batch norm": normed(moments("0, 1, 2")),
    "layer_norm: old batch norm": normed(sums("0")),
    "layer_norm: moments of another tensor": normed(moments("-1", "y")),
    "layer_norm: shifted by another mean": normed(f"{moments('-1')}; m = y"),
    "layer_norm: keras, shifted by another mean": keras_norm(f"{moments('-1')}; m = y"),
    "layer_norm: old, of another tensor": normed(sums("-1", "y")),
    "layer_norm: l2 normalisation": "x * Rsqrt(Maximum(Sum(Square(y), [-1]), 1e-12))",
    "leaky_relu: steep": "Maximum(1.5 * x, x)",
    "leaky_relu: two tensors": "Maximum(0.2 * x, y)",
    "leaky_relu_by_abs: two tensors": "0.6 * x + 0.4 * Abs(y)",
    "prelu: less": "Select(x < 0, x, x * w)",
    "prelu: elsewhere": "Select(x > 1, x, x * w)",
    "prelu_of_half_slope: difference": "Relu(x) - (x - Abs(x)) * 0.1",
    "prelu_of_negated_slope: folds": "Relu(x) + 0.2 * Relu(-x)",
    "prelu_of_negated_slope: slope above 0": "Relu(x) - Relu(x * 0.2)",
    "masked_relu: two tensors": "y * Cast(x > 0)",
    **{
        f"prelu: of two tensors, {below}": f"Relu(x) + {OTHER.sub('y', text)}"
        for below, text in BELOW.items()
    },
    "swish: two tensors": "Sigmoid(x) * y",
    "swish: gate of a product": "Sigmoid(y * x) * x",
    "swish: tanh": "Tanh(x) * x",
    "hard_swish: other constants": "x * Relu6(x + 2) / 6",
    "hard_swish: other divisor": "x * Relu6(x + 3) / 5",
    "hard_swish: other product": "x * Relu6(x + 3) * 0.2",
    "hard_swish: two tensors": "x * Relu6(y + 3) / 6",
    "gelu: one is two": HALVES[1].replace("1", "2").format(CDFS[3]),
    "gelu: half is whole": HALVES[0].replace("0.5", "1").format(CDFS[2]),
    "gelu: erf of another slope": HALVES[1].format("Erf(x / 1.5556349)"),
    "gelu: tanh of another slope": HALVES[2].format(CDFS[4].replace("0.79", "0.87")),
    "dropout: rounded": f"k = 0.7; x / k * Round(k + ({RANGED}))",
    "dropout: scaled otherwise": f"k = 0.7; x / 0.7 * Floor(k + ({RANGED}))",
    "dropout: a gradient through the mask": f"x * y * Cast({RANGED} >= 0.3)",
    "dropout: other than zero": f"SelectV2({DRAWN} >= 0.3, x * 1.4, 1)",
    "dropout: initial values": RANGED,
    "fake_quantization: its gradient": "FakeQuantWithMinMaxVarsGradient(x, x1, x2, x3)",
    "softmax_cross_entropy: of a sigmoid": "-Sum(y * Log(Sigmoid(x)), [1])",
    "softmax_cross_entropy: no sum": "-(y * LogSoftmax(x))",
    "softmax_cross_entropy: no labels": "-Sum(Log(Softmax(x)), [1])",
}
