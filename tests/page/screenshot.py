"""Screenshots as arrays of colours, and which ink a pixel has, however its edge is smoothed."""

from __future__ import annotations

import base64
import zlib
from typing import Any, TypeAlias

import numpy as np

Colour: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# The browser decodes its own picture, in a page without the policy of ours.
DECODED = """
async png => {
  const bytes = Uint8Array.from(atob(png), one => one.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, image.width, image.height);
  const packed = new Blob([data]).stream().pipeThrough(new CompressionStream("deflate"));
  const reader = new FileReader(), blob = await new Response(packed).blob();
  await new Promise(done => { reader.onload = done; reader.readAsDataURL(blob); });
  return [image.width, image.height, reader.result.split(",")[1]];
}
"""
INK = 0.35  # of a pixel that a line must cover, so that its colour is told
NEAR = 14  # of 255: how far a mixed colour may be from the mixture


def colour(code: str) -> Colour:
    """The numbers of a colour: `#2563eb`."""
    return np.array([int(code[at : at + 2], 16) for at in (1, 3, 5)], float)


class Screenshot:
    """What a page shows: `pixels` has rows of colours, from 0 to 255."""

    def __init__(self, page: Any) -> None:
        taken = base64.b64encode(page.screenshot(animations="disabled")).decode()
        blank = page.context.new_page()
        width, height, data = blank.evaluate(DECODED, taken)
        blank.close()
        flat = np.frombuffer(zlib.decompress(base64.b64decode(data)), np.uint8)
        self.pixels = flat.reshape(height, width, 4)[:, :, :3]

    def at(self, x: float, y: float) -> Colour:
        """The colour of the pixel in which a point is."""
        found: Colour = self.pixels[int(y), int(x)].astype(float)
        return found

    def box(self, left: float, top: float, width: float, height: float) -> Colour:
        """The colours of a rectangle, one after the other."""
        rows = slice(int(top), int(top + height)), slice(int(left), int(left + width))
        found: Colour = self.pixels[rows].reshape(-1, 3).astype(float)
        return found


def inks(colours: Colour, paper: Colour, known: dict[str, Colour]) -> list[str]:
    """The inks that some pixels have on this paper, the one that most of them have first."""
    found = dict.fromkeys(known, 0)
    for one in colours:
        name = _ink(one - paper, {name: ink - paper for name, ink in known.items()})
        if name is not None:
            found[name] += 1
    return sorted((name for name, count in found.items() if count), key=lambda name: -found[name])


def _ink(mixed: Colour, known: dict[str, Colour]) -> str | None:
    """The ink of which a colour is a part; None where it is too little of one to tell."""
    best, least = None, float(NEAR)
    for name, ink in known.items():
        share = float(mixed @ ink / (ink @ ink))
        distance = float(np.abs(mixed - share * ink).max())
        if INK <= share <= 1.1 and distance < least:
            best, least = name, distance
    return best
