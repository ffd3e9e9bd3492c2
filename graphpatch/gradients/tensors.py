"""A tensor that a rule gives to a formula: numbers as lists in JSON, or in an .npy file.

Once read it is `{"shape": [2], "float32": "<base64>"}`, so that a rule, and the key of its
gradient, hold all that they mean.
"""

from __future__ import annotations

import base64
import binascii
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from graphpatch.errors import RulesError
from graphpatch.gradients.npy import Files, in_folder, numbers

DTYPES = {"float32": 4, "float64": 8}
MOST_AXES = 32  # that all versions of numpy have


class ConstantTensor(msgspec.Struct, frozen=True):
    """Numbers of a dtype, as little-endian bytes, in a shape."""

    shape: tuple[int, ...]
    dtype: str
    data: bytes

    def array(self) -> Any:
        """The numbers as a numpy array."""
        import numpy as np

        dtype = np.dtype(self.dtype).newbyteorder("<")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)

    def packed(self) -> dict[str, Any]:
        """The tensor as JSON holds it."""
        return {"shape": list(self.shape), self.dtype: base64.b64encode(self.data).decode()}

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def packed(value: Any, files: Files | None = None) -> Any:
    """A tensor that a rule gives, as its JSON form; a number, and what is none, as it is.

    A text is the name of an .npy file among `files`; default: those of the working directory.
    Raises RulesError for a file that cannot be read, or holds no numbers, and for lists that are no
    tensor.
    """
    if isinstance(value, str):
        value = numbers((files or in_folder(Path()))(value), value)
    if not isinstance(value, list | tuple) and not hasattr(value, "dtype"):
        return value
    import numpy as np

    try:
        array = np.asarray(value)
    except ValueError:
        raise RulesError("expected lists of equal lengths, found lists of different ones") from None
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise RulesError(f"expected numbers, found {array.dtype}")
    return of_array(array).packed()


def of_array(array: Any) -> ConstantTensor:
    """The tensor of an array: float32 where that holds its dtype, else float64."""
    import numpy as np

    dtype = "float32" if array.dtype in (np.float16, np.float32) else "float64"
    return ConstantTensor(
        array.shape, dtype, array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    )


def unpacked(value: Any) -> Any:
    """The tensor of its JSON form, or of lists; what is neither as it is.

    Raises RulesError where the bytes do not fill the shape.
    """
    if isinstance(value, list | tuple | str):
        value = packed(value)
    if not isinstance(value, dict) or "shape" not in value:
        return value
    sizes, dtype = value["shape"], next((one for one in DTYPES if one in value), "")
    try:
        data = base64.b64decode(value.get(dtype, ""), validate=True)
    except (binascii.Error, ValueError, TypeError):
        data = b""
    if not dtype or len(value) != 2 or not _fills(sizes, len(data) / DTYPES[dtype]):
        raise RulesError('expected {"shape": [...], "float32": "BASE64"} that fills the shape')
    return ConstantTensor(tuple(sizes), dtype, data)


def _fills(sizes: Any, count: float) -> bool:
    """Whether so many numbers are a tensor of these sizes."""
    if not isinstance(sizes, list | tuple) or len(sizes) > MOST_AXES:
        return False
    return all(type(one) is int and one >= 0 for one in sizes) and prod(sizes) == count
