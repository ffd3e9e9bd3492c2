"""How large gradients are when they are run: of each line, and of the sources as pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.page.ends import REAL, GradientEnds
from graphpatch.page.lines import BodySide
from graphpatch.page.pictures import Measured, pictures
from graphpatch.runtime.values import read_feed
from graphpatch.runtime.verify.process import (
    ProcessDiedError,
    TensorFlowProcess,
    needs_control_flow_v1,
)
from graphpatch.shown import one_line
from graphpatch.table import and_more, plural

TINY = 1e-12  # of the largest gradient: what is smaller is rounding, and counts as zero
MOST_LINES_RUN = 3000  # lines of a graph whose gradients are run
NOT_RUN = "not run: TensorFlow calls a TF2 SavedModel as a whole, and tells nothing of its ops"

Feed = str | Path | Mapping[str, Any]
SizeAnswers = dict[str, Measured]


def sizes(
    ends: Sequence[GradientEnds],
    mains: Sequence[BodySide],
    models: Sequence[Model],
    feed: Feed | None,
    allow_unsafe_ops: bool,
) -> dict[str, Any]:
    """Return what the document says of a run: for each graph the sizes of its lines, and pictures.

    Each model runs in a process of its own, with the same seeded values where none are given.
    Raises UnsafeError where a model would do more than compute.
    """
    fed = {} if feed is None else feed if isinstance(feed, Mapping) else read_feed(feed)
    values = {name if ":" in name else f"{name}:0": value for name, value in fed.items()}
    written = [opened_again(model) for model in models]
    for model in written:
        for graph, chosen in zip(model.graphs, ends, strict=True):
            refuse_unsafe(graph, allow_unsafe_ops, chosen.targets)
    with tempfile.TemporaryDirectory() as folder:
        files = [model.file_in(Path(folder, str(n))) for n, model in enumerate(written)]
        return {
            "graphs": [
                _sizes_in_graph(place, chosen, main, written, files, values)
                for place, (chosen, main) in enumerate(zip(ends, mains, strict=True))
            ]
        }


def _sizes_in_graph(
    place: int,
    ends: GradientEnds,
    main: BodySide,
    models: Sequence[Model],
    files: Sequence[Path],
    feed: Mapping[str, Any],
) -> dict[str, Any]:
    if models[0].graphs[place].around.is_object_based:
        return _nothing(NOT_RUN)
    target = _target(main, ends)
    if target is None:
        return _nothing("not run: no target is a real number")
    with ExitStack() as stack:
        processes = [TensorFlowProcess(model.path) for model in models]
        for process in processes:
            stack.enter_context(closing(process))
            process.start()
        try:
            return _run_of_model(processes, models, files, place, ends, main, target, feed)
        except ProcessDiedError as error:
            return _nothing(f"not run: {one_line(str(error))}")


def _nothing(why: str) -> dict[str, Any]:
    return {"note": why, "sizes": None, "sources": []}


def _target(main: BodySide, ends: GradientEnds) -> str | None:
    """Return the first target that is a real number."""
    for name, tensor in zip(ends.targets, main.targets, strict=False):
        if main.wiring.dtype(tensor) in REAL:
            return name
    return None


def _run_of_model(
    processes: Sequence[TensorFlowProcess],
    models: Sequence[Model],
    files: Sequence[Path],
    place: int,
    ends: GradientEnds,
    main: BodySide,
    target: str,
    feed: Mapping[str, Any],
) -> dict[str, Any]:
    with ThreadPoolExecutor(len(processes)) as pool:
        v2 = not needs_control_flow_v1(models[0].graphs[place])
        begin = partial(_open_in_process, place=place, v2=v2)
        list(pool.map(begin, processes, files, models))
        feeds, variables = processes[0].ask("choose", [target], feed)
        for process in processes:
            process.keep("values", variables)
            process.keep("feed", feeds)
        fetched, reasons = processes[0].ask("run", [target], False)
        if target not in fetched:
            return _nothing(f"not run: {one_line(reasons.get(target, 'nothing is computed'))}")
        upstream, words = upstream_gradient(fetched[target])
        rows = _first_tensors(main)
        names = processes[0].ask("there", list(rows))
        whole = [name for name in ends.sources if name in names]
        asked = [(process, names, target, upstream, whole) for process in processes]
        answers = list(pool.map(lambda answer: _ask_sizes(*answer), asked))
    says = f"run: gradients of {words} of {one_line(target)}"
    seeded = [name for name in whole if name not in feed]
    if seeded:
        listed = ", ".join(map(one_line, seeded[:3])) + and_more(seeded, 3)
        says += f"; {listed} seeded, not real data: give --feed FILE.npz"
    says += _not_finite(answers, f"--to {one_line(target)} --run{' --feed FILE' if feed else ''}")
    raised = [one_line(says) for answer in answers for _, _, says in answer.values() if says]
    if raised:
        says += f"; {raised[0]}"
    shown = {name: [answer[name] for answer in answers] for name in whole}
    return {
        "note": says,
        "sizes": _sizes_by_row({name: rows[name] for name in names}, answers),
        "sources": [
            {"name": one_line(name), "pictures": pictures(name, feeds.get(name), gradients)}
            for name, gradients in shown.items()
        ],
    }


def _open_in_process(
    process: TensorFlowProcess, file: Path, model: Model, place: int, v2: bool
) -> None:
    process.keep("begin", [], v2)
    process.keep("open", str(file), model.path, place)


def _ask_sizes(
    process: TensorFlowProcess, names: Sequence[str], target: str, dy: Any, whole: Sequence[str]
) -> SizeAnswers:
    try:
        sizes: SizeAnswers = process.ask("sizes", names, target, dy, whole)
    except GraphpatchError as error:
        return dict.fromkeys(names, (None, None, str(error)))
    return sizes


def upstream_gradient(value: Any) -> tuple[Any, str]:
    """The upstream gradient: 1 at the largest element of each row of scores, else everywhere."""
    value = np.asarray(value)
    if value.ndim not in (1, 2) or not value.size:
        return np.ones_like(value), "the sum"
    upstream = np.zeros_like(value)
    largest = np.argmax(value, axis=-1)
    np.put_along_axis(upstream, np.expand_dims(largest, -1), 1, axis=-1)
    return upstream, "the largest element of each row"


def _first_tensors(main: BodySide) -> dict[str, int]:
    """The tensors that lines give first, with their rows: those of which there are gradients."""
    rows = {}
    for row, key in enumerate(islice(main.lines, MOST_LINES_RUN)):
        index = main.body.by_name.get(key)
        if index is not None and main.wiring.dtype((index, 0)) in REAL:
            rows[f"{key}:0"] = row
    return rows


def _not_finite(answers: Sequence[SizeAnswers], options: str) -> str:
    """Say at how many tensors the gradient is NaN or infinite, on each side, and what tells why."""
    counts = [
        sum(size is not None and not np.isfinite(size) for size, _, _ in answer.values())
        for answer in answers
    ]
    if not any(counts):
        return ""
    at = " -> ".join([*map(str, counts[:-1]), plural(counts[-1], "op")])
    return f"; NaN or infinite at {at}: graphpatch doctor MODEL {options} says where it starts"


def _sizes_by_row(rows: Mapping[str, int], answers: Sequence[SizeAnswers]) -> dict[str, Any]:
    """Return the size of each line's gradient on each side; tiny ones count as 0."""
    lines = {
        row: [_json_number(answer[name][0]) for answer in answers] for name, row in rows.items()
    }
    most = max(
        (size for sizes in lines.values() for size in sizes if isinstance(size, float)), default=1.0
    )
    tiny = TINY * most
    lines = {
        row: [0.0 if isinstance(size, float) and size < tiny else size for size in sizes]
        for row, sizes in lines.items()
    }
    known = [size for sizes in lines.values() for size in sizes if isinstance(size, float) and size]
    return {"lines": lines, "least": min(known, default=1.0), "most": most or 1.0, "tiny": TINY}


def _json_number(number: float | None) -> float | str | None:
    """Return a size as JSON has it, which knows neither NaN nor infinity."""
    if number is None:
        return None
    return float(f"{number:.4g}") if np.isfinite(number) else "NaN" if np.isnan(number) else "inf"
