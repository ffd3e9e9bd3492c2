"""Convolution and pooling in numpy: the windows of an image, and images put together from windows.

An image is (batch, height, width, channels). A window is what one place of the output reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphpatch.gradients.numpy_functions import Array

Attrs = Mapping[str, Any]


def spatial(attrs: Attrs, name: str) -> tuple[int, int]:
    """Height and width of an attr that has a number for each axis; 1 where the op has it not."""
    given = attrs.get(name) or (1, 1, 1, 1)
    first = 2 if attrs.get("data_format") == "NCHW" else 1
    return int(given[first]), int(given[first + 1])


def channels_last(x: Array, attrs: Attrs) -> Array:
    """An image with its channels last."""
    return x.transpose(0, 2, 3, 1) if attrs.get("data_format") == "NCHW" else x


def as_given(x: Array, attrs: Attrs) -> Array:
    """An image with its channels where the op has them."""
    return x.transpose(0, 3, 1, 2) if attrs.get("data_format") == "NCHW" else x


class Windows:
    """The windows of an op with these attrs on images of this height and width."""

    def __init__(self, size: tuple[int, int], window: tuple[int, int], attrs: Attrs) -> None:
        self.size, self.window = size, window
        self.strides, self.dilations = spatial(attrs, "strides"), spatial(attrs, "dilations")
        reach = [(w - 1) * d + 1 for w, d in zip(window, self.dilations, strict=True)]
        padding = str(attrs.get("padding", "VALID"))
        self.pads = [_pads(padding, *of) for of in zip(size, reach, self.strides, strict=True)]
        if padding == "EXPLICIT":
            given = list(attrs["explicit_paddings"])
            first = 4 if attrs.get("data_format") == "NCHW" else 2
            self.pads = [(given[first], given[first + 1]), (given[first + 2], given[first + 3])]
        sizes = zip(size, self.pads, reach, self.strides, strict=True)
        self.gives = tuple((n + sum(p) - r) // s + 1 for n, p, r, s in sizes)

    def _at(self, row: int, column: int) -> tuple[slice, slice]:
        """Which pixels of the padded image are at this place of the windows."""
        pairs = zip((row, column), self.dilations, self.strides, self.gives, strict=True)
        first, second = (slice(n * d, n * d + s * (g - 1) + 1, s) for n, d, s, g in pairs)
        return first, second

    def of(self, image: Array, fill: float = 0.0) -> Array:
        """(batch, rows, columns, window height, window width, channels)."""
        padded = np.pad(image, [(0, 0), *self.pads, (0, 0)], constant_values=fill)
        rows, columns = self.window
        parts = [
            [padded[(slice(None), *self._at(row, column))] for column in range(columns)]
            for row in range(rows)
        ]
        return np.stack([np.stack(line, 3) for line in parts], 3)

    def image(self, windows: Array) -> Array:
        """The image whose pixels are the sums of what the windows have in their place."""
        sizes = [n + sum(p) for n, p in zip(self.size, self.pads, strict=True)]
        padded = np.zeros((len(windows), *sizes, windows.shape[-1]), windows.dtype)
        for row, column in np.ndindex(*self.window):
            padded[(slice(None), *self._at(row, column))] += windows[:, :, :, row, column]
        (top, _), (left, _) = self.pads
        return padded[:, top : top + self.size[0], left : left + self.size[1]]


def _pads(padding: str, size: int, reach: int, stride: int) -> tuple[int, int]:
    if padding != "SAME":
        return 0, 0
    missing = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
    return missing // 2, missing - missing // 2


def sliding_windows(x: Array, window: tuple[int, int], attrs: Attrs) -> Windows:
    """The windows on an image as the op has it."""
    return Windows(channels_last(x, attrs).shape[1:3], window, attrs)


def convolve(x: Array, weights: Array, attrs: Attrs, depthwise: bool = False) -> Array:
    """Conv2D, or DepthwiseConv2dNative, of an image."""
    cut = sliding_windows(x, weights.shape[:2], attrs).of(channels_last(x, attrs))
    if depthwise:
        found = np.einsum("brcijk,ijkm->brckm", cut, weights)
        return as_given(found.reshape(*found.shape[:3], -1), attrs)
    return as_given(np.einsum("brcijk,ijkm->brcm", cut, weights), attrs)


def by_input(dy: Array, weights: Array, shape: Any, attrs: Attrs, depthwise: bool = False) -> Array:
    """The gradient of a convolution by an image of this shape."""
    like = channels_last(np.empty(shape, dy.dtype), attrs)
    places = Windows(like.shape[1:3], weights.shape[:2], attrs)
    dy = channels_last(dy, attrs)
    if depthwise:
        dy = dy.reshape(*dy.shape[:3], *weights.shape[2:])
        spread = np.einsum("brckm,ijkm->brcijk", dy, weights)
    else:
        spread = np.einsum("brcm,ijkm->brcijk", dy, weights)
    return as_given(places.image(spread), attrs)


def by_filter(x: Array, dy: Array, shape: Any, attrs: Attrs, depthwise: bool = False) -> Array:
    """The gradient of a convolution by a filter of this shape."""
    cut = sliding_windows(x, tuple(shape[:2]), attrs).of(channels_last(x, attrs))
    dy = channels_last(dy, attrs)
    if depthwise:
        dy = dy.reshape(*dy.shape[:3], *shape[2:])
    text = "brcijk,brckm->ijkm" if depthwise else "brcijk,brcm->ijkm"
    found: Array = np.einsum(text, cut, dy)
    return found


def _pooled(x: Array, attrs: Attrs, fill: float) -> tuple[Windows, Array]:
    places = sliding_windows(x, spatial(attrs, "ksize"), attrs)
    return places, places.of(channels_last(x, attrs), fill)


def average(x: Array, attrs: Attrs) -> Array:
    """AvgPool: the mean of those pixels of a window that are in the image."""
    _, cut = _pooled(x, attrs, np.nan)
    return as_given(np.nanmean(cut, axis=(3, 4)), attrs)


def average_by_input(x: Array, dy: Array, attrs: Attrs) -> Array:
    """The gradient of AvgPool: each pixel of a window gets an equal part."""
    places, cut = _pooled(np.zeros_like(x), attrs, np.nan)
    inside = ~np.isnan(cut)
    parts = inside / inside.sum(axis=(3, 4), keepdims=True)
    whole = channels_last(dy, attrs)[:, :, :, np.newaxis, np.newaxis]
    return as_given(places.image((parts * whole).astype(dy.dtype)), attrs)


def max_pool(x: Array, attrs: Attrs) -> Array:
    """MaxPool."""
    _, cut = _pooled(x, attrs, -np.inf)
    return as_given(cut.max(axis=(3, 4)), attrs)


def largest_by_input(x: Array, dy: Array, attrs: Attrs) -> Array:
    """The gradient of MaxPool: the first of the largest pixels of a window gets it all."""
    places, cut = _pooled(x, attrs, -np.inf)
    rows = cut.reshape(*cut.shape[:3], -1, cut.shape[-1])
    taken = np.arange(rows.shape[3])[:, np.newaxis] == rows.argmax(axis=3)[..., np.newaxis, :]
    whole = channels_last(dy, attrs)[:, :, :, np.newaxis]
    return as_given(places.image((taken * whole).astype(dy.dtype).reshape(cut.shape)), attrs)
