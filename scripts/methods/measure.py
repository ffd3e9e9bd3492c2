"""One method on one model: by its recipe, and as its peers do it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as framework

import graphpatch
from graphpatch.errors import GraphpatchError, MatchError
from methods import peers
from methods.models import SEED, Subject

tf1 = tf.compat.v1
PLAIN = "plain gradient"
MOST = 1000  # rows of an embedding of which only the first words are fed
READ_BY_INPUT = ("@lrp_epsilon", "@lrp_composite")  # relevance is input * gradient


@dataclass(frozen=True)
class Found:
    """What a method gave: the attribution of the example, and how far it is from the reference."""

    attribution: Any = None
    difference: float = 0.0
    ops: int = 0
    why: str = ""

    @property
    def told(self) -> str:
        """As the table says it."""
        return self.why or f"{self.ops} ops, {self.difference:.1e}"


def attribution(model: Any, subject: Subject, given: dict[str, Any], top: int) -> tuple[Any, ...]:
    """Return the output, the tensor that the gradient is by, and the gradient."""
    with repeatable(), tf.Graph().as_default() as graph:
        graphpatch.import_model(model)
        seed_random_ops(graph)
        x, y = (graph.get_tensor_by_name(name) for name in (subject.by, subject.output))
        index = (top,) if subject.index is None else subject.index
        score = y[(slice(None), *index)] if index else y
        (dx,) = tf1.gradients(score, x)
        config = tf1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf1.Session(graph=graph, config=config) as session:
            assign(graph, session, subject.spread)
            return tuple(session.run([y, x, tf.convert_to_tensor(dx)], given))


def seed_random_ops(graph: Any) -> None:
    """Give the ops that draw at random a seed, which `repeatable` asks for."""
    for op in graph.get_operations():
        attrs = op.node_def.attr
        if "seed2" in attrs and not (attrs["seed"].i or attrs["seed2"].i):
            op._set_attr("seed", tf1.AttrValue(i=SEED))


@contextmanager
def repeatable() -> Iterator[None]:
    """TensorFlow gives the same bits in each run, on any number of threads.

    It does not without this: on a CPU the gradient of CropAndResize adds up overlapping boxes from
    several threads without a lock, and what one of them adds may be lost. A ConfigProto of one
    thread does not help, as the first session of a process decides how many threads all have.
    """
    enabled = framework.is_op_determinism_enabled()
    framework.enable_op_determinism()
    try:
        yield
    finally:
        if not enabled:
            framework.disable_op_determinism()


def assign(graph: Any, session: Any, spread: float) -> None:
    """Give the variables of an untrained model numbers of a seed."""
    draw = np.random.default_rng(SEED)
    for op in graph.get_operations() if spread else ():
        if op.type == "VariableV2" and "Adam" not in op.name and "gradients" not in op.name:
            shape = [min(one.size, MOST) for one in op.get_attr("shape").dim]
            value = draw.normal(scale=spread, size=shape)
            kind = tf.as_dtype(op.get_attr("dtype"))
            session.run(tf1.assign(op.outputs[0], tf.cast(value, kind), validate_shape=False))


def read(method: str, values: tuple[Any, ...], subject: Subject) -> Any:
    """Return the attribution of the first example, from what `attribution` gives."""
    _, x, dx = values
    if method == "@deeplift":
        return ((x[:1] - x[1:]) * dx[:1])[0]
    relevance = x * dx if method in READ_BY_INPUT else dx
    return relevance[0] if subject.batch else relevance


def message(path: Path) -> Any:
    """Return the GraphDef of a file, or the MetaGraphDef."""
    kind = tf1.MetaGraphDef if path.suffix == ".meta" else tf1.GraphDef
    return kind.FromString(path.read_bytes())


def graph_def(found: Any) -> Any:
    return found.graph_def if hasattr(found, "graph_def") else found


def reference(method: str, path: Path, subject: Subject, top: int) -> Any:
    """Return the attribution as the peers compute it."""
    found = message(path)
    nodes = graph_def(found)
    if method == PLAIN:
        return read(method, attribution(found, subject, subject.given, top), subject)
    peers.overridden(nodes, method, subject.several)
    if method != "@deeplift":
        return read(method, attribution(found, subject, subject.given, top), subject)
    if subject.fixed:
        found = two_at_once(nodes, subject)
    return read(method, attribution(found, subject, subject.pair, top), subject)


def two_at_once(nodes: Any, subject: Subject) -> Any:
    """Return a GraphDef for a batch of two, up to the output."""
    cut = tf1.graph_util.extract_sub_graph(nodes, [subject.output.split(":")[0]])
    for node in cut.node:
        if node.op == "Placeholder":
            node.attr["shape"].shape.dim[0].size = 2
    return cut


def by_recipe(method: str, path: Path, subject: Subject, top: int) -> tuple[Any, int]:
    """Return the attribution that a recipe gives, and how many ops it patches."""
    if method == "@deeplift" and subject.fixed:
        return by_references(path, subject, top)
    result = graphpatch.apply(method, path)
    ops = sum(len(rule["matches"]) for rule in result.report["rules"])
    given = subject.pair if method == "@deeplift" else subject.given
    return read(method, attribution(result.model, subject, given, top), subject), ops


def by_references(path: Path, subject: Subject, top: int) -> tuple[Any, int]:
    """DeepLIFT of a file with a batch of one: the references are measured."""
    from graphpatch.runtime.references import references

    zeros = {name: np.zeros_like(value) for name, value in subject.feed().items()}
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.json")
        with references(path, {**zeros, **subject.scalars}, "rules").writing(rules):
            pass
        result = graphpatch.apply(rules, path)
        _, x, dx = attribution(result.model, subject, subject.given, top)
    return (x * dx)[0], len(result.report["rules"])


def measured(method: str, path: Path, subject: Subject, top: int) -> Found:
    """Both, compared; or why that cannot be."""
    if method == "@deeplift" and not subject.batch:
        return Found(why="no batch")
    try:
        found, ops = by_recipe(method, path, subject, top)
    except MatchError:
        return Found(why="nothing to patch")
    except GraphpatchError as refusal:
        return Found(why=str(refusal).splitlines()[0])
    expected = reference(method, path, subject, top)
    assert np.isfinite(found).all(), (method, subject.label)
    return Found(found, distance(found, expected), ops)


def distance(found: Any, expected: Any) -> float:
    """Return the largest difference, as a part of the largest element."""
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
