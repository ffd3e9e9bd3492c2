"""`value`: which constants are equal, against numpy, however a tensor is written."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpatch.match.select import holds
from graphpatch.match.spec import Match
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import listed, node


def const(values: Any, dtype: str, shape: tuple[int, ...] = (), content: bool = False) -> NodeDef:
    """A Const of these elements, in tensor_content or listed; listed ones may be too few."""
    made = listed("c", dtype=dtype, shape=shape)
    tensor = made.attr["value"].tensor
    if content:
        tensor.tensor_content = np.array(values, dtype).tobytes()
    elif dtype == "float16":
        tensor.half_val.extend(np.array(values, dtype).view(np.uint16).tolist())
    else:
        return listed("c", *values, dtype=dtype, shape=shape)
    return made


def equals(made: NodeDef, value: Any) -> bool:
    """Whether a Const meets `value`, as a rules file writes it."""
    body = graphs.main(made)
    wanted = msgspec.convert({"value": value}, Match)
    return holds(wanted)(body)(next(iter(body)))


NAN, INF = math.nan, math.inf
CASES: list[tuple[NodeDef, Any, bool]] = [
    # A number is meant of every element, whatever the shape.
    (const([0.5], "float32", (2, 3)), 0.5, True),
    (const([0.5, 0.5, 1.0], "float32", (3,)), 0.5, False),
    # What is left out equals the last that is there, or zero.
    (const([1.0, 2.0], "float32", (4,)), [1, 2, 2, 2], True),
    (const([], "float32", (2,)), 0, True),
    # Rounded as TensorFlow rounds when it makes a constant.
    (const([0.1], "float32"), 0.1, True),
    (const([float(np.float32(0.1))], "float64"), 0.1, False),
    (const([0.1], "float16"), 0.1, True),
    (const([1e300], "float64"), 1e300, True),
    (const([3.0], "float32"), 1e300, False),
    (const([INF], "float32"), 1e300, False),
    (const([3.0], "float32"), {"near": 1e300, "tolerance": 1e301}, True),
    # Within a tolerance.
    (const([0.5000001], "float32"), {"near": 0.5}, True),
    (const([2], "int32"), {"near": 2.5, "tolerance": 0.5}, True),
    (const([1.0, 2.0], "float32", (2,)), {"near": [1.01, 1.99], "tolerance": 0.02}, True),
    (const([1.0, 2.0], "float32", (2,)), {"near": [1.01, 1.9], "tolerance": 0.02}, False),
    (const([NAN], "float32"), {"near": 0.5, "tolerance": 1}, False),
    (const([INF], "float32"), {"near": 0.5, "tolerance": 1e30}, False),
    # A list has the shape of the tensor.
    (const([1, 2], "int32", (1, 2)), [1, 2], False),
    (const([1], "int32"), [1], False),
    (const([], "int32", (1, 0)), [[]], True),
    (const([], "int32", (0,)), [[]], False),
    # Kinds of values.
    (const([2], "int32"), 2.0, True),
    (const([2], "int32"), 2.5, False),
    (const([1], "int32"), True, False),
    (const([True], "bool"), True, True),
    (const([True], "bool"), 1, False),
    (const([255], "uint8"), -1, False),
    (const([-1], "int64"), -1, True),
    (const([b"SAME"], "string"), "SAME", True),
    (const([b"a", b"b"], "string", (2,)), ["a", "b"], True),
    (const([b"1"], "string"), 1, False),
    (const([2.0, 0.0], "complex64"), 2, True),
    (const([2.0, 1.0], "complex64"), 2, False),
    (const([-0.0], "float32"), 0, True),
    (const([INF], "float32"), INF, True),
    (const([NAN], "float32"), NAN, True),
    # What is no Const has no value.
    (node("x", "Placeholder"), 0, False),
    (node("c", "Const", dtype="float32"), 0, False),
    (const([0.5], "float32", (-1,)), 0.5, False),
]


@pytest.mark.parametrize(
    ("made", "value", "wanted"),
    CASES,
    ids=[f"{one.attr['dtype'].type}-{value}-{wanted}" for one, value, wanted in CASES],
)
def test_a_constant_is_this_value(made: NodeDef, value: Any, wanted: bool) -> None:
    assert equals(made, value) is wanted


def test_a_constant_in_bfloat16_is_rounded_to_it() -> None:
    made = listed("c", 0x3DCD, dtype="bfloat16")  # 0.1 rounded to the nearest: 0.10009765625
    assert equals(made, 0.1)
    assert equals(made, 0.10009765625)
    assert not equals(made, 0.099609375)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_same_as_by_numpy(dtype: str, data: st.DataObject) -> None:
    number = st.integers(0, 3) if dtype[0] in "iu" else st.sampled_from([0.0, 0.1, 0.5, 1.0, -2.0])
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
    size = math.prod(shape)
    values = data.draw(st.lists(number, min_size=size, max_size=size))
    array = np.array(values, dtype).reshape(shape)
    content = data.draw(st.booleans())
    made = const(values, dtype, shape, content)
    scalar = data.draw(number)
    tolerance = data.draw(st.sampled_from([0.0, 0.06, 0.55]))
    same = array == np.dtype(dtype).type(scalar)
    near = same | (np.abs(array.astype(float) - scalar) <= tolerance)
    assert equals(made, scalar) is bool(array.size and np.all(same))
    assert equals(made, {"near": scalar, "tolerance": tolerance}) is bool(
        array.size and np.all(near)
    )
    assert equals(made, array.tolist() if content else np.reshape(values, shape).tolist())
    if array.size:
        other = array.copy()
        other.flat[-1] += 1
        assert not equals(made, other.tolist())


def test_of_a_large_constant_no_more_is_read_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphpatch.graph import attrs as tensor

    decoded, size = [], 1 << 22
    original = tensor._array
    monkeypatch.setattr(
        tensor, "_array", lambda dtype, raw: decoded.append(len(raw)) or original(dtype, raw)
    )
    large = const(np.zeros(size), "float32", (size,), content=True)
    assert not equals(large, 1)
    assert len(decoded) == 1
    assert not equals(large, [0, 0])  # another shape: nothing is read
    assert len(decoded) == 1
    assert equals(large, 0)
    assert sum(decoded[1:]) == 4 * size
