"""Time the forward pass of a patched ResNet50 beside the unpatched one, in TensorFlow Sessions.

All Relu get guided_relu, which functions carry, and then a gradient that is linear in dy, which a
construction carries: it has no target, as the Relu are not fused into the convolutions any more.
Original and patched run in turn, A B A B, in one
process, each in a Session of its own; the ratio is the median of the ratios of neighbours. So it is
for the same net inside nested functions (PartitionedCall), where calls are not inlined, which has
no target. Checks that forward passes are equal bit for bit, and the guided gradient to that of
gradient_override_map. Exits 1 where one is not, or the target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

import numpy as np
import tensorflow as tf

import graphpatch

TARGET = 0.02
RULE = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
LINEAR = {"match": {"op": "Relu"}, "patch": {"override_gradient": "lrp_epsilon"}}
CLASSIC = "ClassicGuidedRelu"

tf1 = tf.compat.v1


def classic(op: Any, dy: Any) -> Any:
    """Guided backpropagation as it is usually written (Springenberg et al. 2014)."""
    own = tf.raw_ops.ReluGrad(gradients=dy, features=op.outputs[0])
    return tf.where(dy > 0.0, own, tf.zeros_like(own))


class Net(NamedTuple):
    """A Session on a net, with its output and the gradient of its largest class score."""

    session: Any
    output: Any
    gradient: Any

    def forward(self, images: Any) -> Any:
        return self.session.run(self.output, {"x:0": images})

    def backward(self, images: Any) -> Any:
        return self.session.run(self.gradient, {"x:0": images})


def opened(path: Path, overrides: dict[str, str] | None = None) -> Net:
    with tf1.Graph().as_default() as graph:
        with graph.gradient_override_map(overrides or {}):
            tf1.import_graph_def(tf1.GraphDef.FromString(path.read_bytes()), name="")
        sinks = [op for op in graph.get_operations() if op.type == "Identity"]
        output = sinks[-1].outputs[0]
        score = tf.reduce_max(tf.math.log(output), axis=-1)
        (gradient,) = tf1.gradients(score, graph.get_tensor_by_name("x:0"))
        return Net(tf1.Session(graph=graph), output, gradient)


def nested(path: Path, target: Path) -> Path:
    """Return the net as a function that a function calls, and that by PartitionedCall."""
    graph_def = tf1.GraphDef.FromString(path.read_bytes())

    def net(x: Any) -> Any:
        feeds, last = {"x:0": x}, graph_def.node[-1].name
        return tf.graph_util.import_graph_def(graph_def, feeds, [f"{last}:0"], name="")[0]

    inner = tf.function(net, autograph=False)
    outer = tf.function(lambda x: inner(x), autograph=False)
    with tf1.Graph().as_default() as graph:
        tf.identity(outer(tf1.placeholder(tf.float32, [None, 224, 224, 3], name="x")), name="out")
    target.write_bytes(graph.as_graph_def().SerializeToString())
    return target


def patched(path: Path, rule: dict[str, Any] = RULE) -> Path:
    target = path.with_suffix(".patched.pb")
    result = graphpatch.apply([rule], path)
    result.model.save(target)
    (rule,) = result.report["rules"]
    print(f"{path.name}: {len(rule['matches'])} Relu carried by {rule['emit']}")
    return target


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def ratios(a: Net, b: Net, images: Any, rounds: int, clock: str) -> list[float]:
    """How long b takes of what a takes, each time that they ran one after the other."""
    now = CLOCKS[clock]
    times = []
    for number in range(rounds + 1):
        pair = []
        for net in (a, b) if number % 2 else (b, a):
            start = now()
            net.forward(images)
            pair.append(now() - start)
        times.append(pair if number % 2 else pair[::-1])
    return [second / first for first, second in times[1:]]  # the first round warms up


def report(title: str, found: list[float], target: float | None) -> bool:
    low, _, high = quantiles(found, n=4)
    ratio = median(found)
    met = target is None or ratio <= 1 + target
    wanted = "no target" if target is None else f"at most {1 + target:.2f}"
    print(f"{title:34} {ratio:.3f} ({low:.3f} to {high:.3f}), {wanted}{'' if met else ' MISSED'}")
    return met


def same(title: str, a: Any, b: Any) -> bool:
    equal = bool(a.tobytes() == b.tobytes() and np.abs(a).max() > 0)
    print(f"{title:34} {'bit-equal' if equal else f'differs by {np.abs(a - b).max()}'}")
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a ResNet50 as a frozen graph")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: on a machine with other work"
    )
    parser.add_argument("--batch", type=int, default=4, help="images in a forward pass")
    options = parser.parse_args()
    tf.RegisterGradient(CLASSIC)(classic)
    images = np.random.default_rng(0).random((options.batch, 224, 224, 3), np.float32)
    return 0 if measure(options.model, images, options.rounds, options.clock) else 1


def measure(model: Path, images: Any, rounds: int, clock: str) -> bool:
    def timed(one: Net, other: Net) -> list[float]:
        return ratios(one, other, images, rounds, clock)

    plain, ours, override = opened(model), opened(patched(model)), opened(model, {"Relu": CLASSIC})
    classic_dx = override.backward(images[:2])
    met = [
        same("forward", plain.forward(images), ours.forward(images)),
        same("guided gradient", classic_dx, ours.backward(images[:2])),
        report("forward time, patched / original", timed(plain, ours), TARGET),
    ]
    linear = opened(patched(model, LINEAR))
    met.append(same("construction: forward", plain.forward(images), linear.forward(images)))
    report("construction: forward time", timed(plain, linear), None)
    path = nested(model, model.with_suffix(".nested.pb"))
    plain, ours = opened(path), opened(patched(path))
    # Its gradient is not to be had: TensorFlow has none of Pad in a function.
    met.append(same("nested: forward", plain.forward(images), ours.forward(images)))
    report("nested: forward time", timed(plain, ours), None)
    return all(met)


if __name__ == "__main__":
    sys.exit(main())
