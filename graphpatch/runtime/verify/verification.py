"""A patched model beside its original: what may differ, and what must not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.analysis.again import SWAPPED, make_again
from graphpatch.arguments import check_progress, tensor_names
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.graph import Progress
from graphpatch.runtime.values import full_tensor_name, read_feed
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
        sources: Take gradients with respect to these tensors. Default: by the floats that are fed.
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
    # What is in memory has edits that no file tells of.
    before = opened_again(model_from("original", original))
    after = opened_again(model_from("patched", patched))
    ends = tensor_names("sources", sources), tensor_names("targets", targets)
    options = (
        CompareOptions(_feed_by_tensor(feed), *ends, allow_unsafe_ops, imports, progress)
        if run
        else None
    )
    return _verified(before, after, options)


def _feed_by_tensor(feed: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    values = {} if feed is None else feed if isinstance(feed, Mapping) else read_feed(feed)
    return {full_tensor_name(name): value for name, value in values.items()}


def _verified(original: Model, patched: Model, options: CompareOptions | None) -> Verification:
    counts = len(original.graphs), len(patched.graphs)
    if counts[0] != counts[1]:
        raise ModelError(f"{original.path} has {counts[0]} graphs, and {patched.path} {counts[1]}")
    made, around = make_again(original, patched)
    if any(text.startswith(SWAPPED) for text in around):
        options = None  # all that a run would find follows from it
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        files = [
            model.file_in(Path(folder, name)) if options else Path()
            for name, model in (("original", original), ("patched", patched))
        ]
        for index, graph in enumerate(patched.graphs):
            ran = None
            if options is not None:
                compared_original = ComparedGraph(original, index, files[0])
                ran = _run(compared_original, ComparedGraph(patched, index, files[1]), options)
            parts.append(VerifiedGraph(graph.around.tags, made[index], ran))
    return Verification(str(original.path), str(patched.path), parts, around, (original, patched))


def _run(original: ComparedGraph, patched: ComparedGraph, options: CompareOptions) -> RunResult:
    if original.graph.around.is_object_based != patched.graph.around.is_object_based:
        says = "one of them is a TF2 SavedModel, with other names for inputs and outputs"
        return RunResult(why=says)
    return compare(original, patched, options)
