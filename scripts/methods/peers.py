"""The methods as their authors' libraries have them: gradient functions in Python, by op type.

Each is set as `_gradient_op_type` of the ops of a GraphDef before TensorFlow imports it, which is
what `Graph.gradient_override_map` does. They share no code with graphpatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

Gradient = Callable[..., Any]

SMALL = 1e-6
EPSILON = 1e-4  # of @lrp_epsilon
TINY = 1e-9  # of lrp_pass
QUANTILE = 0.98  # of @rectified_gradient
END, INNER = "end", "inner"  # of a leaky or parametric ReLU: its last op, the ReLU inside
ELEMENTWISE = ("Relu", "Relu6", "Elu", "Sigmoid", "Tanh", "LeakyRelu")


def default(op: Any, *dy: Any) -> Any:
    """TensorFlow's own gradient of an op."""
    return ops.gradient_registry.lookup(op.type)(op, *dy)


def guided(op: Any, dy: Any) -> Any:
    return default(op, tf.nn.relu(dy))


def deconvolved(op: Any, dy: Any) -> Any:
    return tf.nn.relu(dy)


def rectified(op: Any, dy: Any) -> Any:
    """Of each layer and example the parts of y * dy above a quantile."""
    return above(op.outputs[0] * dy, dy)


def above(importance: Any, dy: Any) -> Any:
    rows = tf.sort(tf.reshape(importance, [tf.shape(dy)[0], -1]))
    count = tf.cast(tf.shape(rows)[1] - 1, tf.float64)
    place = tf.cast(tf.floor(QUANTILE * count), tf.int32)
    limit = tf.reshape(rows[:, place], [-1, *[1] * (len(dy.shape) - 1)])
    return tf.where(importance > limit, dy, tf.zeros_like(dy))


def stabilised(x: Any, epsilon: float) -> Any:
    return x + epsilon * tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x))


def epsilon_rule(op: Any, dy: Any) -> Any:
    """DeepExplain's: relevance as a multiplier, through an activation."""
    return dy * op.outputs[0] / stabilised(op.inputs[0], EPSILON)


def passed(op: Any, dy: Any, *_: Any) -> Any:
    """All relevance to input 0."""
    dx = dy * op.outputs[0] / stabilised(op.inputs[0], TINY)
    return [dx, *[None] * (len(op.inputs) - 1)]


def divided(a: Any, b: Any) -> Any:
    return tf.where(b > 0, a / tf.where(b > 0, b, tf.ones_like(b)), tf.zeros_like(b))


def positive_parts(op: Any, dy: Any) -> Any:
    """Return the z-plus rule: iNNvestigate's Alpha1Beta0 without biases, as a multiplier."""
    run = {"Conv2D": tf.raw_ops.Conv2D, "DepthwiseConv2dNative": tf.raw_ops.DepthwiseConv2dNative}
    names = ("strides", "padding", "dilations", "data_format")
    attrs = {name: op.get_attr(name) for name in names}
    x, weights = op.inputs
    parts = [
        (tf.maximum(x, 0), tf.maximum(weights, 0)),
        (tf.minimum(x, 0), tf.minimum(weights, 0)),
    ]
    products = [run[op.type](input=a, filter=w, **attrs) for a, w in parts]
    share = dy * divided(op.outputs[0], products[0] + products[1])
    relevance = sum(
        a * tf.compat.v1.gradients(product, a, share)[0]
        for (a, _), product in zip(parts, products, strict=True)
    )
    return [relevance / tf.where(tf.equal(x, 0), tf.ones_like(x), x), None]


def positive_mean(op: Any, dy: Any) -> Any:
    x = tf.nn.relu(op.inputs[0])
    names = ("ksize", "strides", "padding", "data_format")
    mean = tf.raw_ops.AvgPool(value=x, **{name: op.get_attr(name) for name in names})
    share = dy * divided(op.outputs[0], mean)
    return tf.where(x > 0, tf.compat.v1.gradients(mean, x, share)[0], tf.zeros_like(x))


def halves(x: Any) -> tuple[Any, Any]:
    first, second = tf.split(x, 2)
    return first, second


def rescaled(op: Any, dy: Any) -> Any:
    """DeepLIFT's rescale rule, with the references in the second half of the batch."""
    (x, reference), (y, baseline) = halves(op.inputs[0]), halves(op.outputs[0])
    given = tf.concat([x - reference] * 2, 0)
    changed = tf.concat([y - baseline] * 2, 0)
    far = tf.abs(given) > SMALL
    return tf.where(far, dy * changed / tf.where(far, given, tf.ones_like(given)), default(op, dy))


