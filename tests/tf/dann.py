"""DANN on digits: data, net and start that every way of training it shares.

Source: scikit-learn's digits with their labels. Target: digits moved by one pixel, without labels.
In a batch, digits of the source come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

STRENGTH, RATE, STEPS, BATCH, SEED = 0.3, 0.1, 20, 32, 7
SIZES = {"features": (64, 32), "digits": (32, 10), "hidden": (32, 16), "told": (16, 2)}
ACTIVATIONS = {"features": "relu", "hidden": "relu"}
WHICH = np.repeat(np.array([0, 1], np.int32), BATCH)


def start() -> dict[str, np.ndarray]:
    """The values of all variables before the first step, by name: `features/w`, `features/b`."""
    random = np.random.default_rng(SEED)
    found = {}
    for name, (given, made) in SIZES.items():
        limit = np.sqrt(6 / (given + made))
        found[f"{name}/w"] = random.uniform(-limit, limit, (given, made)).astype(np.float32)
        found[f"{name}/b"] = np.zeros(made, np.float32)
    return found


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images of both domains, and the labels of those of the source, for each step."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    moved = np.roll(images.reshape(-1, 8, 8), 1, axis=2).reshape(-1, 64)
    random = np.random.default_rng(SEED)
    for _ in range(STEPS):
        one, other = random.integers(0, len(labels), (2, BATCH))
        yield np.concatenate([images[one], moved[other]]), labels[one].astype(np.int32)


def losses(digits: Any, domains: Any, labels: Any) -> tuple[Any, Any]:
    """The loss of the digits of the source, and of the domains of both."""
    import tensorflow as tf

    cross = tf.nn.sparse_softmax_cross_entropy_with_logits
    known = cross(labels=labels, logits=digits[: tf.shape(labels)[0]])
    digit = tf.reduce_mean(known, name="digits/loss")
    return digit, tf.reduce_mean(cross(labels=WHICH, logits=domains), name="domain/loss")


def net(read: Callable[[str], Any], image: Any, reverse: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The logits of digits and domains; `read` gives a variable, `reverse` is the reversal."""
    import tensorflow as tf

    def dense(name: str, x: Any) -> Any:
        product = tf.matmul(x, read(f"{name}/w"), name=f"{name}/product")
        return tf.nn.bias_add(product, read(f"{name}/b"))

    features = tf.nn.relu(dense("features", image))
    told = reverse(features)
    return dense("digits", features), dense("told", tf.nn.relu(dense("hidden", told)))


def trained_on_a_tape(reverse: Callable[[Any], Any]) -> list[tuple[float, float]]:
    """Both losses before each step of gradient descent, with a reversal of one's own."""
    import tensorflow as tf

    held = {name: tf.Variable(value) for name, value in start().items()}

    @tf.function
    def step(image: Any, label: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            found = losses(*net(held.__getitem__, image, reverse), label)
            loss = found[0] + found[1]
        wrt = list(held.values())
        for variable, gradient in zip(wrt, tape.gradient(loss, wrt), strict=True):
            variable.assign_sub(RATE * gradient)
        return found

    steps = [step(tf.constant(image), tf.constant(label)) for image, label in batches()]
    return [(float(digit), float(domain)) for digit, domain in steps]


def trained_by_keras(keras: Any, reversal: Any) -> list[tuple[float, float]]:
    """The same with Keras layers and an optimizer of Keras; `reversal` is a layer."""
    import tensorflow as tf

    image = keras.Input((64,))
    layers = {
        name: keras.layers.Dense(
            made, activation="relu" if name in {"features", "hidden"} else None
        )
        for name, (_, made) in SIZES.items()
    }
    features = layers["features"](image)
    told = layers["told"](layers["hidden"](reversal(features)))
    model = keras.Model(image, [layers["digits"](features), told])
    for name, layer in layers.items():
        layer.set_weights([start()[f"{name}/w"], start()[f"{name}/b"]])
    optimizer = keras.optimizers.SGD(RATE)
    found = []
    for images, labels in batches():
        with tf.GradientTape() as tape:
            parts = losses(*model(tf.constant(images), training=True), tf.constant(labels))
            loss = parts[0] + parts[1]
        wrt = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, wrt), wrt, strict=True))
        found.append((float(parts[0]), float(parts[1])))
    return found
