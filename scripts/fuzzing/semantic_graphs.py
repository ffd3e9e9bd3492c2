"""Random graphs that TensorFlow runs, and their gradients under TensorFlow's own overrides.

`python -m fuzzing.semantic_graphs build FOLDER SEED FIRST COUNT` writes each as a GraphDef, with
its output and its gradients where op types are overridden; `run FOLDER` imports what graphpatch
made of them, in a process of its own, and writes the same of that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np

Tensor = Any
Overrides = dict[str, str]

UNARY = (
    "Relu", "Relu6", "Tanh", "Sigmoid", "Sin", "Abs", "Square", "Softplus", "Elu", "Round", "Floor",
    "Sign", "Neg",
)  # fmt: skip
BINARY = ("AddV2", "Mul", "Sub", "Maximum", "Minimum")
OURS = ("Mul", "Maximum", "Minimum")  # no other code makes ops of these types

# By name: what flows back, as a patch of a rules file and as TensorFlow has it; of unary ops.
WAYS: dict[str, tuple[Any, Callable[[Any, Any, Any], Any]]] = {
    "scaled": ({"override_gradient": {"formula": "dy * 7"}}, lambda tf, op, dy: dy * 7.0),
    "zero": ({"override_gradient": "zero"}, lambda tf, op, dy: tf.zeros_like(dy)),
    "guided": (
        {"override_gradient": {"formula": "where(x > 0 and dy > 0, dy, 0)"}},
        lambda tf, op, dy: tf.where((op.inputs[0] > 0) & (dy > 0), dy, tf.zeros_like(dy)),
    ),
    "smooth": (
        {"override_gradient": {"formula": "dy * (1 - square(y)) + x"}},
        lambda tf, op, dy: dy * (1 - tf.square(op.outputs[0])) + op.inputs[0],
    ),
    "through": ({"straight_through": True}, lambda tf, op, dy: dy),
    "stopped": ({"stop_gradient": True}, lambda tf, op, dy: tf.zeros_like(dy)),
    "surrogate": (
        # Made of ops that no other rule is about: those that a rule adds are ops like all others.
        {"surrogate_gradient": "exp(0.25 * x)"},
        lambda tf, op, dy: dy * 0.25 * tf.exp(0.25 * op.inputs[0]),
    ),
    "reversed": (
        {"filter_gradient": {"reverse": {"strength": 0.5}}},
        lambda tf, op, dy: _own(op, -0.5 * dy),
    ),
    "clipped": (
        {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
        lambda tf, op, dy: _own(op, tf.clip_by_value(dy, -0.1, 0.1)),
    ),
    "clipped behind": (
        {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}, "at": "inputs"},
        lambda tf, op, dy: _each(_own(op, dy), lambda one: tf.clip_by_value(one, -0.1, 0.1)),
    ),
    "bounded": (
        {"filter_gradient": {"clip_by_norm": {"norm": 0.5}}},
        lambda tf, op, dy: _own(op, tf.clip_by_norm(dy, 0.5)),
    ),
    "bent": (
        {"override_gradient": {"formula": "dy * abs(dy)"}},
        lambda tf, op, dy: dy * tf.abs(dy),
    ),
}

# The same of ops with two inputs.
OF_TWO: dict[str, tuple[Any, Callable[[Any, Any, Any], Any]]] = {
    **{name: WAYS[name] for name in ("reversed", "clipped", "clipped behind", "bounded")},
    "stopped": (WAYS["stopped"][0], lambda tf, op, dy: (tf.zeros_like(dy), tf.zeros_like(dy))),
    "to the first": (
        {"override_gradient": {"formula": ["dy * 2", None]}},
        lambda tf, op, dy: (2 * dy, None),
    ),
    "crossed": (
        {"override_gradient": {"formula": ["dy * x1", "dy * x0"]}},
        lambda tf, op, dy: (dy * op.inputs[1], dy * op.inputs[0]),
    ),
}


def rules_of(rng: Random) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Which op types are overridden, and in what way; and the rules that say so."""
    types = rng.sample((*UNARY, *OURS), rng.choice((1, 2, 3, 4)))
    chosen = {op: rng.choice(sorted(ways_of(op))) for op in types}
    rules = []
    for op, way in chosen.items():
        patch = ways_of(op)[way][0]
        told = {"name": op, "match": {"op": op}, "patch": patch, "expect": {"min": 0}}
        rules.append(told | ({"emit": "function"} if rng.random() < 0.3 else {}))
    return chosen, rules


