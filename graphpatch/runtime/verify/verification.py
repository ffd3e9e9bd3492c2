"""A patched model beside its original: what may differ, and what must not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.analysis.verify.static import around, as_written, static
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.given import ModelLike
from graphpatch.formats.load import model_from
from graphpatch.graph.graph import Graph
from graphpatch.runtime.parts import several
from graphpatch.runtime.values import read_feed
from graphpatch.runtime.verify.asked import Wanted
from graphpatch.runtime.verify.result import Part, Ran, Verification
from graphpatch.runtime.verify.run_graphs import run_graphs
from graphpatch.runtime.verify.run_saved import run_saved
from graphpatch.runtime.verify.start import start


def verify(
    original: ModelLike,
    patched: ModelLike,
    *,
    feed: str | Path | Mapping[str, Any] | None = None,
    sources: str | Sequence[str] = (),
    targets: str | Sequence[str] = (),
    run: bool = True,
    allow_unsafe_ops: bool = False,
) -> Verification:
    """Verify a patched model against its original.

    Without TensorFlow: names, inputs, dtypes, cycles, functions, and weights that are kept. Then
    both run: forward, all outputs that both have must be bit-equal on the same seeded inputs;
    backward, the result tells which gradients changed, which overrides fired, and how far formulas
    are from numpy. `README.md` tells all that fails.

    Args:
        original: The model before it was patched: what `load` takes.
        patched: The model after.
        feed: Arrays by tensor name, or a .npz file of them; other placeholders get seeded values.
        sources: Take gradients by these tensors; where silent, by the floats that are fed.
        targets: Take gradients of these tensors; where silent, of all outputs that are floats.
        run: False looks at the graph alone, which needs no TensorFlow.
        allow_unsafe_ops: Run ops too that touch files, the network or Python.

    Raises ModelError where a model cannot be read, UnsafeError where it would do more than compute,
    GraphpatchError where TensorFlow is missing. Set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is
    imported: oneDNN gives fused ops other bits. Not for a model that is not trusted.
    """
    one, other = _taken("original", original), _taken("patched", patched)
    wanted = (
        Wanted(_feed(feed), several(sources), several(targets), allow_unsafe_ops) if run else None
    )
    return _verified(one, other, wanted)


def _taken(argument: str, given: ModelLike) -> Model:
    model = model_from(argument, given)
    return as_written(model) if model is given else model


def _feed(feed: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    given = {} if feed is None else feed if isinstance(feed, Mapping) else read_feed(feed)
    return {name if ":" in name else f"{name}:0": value for name, value in given.items()}


def _verified(one: Model, other: Model, wanted: Wanted | None) -> Verification:
    counts = len(one.graphs), len(other.graphs)
    if counts[0] != counts[1]:
        raise ModelError(f"{one.path} has {counts[0]} graphs, and {other.path} {counts[1]}")
    if wanted is not None:
        start()
    parts = [
        _part(one, other, left, right, wanted)
        for left, right in zip(one.graphs, other.graphs, strict=True)
    ]
    return Verification(str(one.path), str(other.path), parts, around(one, other))


def _part(one: Model, other: Model, left: Graph, right: Graph, wanted: Wanted | None) -> Part:
    sound = static(left, right)
    if wanted is None:
        return Part(right.label, sound, None)
    if sound.broken:
        ran = Ran(why="the patched graph is broken, so it was not run", is_wrong=True)
    elif left.is_object_based != right.is_object_based:
        ran = Ran(why="one of them is a TF2 SavedModel, with other names for inputs and outputs")
    elif left.is_object_based:
        with tempfile.TemporaryDirectory() as folder:
            ran = run_saved(one, other, left, right, wanted, Path(folder))
    else:
        ran = run_graphs(one, other, left, right, wanted)
    return Part(right.label, sound, ran)
