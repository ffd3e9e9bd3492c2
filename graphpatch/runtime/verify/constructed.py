"""The ops of a construction on their own, as TensorFlow differentiates them in a Session."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef

from graphpatch import names
from graphpatch.analysis.soundness.stored_gradients import StoredGradient
from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import ModelError
from graphpatch.graph import provenance
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.body import Body, Node
from graphpatch.names import TensorName
from graphpatch.runtime.function_gradient import as_main, flat_index
from graphpatch.runtime.imported import spliced
from graphpatch.runtime.key_gradients import surrogate_gradient
from graphpatch.runtime.tf_gradients import gradients

OUT = "out"


def fingerprint(one: StoredGradient) -> str:
    """The same for two constructions of the same ops and attrs, whatever their ops are called."""
    try:
        content = construction_alone(one).SerializeToString(deterministic=True)
    except ModelError:
        return str(one.node)
    return hashlib.sha256(content).hexdigest() + str(sorted(one.attrs.items()))


def first_of_same(one: StoredGradient) -> list[int]:
    """For each of x0, x1, ..., the first of them that is the same tensor."""
    found = [names.parse(text) for text in one.reads]
    return [found.index(tensor) for tensor in found]


def argument_dtypes(one: StoredGradient) -> list[str]:
    """The dtypes of x0, x1, ..., and of y0."""
    return [_producer_dtype(one.node.body, text) for text in (*one.reads, one.gives)]


def construction_alone(one: StoredGradient) -> GraphDef:
    """The ops of a construction: `out` of the tensors `x0`, `x1`, ... and `y0`, which others give.

    Raises ModelError where they read what the op does not read.
    """
    given = {names.parse(one.gives): "y0"}
    for place, text in reversed(list(enumerate(one.reads))):
        given[names.parse(text)] = f"x{place}"
    found = GraphDef()
    found.versions.producer = one.node.body.library.producer
    if one.root:
        text = _input_given(one.node.body, one.root, given, {}, found)
        out = found.node.add(name=OUT, op="Identity", input=[text])
        out.attr["T"].type = DTYPE_NUMBERS[_producer_dtype(one.node.body, one.root)]
        return found
    _copy_into(one.node, given, {}, found)
    found.node[-1].name = OUT
    return found


def counted_gradient(one: StoredGradient, values: Sequence[Any], dy: Any) -> list[Any]:
    """What flows back to x0, x1, ... where the op counts as a formula of these; y0 comes last.

    TensorFlow computes the formula and differentiates it: nothing of the file is used.
    """
    import tensorflow as tf

    assert one.counts_as is not None
    with tf.Graph().as_default() as scratch:
        *xs, y = map(tf.constant, values)
        op = SimpleNamespace(
            inputs=xs,
            outputs=[y],
            type="",
            name=one.node.name,
            get_attr=one.attrs.__getitem__,
        )
        found = surrogate_gradient(one.counts_as)(op, tf.constant(dy))
    flowing = {str(place): dx for place, dx in enumerate(found) if dx is not None}
    with tf.compat.v1.Session(graph=scratch) as session:
        gradients = session.run(flowing)
    return [gradients.get(str(place)) for place in range(len(xs))]


def construction_gradient(one: StoredGradient, values: Sequence[Any], dy: Any) -> list[Any]:
    """What flows back to x0, x1, ... in a Session, of the values of these and of y0.

    Where some of them are one tensor, the first has the sum, and the others have nothing.
    """
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef.FromString(construction_alone(one).SerializeToString())
    read = {text for node in graph_def.node for text in node.input}
    firsts = first_of_same(one)
    with tf.Graph().as_default() as scratch:
        at = {f"x{n}": tf.constant(values[n]) for n in firsts}
        given = {**at, "y0": tf.constant(values[len(firsts)])}
        on = {f"{name}:0": tensor for name, tensor in given.items() if name in read}
        [out] = spliced(graph_def, on, [f"{OUT}:0"], "import")
        if one.root and out.shape != given["y0"].shape:
            out = tf.broadcast_to(out, tf.shape(given["y0"]))  # as the function sums it
        floats = {name: tensor for name, tensor in at.items() if tensor.dtype.is_floating}
        xs = list(floats.values())
        found = gradients([out], xs, [tf.constant(dy)], apart=True)
    flowing = {name: dx for name, dx in zip(floats, found, strict=True) if dx is not None}
    with tf.compat.v1.Session(graph=scratch) as session:
        ran = session.run(flowing)
    return [ran.get(f"x{n}") if n == firsts[n] else None for n in range(len(firsts))]


def _copy_into(
    node: Node, given: Mapping[TensorName, str], named: dict[str, str], found: GraphDef
) -> str:
    """Add an op behind those that it reads, as far as these are the construction's own."""
    inputs = [_input_given(node.body, text, given, named, found) for text in node.data_inputs]
    copy = as_main(node)
    copy.input[:], copy.name, copy.device = inputs, f"n{len(named)}", ""
    for key in ("_class", "_graphpatch", "_output_shapes"):
        copy.attr.pop(key, None)
    found.node.append(copy)
    named[node.name] = copy.name
    return str(copy.name)


def _input_given(
    body: Body,
    text: str,
    given: Mapping[TensorName, str],
    named: dict[str, str],
    found: GraphDef,
) -> str:
    tensor = names.parse(text)
    if tensor in given:
        return given[tensor]
    node = body.producer(text)
    if node is None or not provenance.is_added(node):
        raise ModelError(f"its construction reads {text}, which its op does not read")
    op = named.get(node.name) or _copy_into(node, given, named, found)
    return str(TensorName(op, flat_index(body, tensor)))


def _producer_dtype(body: Body, text: str) -> str:
    tensor, node = names.parse(text), body.producer(text)
    if node is None:
        return DTYPE_NAMES[body.arguments[tensor.op]]
    return (node.outputs or [])[flat_index(body, tensor)].dtype or "float32"
