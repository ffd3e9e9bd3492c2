from __future__ import annotations

from tensorboard.compat.proto.types_pb2 import DataType

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES, is_ref

SPELLED_OTHERWISE = {"float": "float32", "double": "float64", "half": "float16"}


def test_every_number_of_the_enum_has_its_name() -> None:
    for key, number in DataType.items():
        if key != "DT_INVALID":
            spelled = key.removeprefix("DT_").removesuffix("_REF").lower()
            assert DTYPE_NAMES[number] == SPELLED_OTHERWISE.get(spelled, spelled), key
            assert is_ref(number) == key.endswith("_REF"), key


def test_the_differentiable_dtypes_are_dtypes() -> None:
    assert set(DTYPE_NAMES.values()) >= DIFFERENTIABLE
