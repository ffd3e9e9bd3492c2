"""Tensors that rules give to formulas: numbers as lists in JSON, or in .npy files beside the rules.

Once read a tensor is `{"shape": [2], "float32": "<base64>"}`, so that a rule, and the key of its
gradient, hold all that they mean. Nothing in an .npy file is run, no more memory is taken than it
has bytes, and its name leads neither out of the folder of the rules nor to a pipe or a device.
"""

from __future__ import annotations

import base64
import io
import math
import os
import struct
import tokenize
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any

import msgspec

from graphpatch.errors import RulesError
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import TensorProto

NPY_SUFFIX = ".npy"
LARGEST_FILE = 256 << 20  # bytes of one file: what it holds is written into each model
GRADIENT_PATCHES = ("override_gradient", "filter_gradient")
DTYPES = {"float32": 4, "float64": 8}
MOST_AXES = 32  # that all versions of numpy have

# What numpy raises for a file that is none.
BROKEN = (
    *(ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError, EOFError),
    tokenize.TokenError,
)

# The bytes of the file that rules call by this name. Raises RulesError where there is none.
Files = Callable[[str], bytes]


LARGE_CONSTANT = 256
"""From how many bytes on a vector is written as bytes, not as a list of numbers."""

_ENCODINGS = {
    "float16": ("e", "half_val"),
    "bfloat16": ("H", "half_val"),
    "float32": ("f", "float_val"),
    "float64": ("d", "double_val"),
    "int32": ("i", "int_val"),
    "bool": ("?", "bool_val"),
}
"""How `struct` packs the numbers of a dtype, and the field of TensorProto that lists them."""


class ConstantTensor(msgspec.Struct, frozen=True):
    """Numbers of a dtype, as little-endian bytes, in a shape; one number where there are no sizes.

    So two are equal where their bits are: 0 and -0 are two, NaN is one.
    """

    dtype: str
    data: bytes
    shape: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Return the numbers as Python has them."""
        if self.dtype == "bfloat16":
            halves = self._unpacked()
            words = struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))
            return struct.unpack(f"<{len(halves)}f", words)
        return self._unpacked()

    def _unpacked(self) -> tuple[Any, ...]:
        code, _ = _ENCODINGS[self.dtype]
        return struct.unpack(f"<{len(self.data) // struct.calcsize(code)}{code}", self.data)

    def array(self) -> Any:
        """Return the numbers as a numpy array."""
        import numpy as np

        dtype = np.dtype(self.dtype).newbyteorder("<")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)

    def cast(self, dtype: str) -> ConstantTensor:
        """Return the tensor in another dtype, each number rounded to the nearest."""
        import numpy as np

        array, dtype_of_bits = self.array(), dtype
        if dtype == "bfloat16":
            array, dtype_of_bits = np.array([*map(_to_bfloat16, array.ravel().tolist())]), "uint16"
        with np.errstate(over="ignore"):
            data = array.astype(np.dtype(dtype_of_bits).newbyteorder("<")).tobytes()
        return ConstantTensor(dtype, data, self.shape)

    def proto(self) -> TensorProto:
        """Return the TensorProto of this value."""
        proto = TensorProto(dtype=DTYPE_NUMBERS[self.dtype])
        proto.tensor_shape.SetInParent()
        for size in self.shape:
            proto.tensor_shape.dim.add(size=size)
        if len(self.shape) > 1 or len(self.data) > LARGE_CONSTANT:
            proto.tensor_content = self.data
            return proto
        is_half = self.dtype == "float16"
        values = struct.unpack(f"<{len(self.data) // 2}H", self.data) if is_half else None
        getattr(proto, _ENCODINGS[self.dtype][1]).extend(values or self._unpacked())
        return proto

    def packed(self) -> dict[str, Any]:
        """Return the tensor as JSON holds it."""
        return {"shape": list(self.shape), self.dtype: base64.b64encode(self.data).decode()}

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def scalar(value: float | bool, dtype: str) -> ConstantTensor:
    """Return the number in this dtype, rounded to the nearest; raise OverflowError beyond it."""
    number = _to_bfloat16(value) if dtype == "bfloat16" else value
    return ConstantTensor(dtype, struct.pack(f"<{_ENCODINGS[dtype][0]}", number))


def vector(*values: int) -> ConstantTensor:
    """Return a vector of int32."""
    return ConstantTensor("int32", struct.pack(f"<{len(values)}i", *values), (len(values),))


def as_float(value: float) -> float:
    """Return a number as a float, an integer beyond any float as an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def survives_dtype(value: float, dtype: str) -> bool:
    """Return whether this dtype has the number, but for rounding: not 0, not infinite."""
    try:
        (rounded,) = scalar(value, dtype).numbers
    except OverflowError:
        return False
    return (rounded == 0) == (value == 0) and math.isinf(rounded) == math.isinf(value)


def _to_bfloat16(value: float) -> int:
    """Return the upper half of the float32's bits, rounded to even."""
    if math.isnan(value):
        return 0x7FC0
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        bits = 0x7F800000 if value > 0 else 0xFF800000
    return int(bits + 0x7FFF + (bits >> 16 & 1) >> 16)


class _Packed(msgspec.Struct):
    """A tensor as JSON holds it; msgspec decodes the base64."""

    shape: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MOST_AXES)
    ]
    float32: bytes | None = None
    float64: bytes | None = None


