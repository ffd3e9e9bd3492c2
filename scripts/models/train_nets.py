"""Train and freeze the two small nets that the examples patch.

Reads scikit-learn's 8x8 digits. For each net it writes a frozen GraphDef that TensorFlow 1.15 and 2
can import, and beside it (.npz) a few test images with their labels. Every run gives the same files
on one machine.

numerals: image [n, 32, 32, 1] in 0..1 -> three times convolution, bias, Relu and pooling ->
    features -> logits.
digits: image [n, 8, 8, 1] in 0..1 -> 8 grey levels (tf.round, whose gradient is None) -> two blocks
    of convolution, batch norm and Relu or Relu6 -> features -> dense -> dropout -> logits.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

tf1 = tf.compat.v1
SEED = 7
LEVELS = 8
MOVING_AVERAGE_DECAY = 0.95
LEAST_ACCURACY = 0.97
SIDE = 32  # pixels of numerals

Build = Callable[[bool], tuple[Any, Any, Any]]  # of training or not: image, dropout rate, logits


def weights(name: str, shape: list[int]) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.glorot_uniform_initializer(seed=SEED))


def biases(size: int) -> Any:
    return tf1.get_variable("biases", [size], initializer=tf1.zeros_initializer())


def quantize(image: Any) -> Any:
    """Round to LEVELS grey levels: piecewise constant, so nothing flows back to the image."""
    with tf1.variable_scope("quantize"):
        return tf.divide(tf.round(image * (LEVELS - 1.0)), LEVELS - 1.0, name="levels")


def batch_norm(x: Any, *, training: bool) -> Any:
    """Batch norm over [n, h, w, channels]; in training it also moves its averages."""
    channels = [x.shape[-1]]
    with tf1.variable_scope("batch_norm"):
        gamma = tf1.get_variable("gamma", channels, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", channels, initializer=tf1.zeros_initializer())
        mean = tf1.get_variable(
            "moving_mean", channels, initializer=tf1.zeros_initializer(), trainable=False
        )
        variance = tf1.get_variable(
            "moving_variance", channels, initializer=tf1.ones_initializer(), trainable=False
        )
        if not training:
            return tf1.nn.fused_batch_norm(
                x, gamma, beta, mean, variance, is_training=False, name="normalize"
            )[0]
        normalized, batch_mean, batch_variance = tf1.nn.fused_batch_norm(
            x, gamma, beta, name="normalize"
        )
        for average, value in ((mean, batch_mean), (variance, batch_variance)):
            step = (1.0 - MOVING_AVERAGE_DECAY) * (average - value)
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf1.assign_sub(average, step))
        return normalized


def block(name: str, x: Any, channels: int, activation: Any, *, training: bool) -> Any:
    """Convolution 3x3, batch norm, activation, pooling to half the size."""
    with tf1.variable_scope(name):
        with tf1.variable_scope("conv"):
            kernel = weights("weights", [3, 3, x.shape[-1], channels])
            x = tf.nn.conv2d(x, kernel, strides=1, padding="SAME", name="Conv2D")
        x = activation(batch_norm(x, training=training), name="relu")
        return tf1.nn.max_pool(x, ksize=2, strides=2, padding="SAME", name="pool")


def dense(name: str, x: Any, size: int) -> Any:
    with tf1.variable_scope(name):
        kernel = weights("weights", [x.shape[-1], size])
        return tf.nn.bias_add(tf.matmul(x, kernel, name="MatMul"), biases(size), name="BiasAdd")


def digits(training: bool) -> tuple[Any, Any, Any]:
    """Return the net that rounds its image, in the default graph."""
    tf1.set_random_seed(SEED)
    image = tf1.placeholder(tf.float32, [None, 8, 8, 1], name="image")
    rate = tf1.placeholder_with_default(0.0, [], name="dropout_rate")
    x = quantize(image)
    x = block("block1", x, 16, tf.nn.relu, training=training)
    x = block("block2", x, 32, tf.nn.relu6, training=training)
    features = tf.reshape(x, [-1, 2 * 2 * 32], name="features")
    x = tf.nn.relu(dense("dense", features, 64), name="dense/relu")
    x = tf1.nn.dropout(x, rate=rate, seed=SEED, name="dropout")
    logits = tf.identity(dense("classifier", x, 10), name="logits")
    return image, rate, logits


def numerals(training: bool) -> tuple[Any, Any, Any]:
    """Return the net whose gradient reaches the image, in the default graph."""
    del training
    tf1.set_random_seed(SEED)
    x = image = tf1.placeholder(tf.float32, [None, SIDE, SIDE, 1], name="image")
    for name, channels in (("conv1", 8), ("conv2", 16), ("conv3", 24)):
        with tf1.variable_scope(name):
            kernel = weights("weights", [3, 3, x.shape[-1], channels])
            x = tf.nn.conv2d(x, kernel, strides=1, padding="SAME", name="Conv2D")
            x = tf.nn.relu(tf.nn.bias_add(x, biases(channels), name="BiasAdd"), name="Relu")
            x = tf1.nn.max_pool(x, ksize=2, strides=2, padding="SAME", name="pool")
    features = tf.reshape(x, [-1, 4 * 4 * 24], name="features")
    logits = tf.identity(dense("classifier", features, 10), name="logits")
    return image, tf1.placeholder_with_default(0.0, [], name="dropout_rate"), logits


def session() -> Any:
    """One thread, so that sums are added up in the same order on every run."""
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    return tf1.Session(config=config)


def train(
    build: Build, images: np.ndarray, labels: np.ndarray, epochs: int, batch: int
) -> dict[str, Any]:
    """Adam on cross entropy; gives the values of all variables by name."""
    shuffle = np.random.default_rng(SEED)
    with tf1.Graph().as_default():
        image, rate, logits = build(True)
        label = tf1.placeholder(tf.int64, [None])
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        )
        variables = tf1.global_variables()
        names = [variable.op.name for variable in variables]
        with tf1.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            step = tf1.train.AdamOptimizer(2e-3).minimize(loss)
        with session() as sess:
            sess.run(tf1.global_variables_initializer())
            for _ in range(epochs):
                order = shuffle.permutation(len(images))
                for at in range(0, len(order), batch):
                    part = order[at : at + batch]
                    sess.run(step, {image: images[part], label: labels[part], rate: 0.3})
            return dict(zip(names, sess.run(variables), strict=True))


def freeze(
    build: Build, values: dict[str, Any], images: np.ndarray, labels: np.ndarray
) -> tuple[Any, float]:
    """Return the inference graph with `values` as constants, and its accuracy on `images`."""
    with tf1.Graph().as_default() as graph:
        image, _, logits = build(False)
        with session() as sess:
            for variable in tf1.global_variables():
                variable.load(values[variable.op.name], sess)
            answers = sess.run(logits, {image: images}).argmax(axis=1)
            frozen = tf1.graph_util.convert_variables_to_constants(
                sess, graph.as_graph_def(), ["logits"]
            )
    return without_default_attrs(frozen), float((answers == labels).mean())


def without_default_attrs(graph_def: Any) -> Any:
    """Return the same graph without attrs at their defaults: 1.15 does not know some of them."""
    with tf1.Graph().as_default():
        tf1.import_graph_def(graph_def, name="")
        stripped = tf1.train.export_meta_graph(strip_default_attrs=True).graph_def
    for node in stripped.node:
        node.attr.pop("_output_shapes", None)  # which that export adds
    return stripped


def enlarged(images: np.ndarray) -> np.ndarray:
    """Return the images at SIDE x SIDE pixels."""
    with tf1.Graph().as_default(), session() as sess:
        larger = tf1.image.resize_bicubic(images, [SIDE, SIDE], half_pixel_centers=True)
        pixels: np.ndarray = sess.run(larger).clip(0, 1)
    return pixels


def write(build: Build, images: np.ndarray, labels: np.ndarray, options: Any) -> None:
    """Train a net, and write it and a few images, unless it learnt too little."""
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, stratify=labels, random_state=SEED
    )
    values = train(build, train_x, train_y, options.epochs, options.batch)
    graph_def, accuracy = freeze(build, values, test_x, test_y)
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {LEAST_ACCURACY}: nothing written")

    first = [int(np.flatnonzero(test_y == digit)[0]) for digit in range(10)]
    model = options.folder / f"{build.__name__}.pb"
    model.write_bytes(graph_def.SerializeToString(deterministic=True))
    np.savez_compressed(model.with_suffix(".npz"), images=test_x[first], labels=test_y[first])
    print(f"{model}: {model.stat().st_size:,} bytes, {len(graph_def.node)} nodes")
    print(f"test accuracy {accuracy:.4f} on {len(test_y)} images that it was not trained on")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    tf1.disable_v2_behavior()
    scans = load_digits()
    images = (scans.images / 16.0).astype(np.float32)[..., np.newaxis]
    write(digits, images, scans.target, options)
    write(numerals, enlarged(images), scans.target, options)


if __name__ == "__main__":
    main()
