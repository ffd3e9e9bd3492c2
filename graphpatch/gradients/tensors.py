"""A tensor that a rule gives to a formula: numbers as lists in JSON, or in an .npy file.

Once read it is `{"shape": [2], "float32": "<base64>"}`, so that a rule, and the key of its
gradient, hold all that they mean.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from graphpatch.errors import RulesError

DTYPES = {"float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Tensor:
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


def packed(value: Any, folder: Path | None = None) -> Any:
    """A tensor that a rule gives, as its JSON form; a number, and what is none, as it is.

    A text is the name of an .npy file in `folder`. Raises RulesError for a file that cannot be
    read, or holds no numbers, and for lists that are no tensor.
    """
    if isinstance(value, str):
        value = _loaded(value, folder or Path())
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


def of_array(array: Any) -> Tensor:
    """The tensor of an array: float32 where that holds its dtype, else float64."""
    import numpy as np

    dtype = "float32" if array.dtype in (np.float16, np.float32) else "float64"
    return Tensor(array.shape, dtype, array.astype(np.dtype(dtype).newbyteorder("<")).tobytes())


def unpacked(value: Any) -> Any:
    """The tensor of its JSON form, or of lists; what is neither as it is.

    Raises RulesError where the bytes do not fill the shape.
    """
    if isinstance(value, list | tuple | str):
        value = packed(value)
    if not isinstance(value, dict) or "shape" not in value:
        return value
    shape, dtype = tuple(value["shape"]), next((one for one in DTYPES if one in value), "")
    try:
        data = base64.b64decode(value.get(dtype, ""), validate=True)
    except (binascii.Error, ValueError, TypeError):
        data = b""
    if not dtype or len(value) != 2 or len(data) != prod(shape) * DTYPES[dtype]:
        raise RulesError('expected {"shape": [...], "float32": "BASE64"} that fills the shape')
    return Tensor(shape, dtype, data)


def _loaded(name: str, folder: Path) -> Any:
    import numpy as np

    path = folder / name
    if path.suffix != ".npy":
        raise RulesError(f"expected lists of numbers or the name of an .npy file, found {name!r}")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise RulesError(f"{name!r} leads out of the folder of the rules file; put the file there")
    if path.exists() and not path.is_file():
        raise RulesError(f"cannot read {path}: it is not a file")
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise RulesError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise RulesError(f"{path} is not an .npy file of numbers: {error}") from None
