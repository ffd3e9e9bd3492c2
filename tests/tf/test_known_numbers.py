"""The numbers that graphpatch knows of small tensors are those that TensorFlow computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import graphpatch
from graphpatch.differentiation.known_numbers import OF_CONSTANTS, PARTLY_KNOWN
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring

tf = pytest.importorskip("tensorflow")

from tests.tf.test_inferred_shapes import contradicts, differing  # noqa: E402

tf1 = tf.compat.v1
raw = tf.raw_ops

TRIES = 500
LISTS = ([], [2], [3, -1], [1, 2, 0], [4, 1, 6], [1, 1, 2, -4], [[1, 2], [0, 3]], [[4], [5]])

# What is made of three tensors by a choice of numbers; most fail for most tensors.
STEPS: tuple[Callable[[Any, Any, Any, random.Random], Any], ...] = (
    lambda a, b, c, rng: rng.choice([raw.Add, raw.AddV2, raw.Sub, raw.Mul])(x=a, y=b),
    lambda a, b, c, rng: rng.choice([raw.FloorDiv, raw.FloorMod, raw.Maximum])(x=a, y=b),
    lambda a, b, c, rng: tf.minimum(-a, b),
    lambda a, b, c, rng: rng.choice([tf.reduce_sum, tf.reduce_max, tf.reduce_min])(
        a, rng.choice([0, -1, [0]]), rng.choice([True, False])
    ),
    lambda a, b, c, rng: tf.reduce_prod(a, 0),
    lambda a, b, c, rng: raw.BroadcastGradientArgs(s0=a, s1=b)[rng.randrange(2)],
    lambda a, b, c, rng: tf.dynamic_stitch([tf.constant([0, 1]), tf.constant(2)], [a, b]),
    lambda a, b, c, rng: tf.gather(a, b),
    lambda a, b, c, rng: raw.Gather(params=a, indices=b),
    lambda a, b, c, rng: tf.slice(a, [rng.randrange(2)], [-1]),
    lambda a, b, c, rng: tf.range(a, b, c),
    lambda a, b, c, rng: tf.fill([rng.randrange(3)], a),
    lambda a, b, c, rng: tf.reverse(a, [0]),
    lambda a, b, c, rng: tf.stack([a, b], rng.choice([0, -1])),
    lambda a, b, c, rng: tf.concat([a, b], 0),
    lambda a, b, c, rng: raw.Concat(concat_dim=0, values=[a, b]),
    lambda a, b, c, rng: a[rng.randrange(-2, 2)],
    lambda a, b, c, rng: a[rng.choice([None, 0, 1, -2]) : rng.choice([None, 1, -1]) : 1],
    lambda a, b, c, rng: a[:: rng.choice([2, -1])],
    lambda a, b, c, rng: tf.cast(
        tf.cast(a, rng.choice([tf.int64, tf.float32, tf.float64, tf.uint8])), tf.int32
    ),
    lambda a, b, c, rng: rng.choice([tf.shape, tf.size, tf.rank, tf.squeeze, tf.identity])(a),
    lambda a, b, c, rng: raw.ShapeN(input=[a, b])[rng.randrange(2)],
    lambda a, b, c, rng: tf.reshape(tf.expand_dims(a, 0), [-1]),
)


def graph_of_numbers(seed: int) -> Any:
    """Many small tensors of integers, each computed of others."""
    rng = random.Random(seed)
    with tf.Graph().as_default() as graph:
        made = [tf.constant(one, tf.int32) for one in (*range(-2, 3), 5, -7, *LISTS)]
        for _ in range(TRIES):
            step, read = rng.choice(STEPS), rng.choices(made, k=3)
            try:
                new = step(*read, rng)
            except (ValueError, TypeError, tf.errors.OpError):
                continue
            if new.dtype == tf.int32:
                made.append(new)
    return graph


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_numbers_are_those_that_tensorflow_computes(seed: int) -> None:
    graph = graph_of_numbers(seed)
    message = graph.as_graph_def()
    main = graphpatch.load(message).graphs[0].main
    shapes, count, wrong, seen = Shapes(Wiring(main)), 0, {}, set[str]()
    config = tf1.ConfigProto()  # each tensor is run once: there is nothing to optimise
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    with tf1.Session(graph=graph, config=config) as session:
        for op in graph.get_operations():
            for output, tensor in enumerate(op.outputs):
                place = main.by_name[op.name], output
                shapes.of(place)
                known = shapes._numbers.get(place)
                if known is None:
                    continue
                try:
                    value = session.run(tensor).ravel().tolist()
                except tf.errors.OpError:  # an index out of range, a division by zero
                    continue
                count, seen = count + 1, seen | {op.type}
                told = [
                    one if mine is not None else None
                    for mine, one in zip(known.values, value, strict=False)
                ]
                if len(known.values) != len(value) or list(known.values) != told:
                    wrong[tensor.name] = (op.type, known, value)
    assert wrong == {}
    assert count > 100
    assert len(seen) > len({*OF_CONSTANTS, *PARTLY_KNOWN}) / 2
    found = differing(message)
    assert {name: pair for name, pair in found.items() if contradicts(*pair)} == {}