def packed(value: Any, files: Files | None = None) -> Any:
    """Return the JSON form of a tensor that a rule gives; a number, and anything else, as it is.

    A text is the name of an .npy file among `files`; default: those of the working directory.
    Raises RulesError for a file that cannot be read, or holds no numbers, and for lists that are no
    tensor.
    """
    if isinstance(value, str):
        value = array((files or in_folder(Path()))(value), value)
    if not isinstance(value, list | tuple) and not hasattr(value, "dtype"):
        return value
    import numpy as np

    try:
        numbers = np.asarray(value)
    except (ValueError, OverflowError):
        raise RulesError("expected lists of equal lengths, found lists of different ones") from None
    if numbers.dtype.kind not in "fiu" or numbers.dtype.itemsize > 8:
        raise RulesError(f"expected numbers, found {numbers.dtype}")
    return of_array(numbers).packed()


def of_array(array: Any) -> ConstantTensor:
    """Return the tensor of an array: float32 where that holds its dtype, else float64."""
    import numpy as np

    dtype = "float32" if array.dtype in (np.float16, np.float32) else "float64"
    data = array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return ConstantTensor(dtype, data, array.shape)


def unpacked(value: Any) -> Any:
    """Return the tensor of its JSON form, or of lists; anything else as it is.

    Raises RulesError where the bytes do not fill the shape.
    """
    if isinstance(value, list | tuple | str):
        value = packed(value)
    if not isinstance(value, dict) or "shape" not in value:
        return value
    try:
        packed_tensor = msgspec.convert(value, _Packed)
    except msgspec.ValidationError:
        packed_tensor = _Packed(())
    data, sizes = packed_tensor.float32 or packed_tensor.float64 or b"", packed_tensor.shape
    dtype = "float64" if packed_tensor.float32 is None else "float32"
    if len(value) != 2 or dtype not in value or math.prod(sizes) * DTYPES[dtype] != len(data):
        raise RulesError('expected {"shape": [...], "float32": "BASE64"} that fills the shape')
    return ConstantTensor(dtype, data, sizes)


def with_tensors(document: Any, files: Files | None) -> Any:
    """Return rules with their tensors in their JSON form, read from `files` where they name one.

    What is not a list of rules stays as it is. Raises RulesError with the path to the tensor.
    """
    rules = document.get("rules") if isinstance(document, Mapping) else None
    if not isinstance(rules, list | tuple):
        return document
    return {**document, "rules": [_packed_rule(n, rule, files) for n, rule in enumerate(rules)]}


def _packed_rule(number: int, rule: Any, files: Files | None) -> Any:
    """Pack the constants of a formula, and the parameters of a gradient of the library."""
    patch = rule.get("patch") if isinstance(rule, Mapping) else None
    if not isinstance(patch, Mapping):
        return rule
    result = dict(patch)
    for kind in GRADIENT_PATCHES:
        if isinstance(patch.get(kind), Mapping):
            path = f"rules[{number}].patch.{kind}"
            result[kind] = {
                name: {
                    key: _packed_at(f"{path}.{name}.{key}", value, files)
                    for key, value in parameters.items()
                }
                if isinstance(parameters, Mapping) and "shape" not in parameters
                else parameters
                for name, parameters in patch[kind].items()
            }
    return {**rule, "patch": result}


def _packed_at(path: str, value: Any, files: Files | None) -> Any:
    if isinstance(value, str) and not value.endswith(NPY_SUFFIX):
        return value
    try:
        return packed(value, files)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from None


def in_folder(folder: Path) -> Files:
    """Return what reads the files of a folder of this machine."""
    return lambda name: _bytes_of(folder, checked_name(name))


def checked_name(name: str) -> str:
    """Return the name of an .npy file in the folder of the rules, or raise RulesError."""
    if not name.endswith(NPY_SUFFIX):
        raise RulesError(f"expected lists of numbers or the name of an .npy file, found {name!r}")
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
        raise RulesError(f"{name!r} leads out of the folder of the rules file; put the file there")
    return name


def array(raw: bytes, name: str) -> Any:
    """Return the numpy array that the bytes of an .npy file hold.

    Raises RulesError where they hold none, or one of Python objects, which would run code.
    """
    import numpy as np

    stream = io.BytesIO(raw)
    try:
        result = np.load(stream, allow_pickle=False)
    except BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RulesError(f"{name} is not an .npy file of numbers: {reason}") from None
    # Of elements without a size, 80 bytes hold 2**40.
    is_array = isinstance(result, np.ndarray) and result.dtype.itemsize
    if not is_array or stream.tell() < len(raw):
        raise RulesError(f"{name} is not an .npy file of numbers, or holds more than one array")
    return result


def _bytes_of(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
        if root not in real.parents:
            raise RulesError(
                f"{path} is a link that leads out of the folder of the rules file, to {real}; "
                f"it is not followed; copy the file there"
            )
        if path.exists() and not path.is_file():
            raise RulesError(f"cannot read {path}: it is not a file")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise RulesError(f"{path} has {size:,} bytes; {LARGEST_FILE:,} at most go into a rule")
        with path.open("rb") as file:
            return file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise RulesError(f"cannot read {path}: {reason}") from None
