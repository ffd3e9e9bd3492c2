"""Heat maps of attributions: one row of pictures for each model, as a PNG.

Above the row stands the model, above each picture what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from methods.measure import Found
from methods.models import Subject

SIDE = 112  # pixels of each picture
COLOURS = 64
GAP = 6
LINE = 16  # pixels of a line of text
SIZE = 11  # of its letters
CLIP = 99  # the percentile of the strength that is drawn in full
INK = np.array([[255, 255, 255], [253, 208, 162], [230, 85, 13], [60, 10, 0]], float)
BLUE = np.array([[255, 255, 255], [158, 202, 225], [33, 113, 181], [0, 10, 60]], float)


def save(subject: Subject, row: Mapping[str, Found], folder: Path) -> Path:
    """Draw what the model sees, and the attribution of each method beside it."""
    pictures = {"input": shown(next(iter(subject.feed().values())))}
    pictures |= {name: drawn(one.attribution) for name, one in row.items() if not one.why}
    labelled = [np.concatenate([text(name, SIDE), one]) for name, one in pictures.items()]
    gap = np.full((LINE + SIDE, GAP, 3), 255, np.uint8)
    strip = np.concatenate([part for one in labelled for part in (one, gap)][:-1], 1)
    path = folder / f"{subject.label.split()[0].lower()}.png"
    folder.mkdir(parents=True, exist_ok=True)
    write_png(np.concatenate([text(subject.label, strip.shape[1]), strip]), path)
    return path


def text(words: str, width: int) -> Any:
    """One line of text, black on white."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, LINE), "white")
    ImageDraw.Draw(image).text((0, 1), words, "black", ImageFont.load_default(SIZE))
    return np.asarray(image)


def plane(values: Any) -> Any:
    """One number for each pixel: the sum over the channels, of the first example."""
    found = np.squeeze(np.asarray(values, float))
    return found.sum(-1) if found.ndim == 3 else np.atleast_2d(found)


def shown(values: Any) -> Any:
    """Return the input itself, in grey or in colour."""
    found = np.squeeze(np.asarray(values, float))
    found = (found - found.min()) / max(np.ptp(found), 1e-9) * 255
    if found.ndim == 3:
        return enlarged(found)
    found = found[:, np.newaxis] if found.ndim == 1 else found
    return enlarged(np.repeat(found[..., np.newaxis], 3, -1))


def drawn(values: Any) -> Any:
    """Return what speaks for the output in orange, what speaks against it in blue."""
    found = plane(values)
    strength = np.percentile(np.abs(found), CLIP) or np.abs(found).max() or 1.0
    level = np.clip(np.abs(found) / strength, 0, 1)
    places = np.linspace(0, 1, len(INK))
    colours = [
        np.stack([np.interp(level, places, ink[:, channel]) for channel in range(3)], -1)
        for ink in (INK, BLUE)
    ]
    return enlarged(np.where(found[..., np.newaxis] < 0, colours[1], colours[0]))


def enlarged(image: Any) -> Any:
    """Return the picture in SIDE x SIDE pixels, each the nearest of the original."""
    rows, columns = (np.arange(SIDE) * size // SIDE for size in image.shape[:2])
    return np.rint(image[rows][:, columns]).astype(np.uint8)


def write_png(image: Any, path: Path) -> None:
    """Write a small file: few colours."""
    from PIL import Image

    Image.fromarray(image).quantize(COLOURS).save(path, optimize=True)