def ways_of(op: str) -> dict[str, tuple[Any, Callable[[Any, Any, Any], Any]]]:
    """Return what may flow back through an op of this type."""
    return OF_TWO if op in OURS else WAYS


def _own(op: Any, dy: Any) -> Any:
    """TensorFlow's own gradient of an op, of another upstream gradient."""
    from tensorflow.python.framework import ops

    return ops.gradient_registry.lookup(op.type)(op, dy)


def _each(gradients: Any, change: Callable[[Any], Any]) -> Any:
    """Gradients by each input, those that are there changed."""
    if isinstance(gradients, list | tuple):
        return [None if one is None else change(one) for one in gradients]
    return None if gradients is None else change(gradients)


class Builder:
    """Builds one graph, the same each time for the same seed, with op types overridden or not."""

    def __init__(self, tf: Any, rng: Random, overrides: Overrides) -> None:
        self.tf, self.rng, self.overrides = tf, rng, overrides

    def graph(self) -> tuple[list[Tensor], Tensor]:
        """Return the inputs and the output."""
        tf, rng = self.tf, self.rng
        inputs = [tf.compat.v1.placeholder(tf.float32, [3, 4], name=f"x{k}") for k in range(2)]
        pool = list(inputs)
        for _ in range(rng.randrange(3, 14)):
            pool.append(self.step(rng.choice(pool[-4:]), rng.choice(pool), 0))
        kept = tf.add_n([tf.reduce_sum(one) for one in pool[-3:]])
        return inputs, tf.identity(kept, name="out")

    def step(self, one: Tensor, two: Tensor, depth: int) -> Tensor:
        """Another tensor of the same shape."""
        tf, rng = self.tf, self.rng
        how = rng.random()
        if how < 0.5 or depth > 1:
            return self.unary(one)
        if how < 0.7:
            op = rng.choice(BINARY)
            with self.overridden(op):
                return getattr(tf.raw_ops, op)(x=one, y=two)
        if how < 0.76:
            weights = np.random.default_rng(rng.randrange(99)).normal(size=(4, 4)) / 2
            return tf.matmul(one, tf.constant(weights, tf.float32))
        if how < 0.82:
            return tf.reshape(tf.transpose(tf.reshape(one, [4, 3])), [3, 4])
        if how < 0.88:
            return one - tf.reduce_mean(two, axis=rng.choice((0, 1)), keepdims=True)
        return rng.choice((self.loop, self.branch, self.call))(one, two, depth)

    def unary(self, x: Tensor) -> Tensor:
        """Return an op of one input, whose gradient may be overridden in whatever graph."""
        tf, op = self.tf, self.rng.choice(UNARY)
        with self.overridden(op):
            raw = getattr(tf.raw_ops, op)
            takes = "features" if op in ("Relu", "Relu6", "Softplus", "Elu") else "x"
            return raw(**{takes: x / 2 if op == "Square" else x})

    def overridden(self, op: str) -> AbstractContextManager[Any]:
        """Where ops of this type have the gradient that is asked for, if one is."""
        if op not in self.overrides:
            return nullcontext()
        graph = self.tf.compat.v1.get_default_graph()
        found: AbstractContextManager[Any] = graph.gradient_override_map({op: self.overrides[op]})
        return found

    def inside(self, depth: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return some steps, the same whenever they are built."""
        seed, count = self.rng.random(), self.rng.randrange(1, 4)

        def built(one: Tensor, two: Tensor) -> Tensor:
            inner = Builder(self.tf, Random(seed), self.overrides)
            for _ in range(count):
                one = inner.step(one, two, depth + 1)
            return one

        return built

    def loop(self, one: Tensor, two: Tensor, depth: int) -> Tensor:
        body, times = self.inside(depth), self.rng.choice((0, 1, 3))
        return self.tf.compat.v1.while_loop(
            lambda k, _: k < times, lambda k, y: (k + 1, body(y, two)), (0, one)
        )[1]

    def branch(self, one: Tensor, two: Tensor, depth: int) -> Tensor:
        first, second = self.inside(depth), self.inside(depth)
        return self.tf.compat.v1.cond(
            self.tf.reduce_sum(two) > 0, lambda: first(one, two), lambda: second(one, two)
        )

    def call(self, one: Tensor, two: Tensor, depth: int) -> Tensor:
        return self.tf.function(self.inside(depth))(one, two)


def feed(number: int) -> list[Any]:
    """Return what the inputs are."""
    rng = np.random.default_rng(number)
    return [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2)]


def _answer(tf: Any, graph: Any, inputs: list[Any], out: Any, number: int) -> list[Any]:
    """Return the output and the gradients; zeros where there is none."""
    with graph.as_default():
        found = tf.compat.v1.gradients(out, inputs)
        wanted = [out] + [
            tf.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)
        ]
    with tf.compat.v1.Session(graph=graph) as session:
        values: list[Any] = session.run(wanted, dict(zip(inputs, feed(number), strict=True)))
        return values


def build(folder: Path, seed: int, first: int, count: int) -> None:
    """Write graphs, and what TensorFlow says of them."""
    import tensorflow as tf

    for number in range(first, first + count):
        chosen, _ = rules_of(Random(f"rules:{seed}:{number}"))
        overrides = {op: f"Fuzz{seed}_{number}_{op}" for op in chosen}
        for op, way in chosen.items():
            function = ways_of(op)[way][1]
            tf.RegisterGradient(overrides[op])(lambda op, dy, f=function: f(tf, op, dy))
        (
            tf.compat.v1.enable_control_flow_v2
            if number % 2
            else tf.compat.v1.disable_control_flow_v2
        )()
        for name, used in (("plain", {}), ("oracle", overrides)):
            with tf.Graph().as_default() as graph:
                inputs, out = Builder(tf, Random(f"{seed}:{number}"), used).graph()
                if name == "plain":
                    raw = graph.as_graph_def().SerializeToString()
                    (folder / f"{number}.pb").write_bytes(raw)
            try:
                found = _answer(tf, graph, inputs, out, number)
            except tf.errors.InvalidArgumentError as error:  # what it built itself, it cannot run
                print(f"graph {number} is left out: TensorFlow says {error.message.strip()}")
                (folder / f"{number}.pb").unlink()
                break
            np.savez(folder / f"{number}.{name}.npz", *found)


def differing(one: list[Any], two: list[Any]) -> list[int]:
    """Return the inputs by which the gradients differ, of two answers."""
    pairs = zip(one[1:], two[1:], strict=True)
    return [
        place
        for place, (left, right) in enumerate(pairs)
        if not np.allclose(left, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    ]


def answer(folder: Path, number: int, name: str) -> list[Any]:
    """Return an answer that was written: the output and the gradients."""
    found = np.load(folder / f"{number}.{name}.npz")
    return [found[key] for key in found.files]


def run(folder: Path) -> None:
    """Import what was patched, and write its output and gradients."""
    import tensorflow as tf

    for path in sorted(folder.glob("*.patched.pb")):
        number = int(path.name.partition(".")[0])
        try:
            found = _imported(tf, path, number)
        except Exception as error:
            found = []
            (folder / f"{number}.error").write_text(f"{type(error).__name__}: {error}")
        differs = not found or differing(answer(folder, number, "oracle"), found)
        if differs and _changed_by_import(tf, folder, number):
            (folder / f"{number}.refused").touch()
        np.savez(folder / f"{number}.patched.npz", *found)


def _imported(tf: Any, path: Path, number: int) -> list[Any]:
    message = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(message, name="")
        inputs = [graph.get_tensor_by_name(f"x{k}:0") for k in range(2)]
        out = graph.get_tensor_by_name("out:0")
        return _answer(tf, graph, inputs, out, number)


def _changed_by_import(tf: Any, folder: Path, number: int) -> bool:
    """Whether the original too, once imported, has no gradients or others than where it was built.

    As it has where a function is called that has a While in it.
    """
    try:
        found = _imported(tf, folder / f"{number}.pb", number)
    except Exception:
        return True
    return bool(differing(answer(folder, number, "plain"), found))


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
    else:
        run(Path(sys.argv[2]))
