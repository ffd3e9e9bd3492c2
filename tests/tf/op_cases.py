"""Ops with attrs and seeded inputs, for formulas that compute what an op does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class OpCase:
    """An op type, its attrs, and the arrays that it reads; the places that have a gradient."""

    op_type: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> list[int]:
        """The inputs that have a gradient."""
        return [place for place, one in enumerate(self.inputs) if one.dtype.kind == "f"]

    def raw(self, *inputs: Any) -> Any:
        """Output 0 of the op, by TensorFlow."""
        import tensorflow as tf

        from graphpatch.gradients.ops import op_def
        from graphpatch.runtime.gradient_functions import _RAW_NAMES

        names = [_RAW_NAMES.get(arg.name, arg.name) for arg in op_def(self.op_type).inputs]
        found = getattr(tf.raw_ops, self.op_type)(
            **dict(zip(names, inputs, strict=True)), **self.attrs
        )
        return found[0] if isinstance(found, tuple) else found


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([*shape, seed]).normal(size=shape)


def _case(op_type: str, *shapes: tuple[int, ...], **attrs: Any) -> OpCase:
    return OpCase(op_type, tuple(drawn(*s, seed=n) for n, s in enumerate(shapes)), attrs)


_ONE = {"strides": [1, 1, 1, 1], "padding": "SAME"}
_TWO = {"strides": [1, 2, 2, 1], "padding": "VALID"}
_POOL = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 1, 1]}
_IMAGE, _AXES = (2, 6, 7, 3), np.array([1, 2], np.int32)

CASES = [
    _case("MatMul", (3, 4), (4, 2)),
    _case("MatMul", (4, 3), (2, 4), transpose_a=True, transpose_b=True),
    _case("MatMul", (4, 3), (4, 2), transpose_a=True),
    _case("BatchMatMulV2", (2, 3, 4), (4, 5)),
    _case("BatchMatMulV2", (2, 4, 3), (2, 5, 4), adj_x=True, adj_y=True),
    _case("Conv2D", _IMAGE, (3, 2, 3, 4), **_ONE),
    _case("Conv2D", _IMAGE, (3, 2, 3, 4), **_TWO),
    _case(
        "Conv2D",
        _IMAGE,
        (3, 2, 3, 4),
        strides=[1, 2, 1, 1],
        padding="EXPLICIT",
        explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0],
    ),
    _case("DepthwiseConv2dNative", _IMAGE, (3, 2, 3, 2), **_ONE),
    _case("DepthwiseConv2dNative", _IMAGE, (3, 3, 3, 1), **_TWO | {"padding": "SAME"}),
    OpCase(
        "Conv2DBackpropInput",
        (np.array([2, 6, 7, 3], np.int32), drawn(3, 2, 3, 4), drawn(2, 3, 4, 4)),
        _TWO | {"padding": "SAME"},
    ),
    _case("BiasAdd", _IMAGE, (3,)),
    _case("AvgPool", _IMAGE, **_POOL, padding="SAME"),
    _case("AvgPool", _IMAGE, **_POOL, padding="VALID"),
    _case("MaxPool", _IMAGE, **_POOL, padding="SAME"),
    _case("MaxPool", _IMAGE, **_POOL, padding="VALID"),
    OpCase("Mean", (drawn(*_IMAGE), _AXES)),
    OpCase("Mean", (drawn(*_IMAGE), _AXES), {"keep_dims": True}),
    OpCase("Sum", (drawn(*_IMAGE), _AXES)),
    _case("LeakyRelu", (2, 5), alpha=0.25),
    *(_case(name, (2, 5)) for name in ("Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign")),
    *(_case(name, (2, 5)) for name in ("Sigmoid", "Tanh", "Softmax", "Identity")),
    *(_case(name, (2, 5), (5,)) for name in ("AddV2", "Sub", "Mul", "RealDiv")),
    *(_case(name, (2, 5), (2, 5)) for name in ("Maximum", "Minimum")),
]
