"""How large gradients are when they are run: of each line, and of the sources as pictures.

Of images a picture is a heat map, of other tensors a histogram.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.gradients.interpreter import Array
from graphpatch.page.document import REAL, GraphSides
from graphpatch.page.lines import BodySide
from graphpatch.runtime.values import Feed, fed_values
from graphpatch.runtime.verify.process import CannotRunError, SideBySide, TensorFlowProcess
from graphpatch.shown import and_more, one_line, plural

TINY = 1e-12  # of the largest gradient: what is smaller is rounding, and counts as zero
MOST_LINES_RUN = 3000  # lines of a graph whose gradients are run
NOT_RUN = "not run: TensorFlow calls a TF2 SavedModel as a whole, and tells nothing of its ops"
LARGEST_SIDE = 96  # pixels of a side
SMALLEST_IMAGE = 4  # pixels from which on a tensor counts as an image
CHANNELS = (1, 2, 3, 4)
BINS = 32
BRIGHTEST = 99.5  # percent of the pixels that are not the brightest: one alone hides all others

Measured = tuple[float | None, Any, str]
"""The largest size of a gradient, the gradient itself where it was asked for, what was raised."""
SizeAnswers = dict[str, Measured]


def sizes(
    graphs: Sequence[GraphSides], models: Sequence[Model], feed: Feed | None, allow_unsafe_ops: bool
) -> dict[str, Any]:
    """Return what the document says of a run: for each graph the sizes of its lines, and pictures.

    Each model runs in a process of its own, with the same seeded values where none are given.
    Raises UnsafeError where a model would do more than compute.
    """
    values = fed_values(feed)
    written = [opened_again(model) for model in models]
    for model in written:
        for graph, sides in zip(model.graphs, graphs, strict=True):
            refuse_unsafe(graph, allow_unsafe_ops, sides.ends.targets)
    with tempfile.TemporaryDirectory() as folder:
        files = [model.file_in(Path(folder, str(n))) for n, model in enumerate(written)]
        return {"graphs": [_sizes_in_graph(sides, written, files, values) for sides in graphs]}


def _sizes_in_graph(
    of_graph: GraphSides, models: Sequence[Model], files: Sequence[Path], feed: Mapping[str, Any]
) -> dict[str, Any]:
    graph, main, ends = models[0].graphs[of_graph.number], of_graph.main[0], of_graph.ends
    if graph.around.is_object_based:
        return _nothing(NOT_RUN)
    real = (main.wiring.dtype(tensor) in REAL for tensor in main.targets)
    target = next((name for name, is_real in zip(ends.targets, real, strict=False) if is_real), "")
    if not target:
        return _nothing("not run: no target is a real number")
    with SideBySide([TensorFlowProcess(model.path) for model in models]) as sides:
        sides.begin([], graph)
        for process, file in zip(sides.processes, files, strict=True):
            process.keep("open", str(file), process.name, of_graph.number)
        try:
            return _run(sides, _first_tensors(main), ends.sources, target, feed)
        except CannotRunError as error:
            return _nothing(f"not run: {one_line(str(error))}")


def _nothing(why: str) -> dict[str, Any]:
    return {"note": why, "sizes": None, "sources": []}


def _first_tensors(main: BodySide) -> dict[str, int]:
    """Return the tensors that lines give first, with their rows: those that have gradients."""
    rows = {}
    for key, row in islice(main.rows.items(), MOST_LINES_RUN):
        index = main.body.by_name.get(key)
        if index is not None and main.wiring.dtype((index, 0)) in REAL:
            rows[f"{key}:0"] = row
    return rows


def _run(
    sides: SideBySide,
    rows: Mapping[str, int],
    sources: Sequence[str],
    target: str,
    feed: Mapping[str, Any],
) -> dict[str, Any]:
    feeds, first = sides.choose([target], feed), sides.processes[0]
    fetched, reasons = first.ask("run", [target], False)
    if target not in fetched:
        return _nothing(f"not run: {one_line(reasons.get(target, 'nothing is computed'))}")
    upstream, words = upstream_gradient(fetched[target])
    names = first.ask("there", list(rows))
    whole = [name for name in sources if name in names]

    def ask(process: TensorFlowProcess) -> SizeAnswers:
        try:
            measured: SizeAnswers = process.ask("sizes", names, target, upstream, whole)
        except GraphpatchError as error:
            return dict.fromkeys(names, (None, None, str(error)))
        return measured

    with ThreadPoolExecutor(len(sides.processes)) as pool:
        answers = list(pool.map(ask, sides.processes))
    note = f"run: gradients of {words} of {one_line(target)}"
    seeded = [name for name in whole if name not in feed]
    if seeded:
        listed = ", ".join(map(one_line, seeded[:3])) + and_more(seeded, 3)
        note += f"; {listed} seeded, not real data: give --feed FILE.npz"
    note += _not_finite(answers, f"--to {one_line(target)} --run{' --feed FILE' if feed else ''}")
    raised = [one_line(says) for answer in answers for _, _, says in answer.values() if says]
    shown = {name: [answer[name] for answer in answers] for name in whole}
    return {
        "note": "; ".join([note, *raised[:1]]),
        "sizes": _sizes_by_row({name: rows[name] for name in names}, answers),
        "sources": [
            {"name": one_line(name), "pictures": pictures(name, feeds.get(name), gradients)}
            for name, gradients in shown.items()
        ],
    }


def upstream_gradient(value: Any) -> tuple[Any, str]:
    """Return dy: 1 at the largest element of each row of scores, else everywhere."""
    value = np.asarray(value)
    if value.ndim not in (1, 2) or not value.size:
        return np.ones_like(value), "the sum"
    upstream = np.zeros_like(value)
    largest = np.argmax(value, axis=-1)
    np.put_along_axis(upstream, np.expand_dims(largest, -1), 1, axis=-1)
    return upstream, "the largest element of each row"


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
    known = [size for sizes in lines.values() for size in sizes if isinstance(size, float)]
    most = max(known, default=1.0)
    for sizes in lines.values():
        sizes[:] = [0.0 if isinstance(n, float) and n < TINY * most else n for n in sizes]
    least = min((size for size in known if size and size >= TINY * most), default=1.0)
    return {"lines": lines, "least": least, "most": most or 1.0, "tiny": TINY}


def _json_number(number: float | None) -> float | str | None:
    """Return a size as JSON has it, which knows neither NaN nor infinity."""
    if number is None:
        return None
    return float(f"{number:.4g}") if np.isfinite(number) else "NaN" if np.isnan(number) else "inf"


def pictures(name: str, fed: Any, answers: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the pictures of a source: what it is fed, and the gradient of each side."""
    shown, image = one_line(name), _image(fed)
    sides = (", before", ", after") if len(answers) > 1 else ("",)
    drawn = [] if image is None else [(f"{shown}, as fed", _heat(image, is_signed=False))]
    for side, (_, value, says) in zip(sides, answers, strict=True):
        drawn.append((f"gradient at {shown}{side}", _picture(value, says)))
    return [{"title": title, **picture} for title, picture in drawn]


