"""The shape of output 0 of convolutions and poolings, and of what keeps the shape of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphpatch import opdefs
from graphpatch.graph import attrs
from graphpatch.graph.body import Node

Shape = tuple[int | None, ...] | None


def kept_from_input(node: Node, shapes: Sequence[Shape]) -> Shape:
    """That of input 0."""
    return shapes[0]


def convolved(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Windows over input 0, with as many channels as the last axis of the filter."""
    image, kernel = shapes[0], shapes[1]
    if image is None or kernel is None or len(image) != len(kernel):
        return None
    return _windows(node, image, kernel[:-2], kernel[-1])


def depthwise(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Windows over input 0, with each of its channels as often as the filter says."""
    image, kernel = shapes[0], shapes[1]
    if image is None or kernel is None or len(image) != len(kernel):
        return None
    given = kernel[-2:]
    channels = None if None in given else (given[0] or 0) * (given[1] or 0)
    return _windows(node, image, kernel[:-2], channels)


def pooled(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Windows of the size that an attr names."""
    image, sizes = shapes[0], _attr(node, "ksize")
    if image is None or not isinstance(sizes, list) or len(sizes) != len(image):
        return None
    channel = _channel(node, len(image))
    window = tuple(size for axis, size in enumerate(sizes) if axis not in (0, channel))
    return _windows(node, image, window, image[channel])


def _windows(
    node: Node, image: tuple[int | None, ...], window: tuple[int | None, ...], channels: int | None
) -> Shape:
    """The shape of an image after windows of this size, in the op's strides and padding."""
    channel, rank = _channel(node, len(image)), len(image)
    strides, dilations = _attr(node, "strides"), _attr(node, "dilations") or [1] * rank
    padding, explicit = _attr(node, "padding"), _attr(node, "explicit_paddings") or [0] * rank * 2
    if not isinstance(strides, list) or len(strides) != rank or len(dilations) != rank:
        return None
    found, spatial = list(image), [axis for axis in range(rank) if axis not in (0, channel)]
    found[channel] = channels
    for axis, size in zip(spatial, window, strict=True):
        room, stride = image[axis], strides[axis]
        if room is None or size is None or stride < 1:
            found[axis] = None
            continue
        reach = (size - 1) * dilations[axis] + 1
        more = sum(explicit[2 * axis : 2 * axis + 2]) if padding == "EXPLICIT" else 0
        steps = (room + stride - 1 if padding == "SAME" else room + more - reach + stride) // stride
        found[axis] = max(steps, 0)
    return tuple(found)


def _channel(node: Node, rank: int) -> int:
    """The axis of the channels."""
    layout = _attr(node, "data_format")
    return 1 if isinstance(layout, str) and layout.startswith("NC") else rank - 1


def _attr(node: Node, key: str) -> Any:
    value = node.attr(key)
    if value is not None:
        return attrs.as_json(value)
    known = opdefs.lookup(node.op)
    default = next((one.default for one in known.attrs if one.name == key), None) if known else None
    return list(default) if isinstance(default, tuple) else default


KEPT = "BiasAdd BiasAddV1 FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 LRN".split()
WINDOW_SHAPES = {
    **dict.fromkeys(KEPT, kept_from_input),
    **dict.fromkeys(("Conv2D", "Conv3D"), convolved),
    "DepthwiseConv2dNative": depthwise,
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), pooled),
}
