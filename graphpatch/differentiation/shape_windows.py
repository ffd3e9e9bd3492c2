"""The shapes of convolutions and poolings, of their gradients, and of normalisation."""

from __future__ import annotations

from graphpatch.differentiation.op_shapes import OpShapes, Sizes, merged_shape


def kept_from_input(op: OpShapes) -> Sizes:
    """That of input 0."""
    return op.shapes[0]


def _convolved_shape(op: OpShapes) -> Sizes:
    """Windows over input 0, with as many channels as the last axis of the filter."""
    image, kernel = op.shapes[0], op.shapes[1]
    if image is None or kernel is None or len(image) != len(kernel):
        return None
    return _windows_shape(op, image, kernel[:-2], kernel[-1])


def _depthwise_shape(op: OpShapes) -> Sizes:
    """Windows over input 0, with each of its channels as often as the filter says."""
    image, kernel = op.shapes[0], op.shapes[1]
    if image is None or kernel is None or len(image) != len(kernel):
        return None
    given = kernel[-2:]
    channels = None if None in given else (given[0] or 0) * (given[1] or 0)
    return _windows_shape(op, image, kernel[:-2], channels)


def _pooled_shape(op: OpShapes) -> Sizes:
    """Windows of the size that an attr names."""
    image, sizes = op.shapes[0], op.attr("ksize")
    if image is None or not isinstance(sizes, list) or len(sizes) != len(image):
        return None
    channel = _channel(op, len(image))
    window = tuple(size for axis, size in enumerate(sizes) if axis not in (0, channel))
    channels = image[channel]
    return _windows_shape(op, image, window, channels and channels // sizes[channel])


def _windows_shape(
    op: OpShapes,
    image: tuple[int | None, ...],
    window: tuple[int | None, ...],
    channels: int | None,
) -> Sizes:
    """The shape of an image after windows of this size, in the op's strides and padding."""
    channel, rank = _channel(op, len(image)), len(image)
    strides, dilations = op.attr("strides"), op.attr("dilations") or [1] * rank
    padding, explicit = op.attr("padding"), op.attr("explicit_paddings") or [0] * rank * 2
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


def _channel(op: OpShapes, rank: int) -> int:
    """The axis of the channels."""
    layout = op.attr("data_format")
    return 1 if isinstance(layout, str) and layout.startswith("NC") else rank - 1


def _channels_shape(op: OpShapes) -> Sizes:
    """One number for each channel of input 0."""
    image = op.shapes[0]
    return None if image is None else (image[_channel(op, len(image))],)


def _normalized_shape(op: OpShapes) -> Sizes:
    """The image, and lists of its channels, of which scale and offset tell too how many."""
    channels, image = merged_shape([_channels_shape(op), *op.shapes[1:3]]), op.shapes[0]
    if op.output:
        return channels if op.output < STATISTICS else None
    if image is None or not channels:
        return image
    axis = _channel(op, len(image))
    return (*image[:axis], *channels, *image[axis + 1 :])


def _normalized_back_shape(op: OpShapes) -> Sizes:
    """The gradients of the image, of scale and offset, and two empty lists."""
    if op.output:
        return _channels_shape(op) if op.output < FIRST_EMPTY else (0,)
    return merged_shape(op.shapes[:2])


def _of_image_shape(op: OpShapes) -> Sizes:
    """The gradient of an image, whose shape numbers spell; it has as many rows as dy."""
    sizes, kernel, dy = op.spelled(0), op.shapes[1], op.shapes[2]
    batch = None if dy is None else dy[0]
    if sizes is None:
        return (batch, None, None, None)
    if len(sizes) == IMAGE_AXES and op.attr("data_format") == "NHWC":
        return (batch, *sizes, None if kernel is None else kernel[-2])
    return (batch, *sizes[1:])


def _spelled_shape(op: OpShapes) -> Sizes:
    return op.spelled(0)


def _of_filter_shape(op: OpShapes) -> Sizes:
    return op.spelled(1)


IMAGE_AXES = 2  # of the sizes alone that are named where rows and channels are not
FIRST_EMPTY = 3
STATISTICS = 5  # outputs of a normalisation whose shapes are known: the image and four lists

NORMALIZED = "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3".split()
NORMALIZED_BACK = "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3".split()
KEEPING_IMAGES = "BiasAdd BiasAddV1 LRN".split()
WINDOW_SHAPES = {
    **dict.fromkeys(KEEPING_IMAGES, kept_from_input),
    **dict.fromkeys(("Conv2D", "Conv3D", "QuantizedConv2D"), _convolved_shape),
    "DepthwiseConv2dNative": _depthwise_shape,
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), _pooled_shape),
    "Conv2DBackpropInput": _of_image_shape,
    **dict.fromkeys(("Conv3DBackpropInputV2", "AvgPoolGrad", "AvgPool3DGrad"), _spelled_shape),
    **dict.fromkeys(
        (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        _of_filter_shape,
    ),
    "DepthwiseConv2dNativeBackpropInput": _spelled_shape,
    "MaxPoolGrad": kept_from_input,
    "BiasAddGrad": _channels_shape,
    **dict.fromkeys(NORMALIZED, _normalized_shape),
    **dict.fromkeys(NORMALIZED_BACK, _normalized_back_shape),
}
