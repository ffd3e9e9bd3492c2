"""What the ready patterns must find, and what comes near and they must not: a table of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tests.match.ready_graphs import (
    Net,
    centered,
    gelu,
    hard_swish,
    keras_norm,
    moments,
    noise,
    scaled_and_shifted,
    sums,
)

Build = Callable[[Net], str]
EXACT = (1.0, 0.5, 1.0)


def conv_bias(net: Net) -> str:
    return net("BiasAdd", net("Conv2D", net.x(), net.variable()), net.variable())


def conv1d_dilated(net: Net) -> str:
    flat = net("Squeeze", net("Conv2D", net.x(), net.variable()))
    back = net("BatchToSpaceND", flat, net.axes(2), net.axes(0, 1))
    return net("Relu", net("BiasAdd", back, net.variable()))


def conv3d_reshaped(net: Net) -> str:
    flat = net("Reshape", net("Conv3D", net.x(), net.variable()), net.axes(1, 2))
    return net("Elu", net("Reshape", net("BiasAdd", flat, net.variable()), net.axes(1)))


def in_a_loop(net: Net) -> str:
    bias = net("Enter", net("Identity", net.const(1)))
    return net("Tanh", net("Add", bias, net("MatMul", net.x(), net.x())))


def dropout(net: Net, rounded: str = "Floor", shared: bool = True, ranged: bool = True) -> str:
    keep = net.const(0.7)
    mask = net(rounded, net("Add", keep, noise(net, ranged)))
    return net("Mul", net("RealDiv", net.x(), keep if shared else net.const(0.7)), mask)


def dropout_by_cast(net: Net, folded: bool = False) -> str:
    rate = net.const(0.3)
    mask = net("Cast", net("GreaterEqual", noise(net), rate))
    scale = net("RealDiv", net.const(1), net("Sub", net.const(1), rate))
    return net("Mul", net("Mul", net.x(), net.const(1.4) if folded else scale), mask)


def dropout_by_select(net: Net, other: float = 0, fixed: bool = True) -> str:
    x = net.x()
    mask = net("GreaterEqual", noise(net, ranged=False), net.const(0.3))
    by = net.const(1.4) if fixed else net("Sub", net.const(1), net.x())
    scaled = net("Mul" if fixed else "RealDiv", x, by)
    return net("SelectV2", mask, scaled, net.const(other))


def log_head(net: Net, log: str, order: str, guards: tuple[str, ...] = ()) -> str:
    found = net("LogSoftmax", net.x()) if log == "LogSoftmax" else net("Softmax", net.x())
    for guard in guards:
        found = net(guard, found, net.const(1e-7))
    found = found if log == "LogSoftmax" else net("Log", found)
    if order == "log negated":
        return net("Sum", net("Mul", net.x(), net("Neg", found)), net.axes(1))
    if order == "labels negated":
        return net("Sum", net("Mul", net("Neg", net.x()), found), net.axes(1))
    picked = net("Mul", net.x(), found)
    if order == "each negated":
        return net("Mean", net("Neg", picked), net.axes(0, 1))
    total = net("Sum", picked, net.axes(1))
    return net("Neg", net("Mean", total, net.axes(0)) if order == "mean negated" else total)


def swish(net: Net, beta: Callable[[Net], str] | None = None) -> str:
    x = net.x()
    inside = net("Mul", beta(net), x) if beta else x
    return net("Mul", net("Sigmoid", inside), x)


def leaky(net: Net, slope: float | None = 0.2, other: bool = False) -> str:
    x, by = net.x(), net.variable() if slope is None else net.const(slope)
    return net("Maximum", net("Mul", by, x), net.x() if other else x)


def leaky_by_abs(net: Net, other: bool = False) -> str:
    x = net.x()
    size = net("Abs", net.x() if other else x)
    return net("Add", net("Mul", net.const(0.6), x), net("Mul", net.const(0.4), size))


def masked(net: Net, other: bool = False) -> str:
    x = net.x()
    mask = net("Cast", net("Greater", x, net.const(0)))
    return net("Mul", net.x() if other else x, mask)


def chosen(
    net: Net, compared: str = "Greater", select: str = "Select", at: float = 0, below: int = 1
) -> str:
    x = net.x()
    choices = [x, net("Mul", x, net.variable())]
    return net(select, net(compared, x, net.const(at)), *choices[:: below or -1])


BELOW = {
    "minimum": lambda net, x, a: net("Mul", a, net("Minimum", net.const(0), x)),
    "minimum of scaled": lambda net, x, a: net("Minimum", net("Mul", a, x), net.const(0)),
    "turned": lambda net, x, a: net("Mul", net("Neg", a), turned(net, x)),
    "turned twice": lambda net, x, a: net("Mul", a, net("Neg", turned(net, x))),
    "turned at last": lambda net, x, a: net("Neg", net("Mul", a, turned(net, x))),
    "half last": lambda net, x, a: halved(net, net("Mul", double(net, x), a)),
    "half first": lambda net, x, a: net("Mul", halved(net, double(net, x)), a),
    "half a slope": lambda net, x, a: net("Mul", halved(net, a), double(net, x)),
    "divided": lambda net, x, a: net("RealDiv", net("Mul", double(net, x), a), net.const(2)),
}  # fmt: skip
"""The slope `a` times the negative part of x, as people write it."""

ABOVE = {
    "": lambda net, x: net("Relu", x),
    ", maximum": lambda net, x: net("Maximum", x, net.const(0)),
}


def turned(net: Net, x: str) -> str:
    return net("Relu", net("Neg", x))


def double(net: Net, x: str) -> str:
    return net("Sub", x, net("Abs", x))


def halved(net: Net, x: str) -> str:
    return net("Mul", x, net.const(0.5))


def summed_parts(net: Net, below: str, other: bool = False, above: str = "") -> str:
    """The positive part and the slope times the negative one."""
    x = net.x()
    positive = ABOVE[above](net, x)
    return net("Add", positive, BELOW[below](net, net.x() if other else x, net.variable()))


def without(net: Net, inside: bool, slope: str, op: str = "Sub") -> str:
    """The positive part without the slope times the negative one."""
    x = net.x()
    if inside:
        part = net("Relu", net("Neg", net("Mul", x, slope)))
    else:
        part = net("Mul", slope, turned(net, x))
    return net(op, net("Relu", x), part)


def of_half_slope(net: Net, above: str) -> tuple[str, str]:
    x = net.x()
    return ABOVE[above](net, x), net("Mul", double(net, x), net.const(0.1))


def folded(net: Net, slope: float = -0.2) -> str:
    x = net.x()
    return net("Sub", net("Relu", x), net("Relu", net("Mul", x, net.const(slope))))


def erfc(net: Net) -> str:
    x = net.x()
    curve = net("Erfc", net("Mul", net("Neg", x), net.const(0.7071068)))
    return net("Mul", net("Mul", net.const(0.5), x), curve)


def normed(norm: Callable[..., str], stats: Callable[..., Any], *axes: int, parts: str) -> Build:
    def build(net: Net) -> str:
        x = net.x()
        return norm(net, x, *stats(net, x, *axes), parts)

    return build


def given(net: Net, x: str) -> tuple[str, str]:
    return net.variable(), net.variable()


def squeezed(net: Net, x: str, *axes: int) -> tuple[str, str]:
    mean, variance = moments(net, x, *axes)
    return net("Squeeze", mean), net("Squeeze", variance)


def mean_minus_beta(net: Net) -> str:
    scale = net("Rsqrt", net("Add", net.x(), net.const(1)))
    return net("Add", net("Mul", net.x(), scale), net("Sub", net("Mul", net.x(), scale), net.x()))


PARTS = ("gb", "g", "b", "")
HOW = ("stopped", "plain", "squared", "squared again")
ROOTS = ("Rsqrt", "Sqrt", "Pow")
CDFS = ("RealDiv", "Sqrt", "Mul", "Pow", "Square", "x * x")
ORDERS = ("half of whole", "half of x", "half of all")
CLIPS = ("Relu6", "Maximum", "ClipByValue")
SIXTHS = ("divided", "multiplied", "divided first", "multiplied first")
HEADS = ("log negated", "labels negated", "each negated", "sum negated", "mean negated")
GUARDS = ((), ("Add",), ("Maximum",), ("Minimum", "Maximum"), ("RealDiv", "Minimum", "Maximum"))

# fmt: off
# What each builds must match the pattern before the colon, in the op that it gives, and no other.
FOUND: dict[str, Build] = {
    "conv_bias_activation: Conv2D": lambda net: net("Relu", conv_bias(net)),
    "conv_bias_activation: Add, commuted": lambda net: net(
        "Relu6", net("Add", net.variable(), net("DepthwiseConv2dNative", net.x(), net.variable()))),
    "conv_bias_activation: transposed": lambda net: net("LeakyRelu", net(
        "BiasAdd", net("Conv2DBackpropInput", net.x(), net.variable(), net.x()), net.resource())),
    "conv_bias_activation: 1d, dilated": conv1d_dilated,
    "conv_bias_activation: 3d, reshaped": conv3d_reshaped,
    "conv_bias_activation: squeezed": lambda net: net("Tanh", net("Squeeze", conv_bias(net))),
    "dense_bias_activation: MatMul": lambda net: net("Sigmoid", net(
        "BiasAdd", net("MatMul", net.x(), net.resource()), net.resource())),
    "dense_bias_activation: reshaped": lambda net: net("Softmax", net("AddV2", net(
        "Reshape", net("MatMul", net.x(), net.variable()), net.axes(1)), net.const(1))),
    "dense_bias_activation: in a loop": in_a_loop,
    "folded_batch_norm: convolution": lambda net: net("Add", net("Mul", net(
        "Conv2D", net.x(), net.const(1)), net.const(2)), net.const(3)),
    "folded_batch_norm: commuted": lambda net: net("Sub", net("Mul", net(
        "Identity", net.const(2)), net("MatMul", net.x(), net.const(1))), net.const(3)),
    **{f"batch_norm: inference {parts}": normed(scaled_and_shifted, given, parts=parts)
       for parts in PARTS},
    "batch_norm: training": normed(scaled_and_shifted, squeezed, 0, 1, 2, parts="gb"),
    "batch_norm: dimensions kept": normed(scaled_and_shifted, moments, 0, parts="gb"),
    "batch_norm: old, dimensions kept": normed(scaled_and_shifted, sums, 0, 1, 2, parts="gb"),
    **{f"fused_batch_norm: {op}": lambda net, op=op: net(op, *(net.x() for _ in range(5)))
       for op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3",
                  "BatchNormWithGlobalNormalization")},
    **{f"layer_norm: tf {parts}": normed(scaled_and_shifted, moments, 1, 2, 3, parts=parts)
       for parts in PARTS},
    **{f"layer_norm: keras {parts}": normed(keras_norm, moments, -1, parts=parts)
       for parts in PARTS},
    "layer_norm: old": normed(scaled_and_shifted, sums, 1, 2, parts="gb"),
    **{f"layer_norm: {how}, {root}": lambda net, how=how, root=root: centered(
        net, net.x(), how, root) for how, root in product(HOW, ROOTS)},
    **{f"layer_norm: by hand {parts}": lambda net, parts=parts: centered(
        net, net.x(), "squared", "Rsqrt", parts) for parts in PARTS},
    "leaky_relu: maximum": leaky,
    "prelu: Select": chosen,
    "prelu: SelectV2": lambda net: chosen(net, "GreaterEqual", "SelectV2"),
    "prelu: Less": lambda net: chosen(net, "Less", below=0),
    **{f"prelu: {below}{above}": lambda net, below=below, above=above: summed_parts(
        net, below, above=above) for below, above in product(BELOW, ABOVE)},
    "prelu: difference": lambda net: without(net, False, net.variable()),
    "prelu: difference, slope inside": lambda net: without(net, True, net.variable()),
    "prelu_of_negated_slope: sum": lambda net: without(net, False, net.const(-0.2), "Add"),
    "prelu_of_negated_slope: difference": folded,
    **{f"prelu_of_half_slope: sum{above}": lambda net, above=above: net(
        "Add", *of_half_slope(net, above)) for above in ABOVE},
    "leaky_relu: variable": lambda net: leaky(net, None),
    "leaky_relu_by_abs: sum": leaky_by_abs,
    "masked_relu: Greater": masked,
    "swish: plain": swish,
    "swish: constant beta": lambda net: swish(net, lambda net: net.const(1)),
    "swish: trained beta": lambda net: swish(net, Net.resource),
    **{f"hard_swish: {clip}, {order}": lambda net, clip=clip, order=order: hard_swish(
        net, clip, order) for clip, order in product(CLIPS, SIXTHS)},
    **{f"gelu: {cdf}, {order}": lambda net, cdf=cdf, order=order: gelu(net, cdf, order, EXACT)
       for cdf, order in product(CDFS, ORDERS)},
    "gelu: erfc": erfc,
    "dropout: floor": dropout,
    "dropout: floor, folded range": lambda net: dropout(net, ranged=False),
    "dropout: cast": dropout_by_cast,
    "dropout: cast, constant": lambda net: dropout_by_cast(net, folded=True),
    "dropout: select": dropout_by_select,
    "dropout: select, rate fed": lambda net: dropout_by_select(net, fixed=False),
    **{f"fake_quantization: {op}": lambda net, op=op: net(op, net.x(), net.x(), net.x())
       for op in ("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "QuantizeAndDequantizeV2",
                  "FakeQuantWithMinMaxVarsPerChannel", "QuantizeAndDequantizeV3")},
    **{f"softmax_cross_entropy: {op}": lambda net, op=op: net(op, net.x(), net.x())
       for op in ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")},
    **{f"softmax_cross_entropy: {log}, {order}": lambda net, log=log, order=order: log_head(
        net, log, order) for log, order in product(("Log", "LogSoftmax"), HEADS)},
    **{f"softmax_cross_entropy: {guards}": lambda net, guards=guards: log_head(
        net, "Log", "sum negated", guards) for guards in GUARDS},
}

# What comes near the pattern before the colon, and is another thing.
MISSED: dict[str, Build] = {
    "conv_bias_activation: two branches": lambda net: net("Relu", net(
        "Add", net("Conv2D", net.x(), net.variable()), net("Identity", net.x()))),
    "conv_bias_activation: a batch norm between": lambda net: net(
        "Relu", net("FusedBatchNorm", conv_bias(net), *(net.variable() for _ in range(4)))),
    "conv_bias_activation: no activation": lambda net: net("MaxPool", conv_bias(net)),
    "dense_bias_activation: two products": lambda net: net("Tanh", net(
        "Add", net("MatMul", net.x(), net.variable()), net("MatMul", net.x(), net.variable()))),
    "dense_bias_activation: split between": lambda net: net("Sigmoid", net(
        "Split", net.axes(1), net("BiasAdd", net("MatMul", net.x(), net.x()), net.variable()))),
    "folded_batch_norm: of an input": lambda net: net(
        "Sub", net("Mul", net.x(), net.const(2)), net.const(1)),
    "folded_batch_norm: a gate": lambda net: net("Add", net("Mul", net(
        "Conv2D", net.x(), net.const(1)), net.x()), net.const(3)),
    "folded_batch_norm: single ops": normed(scaled_and_shifted, given, parts="gb"),
    "batch_norm: layer norm": normed(scaled_and_shifted, moments, -1, parts="gb"),
    "batch_norm: old instance norm": normed(scaled_and_shifted, sums, 1, 2, parts="gb"),
    "batch_norm: another scale": lambda net: net("Add", net("Mul", net.x(), net(
        "Rsqrt", net("Add", net.x(), net.const(1)))), net("Sub", net.x(), net("Mul", net.x(), net(
            "Rsqrt", net("Add", net.x(), net.const(1)))))),
    "batch_norm: mean minus beta": mean_minus_beta,
    "fused_batch_norm: its gradient": lambda net: net(
        "FusedBatchNormGrad", *(net.x() for _ in range(5))),
    "layer_norm: batch norm": normed(scaled_and_shifted, moments, 0, 1, 2, parts="gb"),
    "layer_norm: old batch norm": normed(scaled_and_shifted, sums, 0, parts="gb"),
    "layer_norm: moments of another tensor": normed(
        scaled_and_shifted, lambda net, x: moments(net, net.x(), -1), parts="gb"),
    "layer_norm: shifted by another mean": normed(
        scaled_and_shifted, lambda net, x: (net.x(), moments(net, x, -1)[1]), parts="gb"),
    "layer_norm: keras, shifted by another mean": normed(
        keras_norm, lambda net, x: (net.x(), moments(net, x, -1)[1]), parts="gb"),
    "layer_norm: old, of another tensor": normed(
        scaled_and_shifted, lambda net, x: sums(net, net.x(), -1), parts="gb"),
    "layer_norm: l2 normalisation": lambda net: net("Mul", net.x(), net("Rsqrt", net(
        "Maximum", net("Sum", net("Square", net.x()), net.axes(-1)), net.const(1e-12)))),
    "leaky_relu: steep": lambda net: leaky(net, 1.5),
    "leaky_relu: two tensors": lambda net: leaky(net, other=True),
    "prelu: less": lambda net: chosen(net, "Less"),
    "prelu: elsewhere": lambda net: chosen(net, at=1),
    "prelu_of_half_slope: difference": lambda net: net("Sub", *of_half_slope(net, "")),
    "prelu_of_negated_slope: folds": lambda net: without(net, False, net.const(0.2), "Add"),
    "prelu_of_negated_slope: slope above 0": lambda net: folded(net, 0.2),
    "leaky_relu_by_abs: two tensors": lambda net: leaky_by_abs(net, True),
    "masked_relu: two tensors": lambda net: masked(net, True),
    **{f"prelu: of two tensors, {below}": lambda net, below=below: summed_parts(net, below, True)
       for below in BELOW},
    "swish: two tensors": lambda net: net("Mul", net("Sigmoid", net.x()), net.x()),
    "swish: gate of a product": lambda net: swish(net, Net.x),
    "swish: tanh": lambda net: (lambda x: net("Mul", net("Tanh", x), x))(net.x()),
    "hard_swish: other constants": lambda net: hard_swish(net, "Relu6", "divided", three=2),
    "hard_swish: other divisor": lambda net: hard_swish(net, "Relu6", "divided", six=5),
    "hard_swish: other product": lambda net: hard_swish(net, "Relu6", "multiplied", six=5),
    "hard_swish: two tensors": lambda net: net("RealDiv", net("Mul", net.x(), net(
        "Relu6", net("Add", net.x(), net.const(3)))), net.const(6)),
    "gelu: one is two": lambda net: gelu(net, "Pow", "half of x", (2, 0.5, 1)),
    "gelu: half is whole": lambda net: gelu(net, "Mul", "half of whole", (1, 1, 1)),
    "gelu: erf of another slope": lambda net: gelu(net, "RealDiv", "half of x", (1, 0.5, 1.1)),
    "gelu: tanh of another slope": lambda net: gelu(net, "Square", "half of all", (1, 0.5, 1.1)),
    "dropout: rounded": lambda net: dropout(net, rounded="Round"),
    "dropout: scaled otherwise": lambda net: dropout(net, shared=False),
    "dropout: a gradient through the mask": lambda net: net(
        "Mul", net("Mul", net.x(), net.x()),
        net("Cast", net("GreaterEqual", noise(net), net.const(0.3)))),
    "dropout: other than zero": lambda net: dropout_by_select(net, other=1),
    "dropout: initial values": lambda net: noise(net),
    "fake_quantization: its gradient": lambda net: net(
        "FakeQuantWithMinMaxVarsGradient", *(net.x() for _ in range(4))),
    "softmax_cross_entropy: of a sigmoid": lambda net: net("Neg", net("Sum", net(
        "Mul", net.x(), net("Log", net("Sigmoid", net.x()))), net.axes(1))),
    "softmax_cross_entropy: no sum": lambda net: net(
        "Neg", net("Mul", net.x(), net("LogSoftmax", net.x()))),
    "softmax_cross_entropy: no labels": lambda net: net(
        "Neg", net("Sum", net("Log", net("Softmax", net.x())), net.axes(1))),
}
# fmt: on
