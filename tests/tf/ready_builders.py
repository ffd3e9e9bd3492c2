"""What TensorFlow builds for a batch norm, a dropout, ...: a GraphDef each. Runs under 1.15 too.

As a script it writes them into a folder: `python ready_builders.py FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

Table = Dict[str, List[Callable[[], Any]]]


def table(tf: Any, x: Any, f: Any) -> Table:
    """What this TensorFlow can build of an image and a matrix, by the ready patterns in it."""
    v1, k, a, relu = tf.compat.v1.nn, tf.keras.layers, tf.keras.activations, tf.nn.relu
    ones, tiny, c = tf.ones([6]), tf.constant(1e-10), (2 / 3.141592653589793) ** 0.5
    rate = tf.compat.v1.placeholder(tf.float32, [])
    fed = tf.compat.v1.placeholder(tf.bool, [])
    slope = tf.compat.v1.get_variable("slope", [6])

    def cube() -> Any:
        return f + 0.044715 * tf.pow(f, 3)

    found: Table = {
        "batch_norm": [
            lambda: tf.nn.batch_normalization(f, ones, ones, ones, ones, 1e-3),
            lambda: tf.nn.batch_normalization(f, ones, ones, None, None, 1e-3),
            lambda: _batch_norm(tf, f),
            lambda: k.BatchNormalization()(f),
        ],
        "conv_bias_activation": [
            lambda: k.Conv2D(4, 3, activation="relu")(x),
            lambda: k.Conv2D(4, 3, activation=tf.nn.leaky_relu)(x),
        ],
        "conv_bias_activation, batch_norm, swish, dropout, softmax_cross_entropy": [
            lambda: training(tf)
        ],
        "dense_bias_activation": [lambda: k.Dense(4, activation="relu")(f)],
        "dropout": [
            lambda: v1.dropout(f, rate=0.3),
            lambda: v1.dropout(f, keep_prob=0.7),
            lambda: v1.dropout(f, rate=rate),
            lambda: k.Dropout(0.3)(f, training=True),
        ],
        "fake_quantization": [
            lambda: tf.quantization.fake_quant_with_min_max_vars(f, 0.0, 1.0),
            lambda: tf.quantization.fake_quant_with_min_max_args(f),
        ],
        "fused_batch_norm": [lambda: v1.fused_batch_norm(x, ones[:3], ones[:3])],
        "gelu": [
            lambda: f * (0.5 * (1.0 + tf.math.erf(f / tf.sqrt(2.0)))),
            lambda: 0.5 * f * (1 + tf.tanh(c * cube())),
            lambda: f * (0.5 * (1.0 + tf.tanh(c * cube()))),
        ],
        "hard_swish": [
            lambda: f * tf.nn.relu6(f + 3) / 6,
            lambda: f * tf.nn.relu6(f + 3.0) * (1.0 / 6.0),
            lambda: f * tf.clip_by_value(f + 3, 0, 6) / 6,
        ],
        "layer_norm": [
            lambda: _layer_norm(tf, f, tf.math.squared_difference),
            lambda: _layer_norm(tf, f, lambda x, u: tf.square(x - u)),
            lambda: _standardised(tf, f),
            lambda: k.LayerNormalization()(f),
            lambda: k.LayerNormalization()(x),
            lambda: k.LayerNormalization(scale=False)(f),
            lambda: k.LayerNormalization(center=False)(f),
        ],
        "leaky_relu": [lambda: tf.maximum(0.2 * f, f), lambda: tf.maximum(slope * f, f)],
        "leaky_relu_by_abs": [lambda: 0.6 * f + 0.4 * abs(f)],
        "masked_relu": [lambda: f * tf.cast(f > 0, tf.float32)],
        "prelu": [
            lambda: tf.where(f > 0, f, f * slope),
            lambda: tf.nn.relu(f) + slope * tf.minimum(0.0, f),
            lambda: tf.nn.relu(f) - slope * tf.nn.relu(-f),
            lambda: tf.nn.relu(f) + tf.multiply(slope, -tf.nn.relu(-f)),
            lambda: tf.nn.relu(f) + slope * (f - abs(f)) * 0.5,
            lambda: k.PReLU()(f),
        ],
        "prelu_of_half_slope": [lambda: tf.nn.relu(f) + 0.1 * (f - abs(f))],
        "prelu_of_negated_slope": [lambda: tf.nn.relu(f) + -0.2 * tf.nn.relu(-f)],
        "softmax_cross_entropy": [
            lambda: v1.softmax_cross_entropy_with_logits(labels=f, logits=f),
            lambda: v1.sparse_softmax_cross_entropy_with_logits(
                labels=tf.zeros([2], tf.int32), logits=f
            ),
            lambda: tf.compat.v1.losses.softmax_cross_entropy(f, f),
            lambda: -tf.reduce_sum(f * tf.math.log(tf.nn.softmax(f)), axis=1),
            lambda: -tf.reduce_sum(f * tf.math.log(tf.nn.softmax(f) + tiny), 1),
            lambda: tf.reduce_mean(
                -tf.reduce_sum(f * tf.math.log(tf.clip_by_value(tf.nn.softmax(f), 1e-10, 1.0)), [1])
            ),
            lambda: -tf.reduce_mean(f * tf.nn.log_softmax(f)),
        ],
        "swish": [lambda: tf.nn.swish(f)],
        "": [
            lambda: tf.compat.v1.losses.sigmoid_cross_entropy(f, f),
            lambda: f[:1] * tf.sigmoid(f[1:]),
        ],
    }
    more: Table = {
        "gelu": [
            lambda: a.gelu(f),
            lambda: a.gelu(f, approximate=True),
            lambda: tf.nn.gelu(f),
            lambda: tf.nn.gelu(f, approximate=True),
        ],
        "hard_swish": [lambda: a.hard_silu(f)],
        "swish": [lambda: a.silu(f), lambda: tf.nn.silu(f, beta=1.5)],
    }
    if tf.__version__.startswith("1."):
        old, contrib = tf.compat.v1.layers, tf.contrib.layers
        more = {
            "2 fused_batch_norm": [lambda: old.batch_normalization(x, training=fed)],
            "5 layer_norm": [lambda: _lstm(tf, f)],
            "batch_norm": [
                lambda: old.batch_normalization(f),
                lambda: old.batch_normalization(f, training=True),
                lambda: old.batch_normalization(f, training=fed),
                lambda: contrib.batch_norm(x, is_training=False, fused=False),
                lambda: contrib.batch_norm(f, fused=False, scale=True),
            ],
            "conv_bias_activation": [
                lambda: old.conv2d(x, 4, 3, activation=relu),
                lambda: old.conv1d(x[:, :, 0], 4, 3, activation=relu, dilation_rate=2),
                lambda: old.conv3d(x[..., None], 4, 3, activation=relu),
                lambda: old.conv2d(x, 4, 3, dilation_rate=2, activation=relu),
                lambda: old.conv2d_transpose(x, 4, 3, activation=relu),
                lambda: old.separable_conv2d(x, 4, 3, activation=relu),
                lambda: contrib.conv2d(x, 4, 3),
            ],
            "dense_bias_activation": [
                lambda: old.dense(f, 4, activation=relu),
                lambda: old.dense(x, 4, activation=tf.nn.sigmoid),
                lambda: old.dense(f, 4, activation=tf.nn.softmax),
                lambda: contrib.fully_connected(f, 4),
                lambda: contrib.fully_connected(x, 4),
            ],
            "dropout": [
                lambda: old.dropout(f, training=True),
                lambda: old.dropout(f, training=fed),
                lambda: contrib.dropout(f, 0.5, is_training=True),
            ],
            "folded_batch_norm": [lambda: folded(tf, x)],
            "fused_batch_norm": [
                lambda: old.batch_normalization(x),
                lambda: contrib.conv2d(x, 4, 3, normalizer_fn=contrib.batch_norm),
            ],
            "layer_norm": [
                lambda: contrib.layer_norm(f),
                lambda: contrib.layer_norm(x, activation_fn=tf.nn.relu),
                lambda: contrib.layer_norm(f, begin_norm_axis=-1, begin_params_axis=-1),
                lambda: contrib.layer_norm(f, center=False, scale=False),
                lambda: contrib.instance_norm(x),
            ],
            "": [
                lambda: old.conv2d(x, 4, 3, use_bias=False, activation=relu),
                lambda: old.dropout(f),
            ],
        }
    return {key: [*found.get(key, []), *more.get(key, [])] for key in {**found, **more}}


def training(tf: Any) -> Any:
    """A net with everything, its loss and its optimiser."""
    v1 = tf.compat.v1
    images = v1.placeholder(tf.float32, [4, 8, 8, 3])
    weights = v1.get_variable("w", [3, 3, 3, 4])
    bias, ones = v1.get_variable("b", [4]), v1.get_variable("ones", [4])
    net = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, weights, 1, "SAME"), bias))
    mean, variance = tf.nn.moments(net, [0, 1, 2])
    net = tf.nn.batch_normalization(net, mean, variance, ones, ones, 1e-3)
    net = 0.5 * v1.nn.dropout(tf.nn.swish(net), rate=0.3)
    logits = tf.matmul(tf.reshape(net, [4, -1]), v1.get_variable("v", [256, 5])) + bias[0]
    labels = v1.placeholder(tf.float32, [4, 5])
    loss = v1.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)
    return v1.train.AdamOptimizer().minimize(tf.reduce_mean(loss))


def folded(tf: Any, x: Any) -> Any:
    """A frozen convolution with a batch norm of single ops, its constants folded."""
    from tensorflow.tools.graph_transforms import TransformGraph

    net = tf.compat.v1.layers.conv2d(x, 4, 3, use_bias=False)
    net = tf.contrib.layers.batch_norm(net, is_training=False, fused=False)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
            session, x.graph.as_graph_def(), [net.op.name]
        )
    # Its add of epsilon, rsqrt and products with it are of constants.
    return TransformGraph(frozen, ["x"], [net.op.name], ["fold_constants"])


def _lstm(tf: Any, f: Any) -> Any:
    cell = tf.contrib.rnn.LayerNormBasicLSTMCell(4)
    return cell(f, cell.zero_state(2, tf.float32))


def _batch_norm(tf: Any, f: Any) -> Any:
    mean, variance = tf.nn.moments(f, [0], keepdims=True)
    return tf.nn.batch_normalization(f, mean, variance, tf.ones([6]), tf.ones([6]), 1e-3)


def _layer_norm(tf: Any, f: Any, square: Callable[[Any, Any], Any]) -> Any:
    mean = tf.reduce_mean(f, axis=-1, keepdims=True)
    variance = tf.reduce_mean(square(f, mean), axis=-1, keepdims=True)
    gamma, beta = (tf.compat.v1.get_variable(name, [6]) for name in "gb")
    return (f - mean) * tf.math.rsqrt(variance + 1e-5) * gamma + beta


def _standardised(tf: Any, f: Any) -> Any:
    mean, variance = tf.nn.moments(f, [-1], keepdims=True)
    return (f - mean) / tf.sqrt(variance + 1e-5)


def graphs(tf: Any) -> dict[str, Any]:
    """All GraphDefs that this TensorFlow can build, named after the patterns in them."""

    def tables() -> Table:
        placeholder = tf.compat.v1.placeholder
        x = placeholder(tf.float32, [2, 8, 8, 3], name="x")
        return table(tf, x, placeholder(tf.float32, [2, 6], name="f"))

    with tf.Graph().as_default():
        counts = {key: len(builders) for key, builders in tables().items()}
    found = {}
    for key, count in counts.items():
        for place in range(count):
            with tf.Graph().as_default() as graph:
                built = tables()[key][place]()
            graph_def = built if hasattr(built, "library") else graph.as_graph_def()
            found[f"{key}: {place}"] = graph_def
    return found


if __name__ == "__main__":
    import tensorflow

    for title, graph_def in graphs(tensorflow).items():
        path = Path(sys.argv[1]) / (title + ".pb")
        path.write_bytes(graph_def.SerializeToString())
