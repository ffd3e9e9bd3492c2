"""What two versions of the digits model answer, and what flows back through each.

Usage: demo.py ORIGINAL PATCHED. Imports both under tf.compat.v1 and differentiates the largest
logit of one image with respect to tensors on the way back to the pixels. Plain TensorFlow: the
patched file carries its gradients, nothing of graphpatch is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf

DIGITS = Path(__file__).parent / "models" / "digits.npz"
DIGIT = 4
WAY_BACK = {  # tensor: what the rules of guided.json have done to what arrives there
    "features:0": "guided by dense/relu",
    "block2/pool:0": "clipped to [-0.1, 0.1] by features",
    "quantize/levels:0": "guided by block2/relu and block1/relu",
    "image:0": "past the rounding",
}
INKS = " .:-=+*#%@"

Picture = Sequence[str]


class Answer(NamedTuple):
    logits: np.ndarray  # float32 [1, 10]
    gradients: dict[str, np.ndarray | None]  # of the largest logit, by tensor name


def ask(model: Path, image: np.ndarray) -> Answer:
    """Run `model` forward on one image, and back from its largest logit."""
    tf1 = tf.compat.v1
    graph_def = tf1.GraphDef.FromString(model.read_bytes())
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(graph_def, name="")
        logits = graph.get_tensor_by_name("logits:0")
        tensors = [graph.get_tensor_by_name(name) for name in WAY_BACK]
        flows = dict(zip(WAY_BACK, tf1.gradients(tf.reduce_max(logits), tensors), strict=True))
        fetches = {name: flow for name, flow in flows.items() if flow is not None}
        with tf1.Session() as session:
            values, found = session.run((logits, fetches), {"image:0": image})
    return Answer(values, {name: found.get(name) for name in WAY_BACK})


def largest(gradient: np.ndarray | None) -> str:
    return "None" if gradient is None else f"{np.abs(gradient).max():.3f}"


def picture(pixels: np.ndarray | None) -> Picture:
    """8 lines of 16 characters, two a pixel; the darker, the larger the value is."""
    if pixels is None:
        return [f"{'None' if line == 3 else '':^16}" for line in range(8)]
    size = np.abs(np.squeeze(pixels))
    inks = (size / size.max() * (len(INKS) - 1)).round().astype(int)
    return ["".join(INKS[ink] * 2 for ink in line) for line in inks]


def print_side_by_side(pictures: dict[str, Picture]) -> None:
    def line(cells: Sequence[str]) -> str:
        return "   " + "   ".join(cells)

    print(line([f"{title:^18}" for title in pictures]))
    edge = line(["+" + "-" * 16 + "+"] * len(pictures))
    print(edge)
    for row in zip(*pictures.values(), strict=True):
        print(line([f"|{cell}|" for cell in row]))
    print(edge)


def show(image: np.ndarray, before: Answer, after: Answer) -> None:
    print(f"Largest |gradient| of logit {before.logits.argmax()}, on its way back to the pixels:\n")
    print(f"   {'tensor':18}{'before':>8}{'after':>8}")
    for name, note in WAY_BACK.items():
        values = largest(before.gradients[name]), largest(after.gradients[name])
        print(f"   {name:18}{values[0]:>8}{values[1]:>8}   {note}")
    print()
    print_side_by_side(
        {
            "the image": picture(image),
            "gradient before": picture(before.gradients["image:0"]),
            "gradient after": picture(after.gradients["image:0"]),
        }
    )


def main(arguments: Sequence[str]) -> int:
    original, patched = map(Path, arguments)
    with np.load(DIGITS) as digits:
        image = digits["images"][digits["labels"] == DIGIT][:1]
    before, after = ask(original, image), ask(patched, image)
    show(image, before, after)
    equal = before.logits.tobytes() == after.logits.tobytes()
    print(f"\nForward pass bit-equal: {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
