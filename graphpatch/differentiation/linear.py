"""Ops whose gradient does not depend on the value of what they read."""

from __future__ import annotations

from collections.abc import Sequence

# Whatever they read.
_LINEAR = frozenset(
    "Add AddN AddV2 AvgPool AvgPool3D BatchToSpaceND BiasAdd BroadcastTo Cast Concat ConcatV2"
    " DepthToSpace EnsureShape ExpandDims Identity IdentityN Mean Neg Pack Pad PadV2"
    " PlaceholderWithDefault PreventGradient Reshape ResizeBilinear ReverseV2 Roll Slice Snapshot"
    " SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice Sub Sum Tile Transpose"
    " Unpack".split()
)
# Where the other input is a constant.
_BILINEAR = frozenset(
    "BatchMatMul BatchMatMulV2 BatchMatMulV3 Conv2D Conv3D DepthwiseConv2dNative MatMul Mul".split()
)
# Where the divisor is a constant.
_QUOTIENTS = frozenset({"Div", "RealDiv"})


def is_linear(op_type: str, varies: Sequence[bool], is_constant: Sequence[bool]) -> bool:
    """Whether the gradient of an op is the same for all values of the inputs that vary.

    `varies` and `is_constant` say for each input whether its value changes, and whether it never
    does; neither is so of an input that is fed.
    """
    if op_type in _LINEAR:
        return True
    if op_type in _QUOTIENTS:
        return list(varies) == [True, False] and is_constant[1]
    if op_type not in _BILINEAR or sum(varies) != 1:
        return False
    return all(one or constant for one, constant in zip(varies, is_constant, strict=True))
