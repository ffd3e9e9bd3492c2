"""Two TF2 SavedModels, loaded and run side by side."""

from __future__ import annotations

from pathlib import Path

from graphpatch.analysis.unsafe import refuse_unsafe_load
from graphpatch.analysis.verify.overrides import Reasons
from graphpatch.formats import Model
from graphpatch.graph.graph import Graph
from graphpatch.runtime.running import first_line
from graphpatch.runtime.values import GUESSES
from graphpatch.runtime.verify import saved
from graphpatch.runtime.verify.asked import Wanted
from graphpatch.runtime.verify.formulas import formulas
from graphpatch.runtime.verify.forward import forward
from graphpatch.runtime.verify.gradient import backward
from graphpatch.runtime.verify.result import Ran
from graphpatch.runtime.verify.unfired import sort_out


def run_saved(
    one: Model, other: Model, left: Graph, right: Graph, wanted: Wanted, folder: Path
) -> Ran:
    """Load a SavedModel and its patched copy, call their signatures, and compare."""
    import tensorflow as tf

    for graph in (left, right):
        refuse_unsafe_load(graph, wanted.allow_unsafe_ops)
    if not tf.executing_eagerly():
        return Ran(why="TensorFlow does not execute eagerly here, which a TF2 SavedModel needs")
    runs = []
    for model, name in ((one, "original"), (other, "patched")):
        found = saved.seeded_copy(model, folder / name)
        try:
            found.signatures()
        except Exception as error:  # whatever the loader says is the reason
            why = f"{model.path}: tf.saved_model.load raises {first_line(error)}"
            return Ran(why=why, is_wrong=model is other)
        runs.append(found)
    return _ran(other, left, right, runs[0], runs[1], wanted)


def _ran(
    model: Model, left: Graph, right: Graph, one: saved.Saved, other: saved.Saved, wanted: Wanted
) -> Ran:
    there = set(saved.outputs(other))
    tensors = [name for name in saved.outputs(one) if name in there]
    if not tensors:
        return Ran(why="it has no signature with outputs, so nobody can call it by name")
    _feed(one, tensors, wanted)
    other.feeds = one.feeds
    ran = Ran(fed={name: str(list(value.shape)) for name, value in one.feeds.items()})
    ran.forward = forward(one, other, tensors)
    sources = [*wanted.sources] or list(saved.sources(one))
    targets = [name for name in wanted.targets or tensors if name in ran.forward.compared]
    values = {name: ran.forward.values[name] for name in targets}
    floats = {name: value for name, value in values.items() if value.dtype.kind in "fcV"}
    if sources:
        ran.backward = backward(one, other, sources, floats)
    else:
        ran.untaken.append("no signature takes a float")
    pairs = [(pair.source, pair.target) for pair in ran.backward.pairs]
    sort_out(left, Reasons(model, right, pairs), ran)
    ran.formulas = formulas(right, None)
    return ran


def _feed(one: saved.Saved, tensors: list[str], wanted: Wanted) -> None:
    """Take the guess at unknown shapes with which most of it runs."""
    best, most = one.feeds, -1
    for size, whole in GUESSES:
        one.feeds = saved.fed(one, size, whole, wanted.feed)
        count = len(one.run(tensors, False)[0])
        if count > most:
            best, most = one.feeds, count
        if count == len(tensors):
            break
    one.feeds = best
