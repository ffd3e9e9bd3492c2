from __future__ import annotations

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES, is_ref
from graphpatch.protos import POOL

SPELLED_OTHERWISE = {"float": "float32", "double": "float64", "half": "float16"}


def test_every_number_of_the_enum_has_its_name() -> None:
    for key, number in EnumTypeWrapper(POOL.FindEnumTypeByName("tensorflow.DataType")).items():
        if key != "DT_INVALID":
            spelled = key.removeprefix("DT_").removesuffix("_REF").lower()
            assert DTYPE_NAMES[number] == SPELLED_OTHERWISE.get(spelled, spelled), key
            assert is_ref(number) == key.endswith("_REF"), key


def test_the_differentiable_dtypes_are_dtypes() -> None:
    assert set(DTYPE_NAMES.values()) >= DIFFERENTIABLE
