from __future__ import annotations

import pytest

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES, is_ref

tf = pytest.importorskip("tensorflow")


def test_the_names_of_dtypes() -> None:
    from tensorflow.core.framework import types_pb2

    for number in types_pb2.DataType.values():
        if number:
            dtype = tf.as_dtype(number)
            assert DTYPE_NAMES[number] == dtype.base_dtype.name
            assert is_ref(number) == dtype._is_ref_dtype


def test_the_dtypes_that_carry_gradients() -> None:
    from tensorflow.python.eager import backprop_util

    names = {name for name in DTYPE_NAMES.values() if hasattr(tf.dtypes, name)}
    assert {"resource", "variant"} | DIFFERENTIABLE == {
        name for name in names if backprop_util.IsTrainable(getattr(tf.dtypes, name))
    }