def max_pool(op: Any, dy: Any) -> Any:
    """Shap's handler of max pooling."""
    (x, reference), (y, baseline) = halves(op.inputs[0]), halves(op.outputs[0])
    most = tf.maximum(y, baseline)
    one, other = halves(default(op, dy * tf.concat([most - baseline, y - most], 0)))
    change = x - reference
    near = tf.abs(change) < 1e-7
    found = tf.where(near, tf.zeros_like(change), (one + other) / change)
    return tf.concat([found, found], 0)


def end_input(op: Any) -> tuple[Any, int]:
    """Return what a leaky or parametric ReLU reads at its last op, and the input that gets all."""
    if op.type == "Maximum":
        return op.inputs[1], 1
    if op.type == "Select":
        return op.inputs[1], 1
    return op.inputs[0].op.inputs[0], 0  # Relu(x) + slope * ...


def at_end(rule: Callable[[Any, Any, Any], Any]) -> Gradient:
    """At the last op of a leaky or parametric ReLU: dx of (x, y, dy), past all its other ops."""

    def gradient(op: Any, dy: Any) -> Any:
        x, place = end_input(op)
        found = [tf.zeros_like(one) if one.dtype.is_floating else None for one in op.inputs]
        found[place] = rule(x, op.outputs[0], dy)
        return found

    return gradient


def guided_end(op: Any, dy: Any) -> Any:
    return default(op, tf.nn.relu(dy))


def identity(op: Any, dy: Any) -> Any:
    return dy


def important(x: Any, y: Any, dy: Any) -> Any:
    return above(y * dy, dy)


def small_share(x: Any, y: Any, dy: Any) -> Any:
    return dy * y / stabilised(x, EPSILON)


def slope_between(x: Any, y: Any, dy: Any) -> Any:
    given, changed = (tf.concat([one - other] * 2, 0) for one, other in map(halves, (x, y)))
    far = tf.abs(given) > SMALL
    quotient = changed / tf.where(far, given, tf.ones_like(given))
    return dy * tf.where(far, quotient, y / stabilised(x, TINY))


def ends(rule: Callable[[Any, Any, Any], Any]) -> dict[str, Gradient]:
    return {END: at_end(rule), INNER: identity}


METHODS: Mapping[str, Mapping[str, Gradient]] = {
    "@guided_backprop": dict.fromkeys(("Relu", "Relu6", "Elu", "LeakyRelu"), guided)
    | {END: guided_end},
    "@deconvnet": dict.fromkeys(("Relu", "Relu6", "Elu", "LeakyRelu"), deconvolved)
    | ends(lambda x, y, dy: tf.nn.relu(dy)),
    "@rectified_gradient": dict.fromkeys(("Relu", "Relu6", "Elu", "LeakyRelu"), rectified)
    | ends(important),
    "@lrp_epsilon": dict.fromkeys(ELEMENTWISE, epsilon_rule) | ends(small_share),
    "@lrp_composite": {
        **dict.fromkeys(ELEMENTWISE, epsilon_rule),
        **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), positive_parts),
        **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV3", "bias"), passed),
        "AvgPool": positive_mean,
        **ends(small_share),
    },
    "@deeplift": {
        **dict.fromkeys(ELEMENTWISE, rescaled),
        "MaxPool": max_pool,
        **ends(slope_between),
    },
}


def key_of(method: str, op_type: str) -> str:
    """Return what the gradient of an op type is registered as."""
    return f"Peer{method.removeprefix('@').title().replace('_', '')}{op_type.title()}"


def register() -> None:
    """Register all of them with TensorFlow, once."""
    for method, gradients in METHODS.items():
        for op_type, gradient in gradients.items():
            tf.RegisterGradient(key_of(method, op_type))(gradient)


def overridden(graph_def: Any, method: str, several: str) -> None:
    """Give the ops of a GraphDef the gradients of a method, in place.

    `several`: the names of the last ops of leaky and parametric ReLUs, as a regular expression.
    """
    last = [node for node in graph_def.node if several and re.fullmatch(several, node.name)]
    kinds = {node.name: END for node in last}
    kinds |= {node.input[0]: INNER for node in last if node.op == "Add"}
    types = {node.name: node.op for node in graph_def.node}

    def is_bias(node: Any) -> bool:
        first = types.get(node.input[0].split(":")[0]) if node.input else ""
        second = types.get(node.input[1].split(":")[0]) if len(node.input) > 1 else ""
        held = node.op == "BiasAdd" or second in ("Const", "Identity", "VariableV2")
        return first in ("Conv2D", "DepthwiseConv2dNative") and held

    for node in graph_def.node:
        bias = node.op in ("BiasAdd", "Add", "AddV2") and is_bias(node)
        kind = kinds.get(node.name, "bias" if bias else node.op)
        if kind in METHODS[method]:
            node.attr["_gradient_op_type"].s = key_of(method, kind).encode()
