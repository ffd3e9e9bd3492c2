"""The models of the table: what they are fed, and of which output by which tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SEED = 7


@dataclass(frozen=True)
class Subject:
    """A model, the tensor that the gradient is by, and one element of an output for each example.

    `feed` makes a batch of so many examples: the first is shown, the rest are references.
    `index` is the element, without the batch axis; None for the largest, () for the sum of all.
    `fixed`: the file has a batch of one. `spread`: the standard deviation of untrained weights.
    `several`: the last ops of its leaky and parametric ReLUs, as a regular expression.
    """

    label: str
    kind: str
    file: str
    by: str
    output: str
    feed: Callable[[], dict[str, Any]]
    index: tuple[int, ...] | None = None
    batch: bool = True
    fixed: bool = False
    spread: float = 0.0
    scalars: Mapping[str, Any] = field(default_factory=dict)
    several: str = ""

    @property
    def given(self) -> dict[str, Any]:
        """What is fed for one example."""
        return {**self.feed(), **self.scalars}

    @property
    def pair(self) -> dict[str, Any]:
        """What is fed for an example and, behind it, its reference of zeros."""
        both = {name: np.concatenate([x, np.zeros_like(x)]) for name, x in self.feed().items()}
        return {**both, **self.scalars}


def photo(size: int, low: float = -1.0) -> Any:
    """Return a photograph that scikit-learn brings along, from `low` to 1."""
    from sklearn.datasets import load_sample_image

    image = np.asarray(load_sample_image("flower.jpg"), np.float32)[10:394, 120:504]
    step = 384 // size
    small = image[: size * step, : size * step].reshape(size, step, size, step, 3).mean((1, 3))
    return (small[None] / 255 * (1 - low) + low).astype(np.float32)


def digit(which: int = 4) -> Any:
    with np.load(ROOT / "scripts" / "models" / "digits.npz") as found:
        return found["images"][found["labels"] == which][:1]


def large_digit() -> Any:
    """Return a digit of 28 x 28, as MNIST has them."""
    return np.pad(np.kron(digit(2)[0, :, :, 0], np.ones((3, 3), np.float32)), 2)[None]


def words() -> Any:
    return np.random.default_rng(SEED).integers(0, 500, size=(1, 100)).astype(np.int32)


def scene() -> Any:
    """Return an image for a detector, of whatever size, from 0 to 255."""
    return np.rint(photo(64, 0.0)[0] * 255)


ZOO = "zoo/"
SUBJECTS = (
    Subject(
        "MobileNet v1 0.25",
        "convolutional net, trained",
        "mobilenet_v1_0.25_128_frozen.pb",
        "input:0",
        "MobilenetV1/Logits/SpatialSqueeze:0",
        lambda: {"input:0": photo(128)},
        fixed=True,
    ),
    Subject(
        "digits",
        "convolutional net, trained",
        str(ROOT / "scripts" / "models" / "digits.pb"),
        "quantize/levels:0",
        "logits:0",
        lambda: {"image:0": digit()},
    ),
    Subject(
        "CIFAR net",
        "convolutional net, trained",
        ZOO + "uTensor+utensor_cgen__tests_deep_cnn_buggy.pb",
        "Placeholder:0",
        "fully_connect_2/logits:0",
        lambda: {"Placeholder:0": photo(32, 0.0)},
        scalars={"keep_prob:0": np.float32(1)},
    ),
    Subject(
        "FSRCNN x2",
        "super-resolution, trained",
        ZOO + "Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb",
        "IteratorGetNext:0",
        "NHWC_output:0",
        lambda: {"IteratorGetNext:0": photo(24, 0.0).mean(-1, keepdims=True)},
        index=(24, 24, 0),
        several="add_(1|3|5|7|9|11|13)",
    ),
    Subject(
        "word CNN",
        "text model, untrained",
        ZOO + "SciSharp+TensorFlow.NET__graph_word_cnn_untrained.meta",
        "embedding/embedding_lookup:0",
        "output/dense/BiasAdd:0",
        lambda: {"x:0": words()},
        spread=0.1,
        scalars={"is_training:0": False},
    ),
    Subject(
        "MNIST LSTM",
        "LSTM, trained",
        "dl4j/lstm_mnist.pb",
        "input:0",
        "add:0",
        lambda: {"input:0": large_digit()},
    ),
    Subject(
        "face corrector",
        "convolutional net, trained",
        "face_corrector.pb",
        "img:0",
        "X:0",
        lambda: {"img:0": photo(50, 0.0)},
        index=(),
        several=".*LeakyRelu/Maximum",
        scalars={"training:0": False},
    ),
    Subject(
        "MTCNN",
        "detector, trained",
        "mtcnn.pb",
        "input:0",
        "prob:0",
        lambda: {"input:0": scene()},
        index=(),
        batch=False,
        several=".*[pP][rR][eE][lL][uU][0-9]/Select",
        scalars={
            "min_size:0": np.float32(20),
            "thresholds:0": np.zeros(3, np.float32),
            "factor:0": np.float32(0.7),
        },
    ),
)