def _picture(value: Any, says: str) -> dict[str, Any]:
    if value is None:
        return _no_picture(one_line(says) or "None")
    image = _image(value)
    if image is not None:
        return _heat(image, is_signed=True)
    flat = np.asarray(value, np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return _no_picture("no finite number" if flat.size else "empty")
    if flat.size == 1:
        return {"kind": "number", "value": f"{flat[0]:.3g}"}
    counts, edges = np.histogram(finite, BINS)
    ends = {"low": float(edges[0]), "high": float(edges[-1])}
    return {"kind": "histogram", "counts": counts.tolist(), **ends}


def _no_picture(says: str) -> dict[str, Any]:
    return {"kind": "nothing", "says": says}


def _image(value: Any) -> Array | None:
    """Return the first image of a batch, [height, width, channels]; None for what is not images."""
    pixels = np.asarray(value)
    if pixels.ndim != 4 or not pixels.shape[0]:
        return None
    first = pixels[0]
    is_channels_first = first.shape[0] in CHANNELS and first.shape[2] not in CHANNELS
    if is_channels_first and min(first.shape[1:]) >= SMALLEST_IMAGE:
        first = np.moveaxis(first, 0, 2)
    is_image = first.shape[2] in CHANNELS and min(first.shape[:2]) >= SMALLEST_IMAGE
    return np.asarray(first, np.float64) if is_image else None


def _heat(image: Array, is_signed: bool) -> dict[str, Any]:
    """Return a heat map: of a gradient the largest of its channels, of an image their mean."""
    flat = np.abs(image).max(axis=2) if is_signed else image.mean(axis=2)
    if not np.isfinite(flat).any():
        return _no_picture("no finite number")
    small = _smaller(np.nan_to_num(flat, posinf=0, neginf=0), np.max if is_signed else np.mean)
    low = 0.0 if is_signed else float(small.min())
    high = float(np.percentile(small, BRIGHTEST)) or float(small.max())
    if high <= low:
        return _no_picture("zero everywhere" if is_signed else f"{low:g} everywhere")
    levels = np.clip((small - low) / (high - low), 0, 1) * 255
    height, width = levels.shape
    values = levels.round().astype(int).ravel().tolist()
    return {"kind": "heat", "height": height, "width": width, "values": values}


def _smaller(image: Array, pool: Any) -> Array:
    """Return an image of at most LARGEST pixels a side: each of its pixels stands for a block."""
    step = max(1, -(-max(image.shape) // LARGEST_SIDE))
    tall, wide = (range(0, size, step) for size in image.shape)
    blocks = [[pool(image[a : a + step, b : b + step]) for b in wide] for a in tall]
    return np.array(blocks, np.float64)
