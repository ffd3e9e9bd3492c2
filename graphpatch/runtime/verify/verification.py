"""A patched model beside its original: what may differ, and what must not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.analysis.soundness.static import (
    StaticCheck,
    as_written,
    faults_around,
    static_check,
)
from graphpatch.arguments import check_progress, tensor_names
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.load import model_from
from graphpatch.formats.model_like import ModelLike
from graphpatch.graph.heads import Progress
from graphpatch.runtime.values import read_feed
from graphpatch.runtime.verify.compare import ComparedGraph, CompareOptions, compare
from graphpatch.runtime.verify.result import RunResult, Verification, VerifiedGraph


def verify(
    original: ModelLike,
    patched: ModelLike,
    *,
    feed: str | Path | Mapping[str, Any] | None = None,
    sources: str | Sequence[str] = (),
    targets: str | Sequence[str] = (),
    run: bool = True,
    allow_unsafe_ops: bool = False,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Verify a patched model against its original, each run in a process of its own.

    Forward, each op must compute what it did, and all outputs be bit-equal on several sets of
    values. Backward, the result tells which gradients changed and which overrides fired. Its
    `verdict` is `verified`, `differs`, `not compared`, or `same structure` (`run=False`);
    `failures` and `not_compared` say why. See docs/verify.md.

    Args:
        original: The model before it was patched: what `load` takes.
        patched: The model after.
        feed: Arrays by tensor name, each of the dtype and shape of its tensor, or a .npz file;
            other placeholders get seeded values.
        sources: Take gradients by these tensors. Default: by the floats that are fed.
        targets: Take gradients of these tensors. Default: of all outputs that are floats.
        run: False compares the graphs alone, which needs no TensorFlow.
        allow_unsafe_ops: Run ops too that touch files, the network or Python.
        imports: Modules or .py files that both processes import first.
        progress: Called with what is done, how much of it, and of how much.

    Raises:
        ModelError: A model or feed cannot be read, or there is no tensor of such a name.
        UnsafeError: A model would do more than compute when it runs.
        GraphpatchError: TensorFlow is missing.
        TypeError: `original` or `patched` is not a model, or one of the ends is not a name.

    When not to use it: for a model that is not trusted.

    Example:
        >>> graphpatch.verify("model.pb", "patched.pb", run=False).ok
        True
    """
    check_progress(progress)
    one, other = _model_as_written("original", original), _model_as_written("patched", patched)
    ends = tensor_names("sources", sources), tensor_names("targets", targets)
    options = (
        CompareOptions(_feed_by_tensor(feed), *ends, allow_unsafe_ops, imports, progress)
        if run
        else None
    )
    return _verified(one, other, options)


def _model_as_written(argument: str, given: ModelLike) -> Model:
    return as_written(model_from(argument, given))  # one from memory has edits that no file tells


def _feed_by_tensor(feed: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    given = {} if feed is None else feed if isinstance(feed, Mapping) else read_feed(feed)
    return {name if ":" in name else f"{name}:0": value for name, value in given.items()}


def _verified(one: Model, other: Model, options: CompareOptions | None) -> Verification:
    counts = len(one.graphs), len(other.graphs)
    if counts[0] != counts[1]:
        raise ModelError(f"{one.path} has {counts[0]} graphs, and {other.path} {counts[1]}")
    faults = faults_around(one, other)
    if any(fault.kind == "swapped" for fault in faults):
        options = None  # all that a run would find follows from it
    with tempfile.TemporaryDirectory() as folder:
        files = [one.file_in(Path(folder, "one")), other.file_in(Path(folder, "two"))]
        parts = []
        for left, right in zip(one.graphs, other.graphs, strict=True):
            pair = ComparedGraph(one, left, files[0]), ComparedGraph(other, right, files[1])
            sound = static_check(left, right)
            parts.append(VerifiedGraph(right.around.tags, sound, _run_both(sound, *pair, options)))
    return Verification(str(one.path), str(other.path), parts, faults, (one, other))


def _run_both(
    sound: StaticCheck, one: ComparedGraph, other: ComparedGraph, options: CompareOptions | None
) -> RunResult | None:
    if options is None:
        return None
    if sound.broken:
        return RunResult(why="the patched graph is broken, so it was not run", is_wrong=True)
    if one.graph.around.is_object_based != other.graph.around.is_object_based:
        return RunResult(
            why="one of them is a TF2 SavedModel, with other names for inputs and outputs"
        )
    return compare(one, other, options)
