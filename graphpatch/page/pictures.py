"""A gradient by a source as a picture: of images a heat map, of other tensors a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphpatch.gradients.interpreter import Array
from graphpatch.shown import one_line

LARGEST_SIDE = 96  # pixels of a side
SMALLEST_IMAGE = 4  # pixels from which on a tensor counts as an image
CHANNELS = (1, 2, 3, 4)
BINS = 32
BRIGHTEST = 99.5  # percent of the pixels that are not the brightest: one alone hides all others

Measured = tuple[float | None, Any, str]


def pictures(name: str, fed: Any, answers: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the pictures of a source: what it is fed, and the gradient of each side."""
    shown = one_line(name)
    sides = ("before", "after") if len(answers) > 1 else ("gradient",)
    shown_pictures = []
    if fed is not None and _image(fed) is not None:
        shown_pictures.append(_heat(_image(fed), f"{shown}, as fed", is_signed=False))
    for side, (_, value, says) in zip(sides, answers, strict=True):
        title = f"gradient at {shown}" + (f", {side}" if len(answers) > 1 else "")
        shown_pictures.append(_picture(value, title, says))
    return shown_pictures


def _picture(value: Any, title: str, says: str) -> dict[str, Any]:
    if value is None:
        return {"kind": "nothing", "title": title, "says": one_line(says) or "None"}
    image = _image(value)
    if image is not None:
        return _heat(image, title, is_signed=True)
    flat = np.asarray(value, np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return {
            "kind": "nothing",
            "title": title,
            "says": "no finite number" if flat.size else "empty",
        }
    if flat.size == 1:
        return {"kind": "number", "title": title, "value": f"{flat[0]:.3g}"}
    counts, edges = np.histogram(finite, BINS)
    ends = {"low": float(edges[0]), "high": float(edges[-1])}
    return {"kind": "histogram", "title": title, "counts": counts.tolist(), **ends}


def _image(value: Any) -> Array | None:
    """Return the first image of a batch, [height, width, channels]; None for what is not images."""
    pixels = np.asarray(value)
    if pixels.ndim != 4 or not pixels.shape[0]:
        return None
    first = pixels[0]
    if (
        first.shape[0] in CHANNELS
        and min(first.shape[1:]) >= SMALLEST_IMAGE
        and first.shape[2] not in CHANNELS
    ):
        first = np.moveaxis(first, 0, 2)
    is_image = first.shape[2] in CHANNELS and min(first.shape[:2]) >= SMALLEST_IMAGE
    return np.asarray(first, np.float64) if is_image else None


def _heat(image: Array | None, title: str, is_signed: bool) -> dict[str, Any]:
    """A heat map: of a gradient the largest size of a pixel's channels, of an image their mean."""
    assert image is not None
    flat = np.abs(image).max(axis=2) if is_signed else image.mean(axis=2)
    if not np.isfinite(flat).any():
        return {"kind": "nothing", "title": title, "says": "no finite number"}
    small = _smaller(np.nan_to_num(flat, posinf=0, neginf=0), np.max if is_signed else np.mean)
    low = 0.0 if is_signed else float(small.min())
    high = float(np.percentile(small, BRIGHTEST)) or float(small.max())
    if high <= low:
        says = "zero everywhere" if is_signed else ""
        return {"kind": "nothing", "title": title, "says": says or f"{low:g} everywhere"}
    levels = np.clip((small - low) / (high - low), 0, 1) * 255
    height, width = levels.shape
    values = levels.round().astype(int).ravel().tolist()
    return {"kind": "heat", "title": title, "height": height, "width": width, "values": values}


def _smaller(image: Array, pool: Any) -> Array:
    """Return an image of at most LARGEST pixels a side: each of its pixels stands for a block."""
    step = max(1, -(-max(image.shape) // LARGEST_SIDE))
    tall, wide = (range(0, size, step) for size in image.shape)
    blocks = [[pool(image[a : a + step, b : b + step]) for b in wide] for a in tall]
    return np.array(blocks, np.float64)
