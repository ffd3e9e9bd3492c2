"""Arrays that are fed, seeded or read from a file, and how far two arrays are apart."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphpatch.errors import ModelError, RulesError
from graphpatch.gradients.tensors import NPY_SUFFIX, array

Values = Mapping[str, Any]
Feed = str | Path | Values
"""Arrays by tensor name, or the path of a .npz file of them."""

MOST_FED = 8 << 30  # bytes of all arrays that are fed, unpacked

# What zipfile raises besides BadZipFile for an archive, or an entry of it, of another version,
# packed in a way that it does not know, encrypted, or not whole.
UNPACKING = (
    *(NotImplementedError, RuntimeError, EOFError, OSError, KeyError),
    *(zlib.error, lzma.LZMAError, struct.error),
)


class Guess(NamedTuple):
    """What an unknown dimension is, and the shape where the rank is unknown.

    `image`: what it is of a tensor of four axes, but for the first.
    """

    size: int
    whole: tuple[int, ...]
    image: int = 0


# The guess with which most runs is taken.
GUESSES = (
    Guess(2, (2,)),
    Guess(1, (1, 8, 8, 3)),
    Guess(1, (1, 8, 8, 1)),
    Guess(1, ()),
    Guess(4, (2, 3)),
    Guess(1, (1,)),
    Guess(32, (1, 32, 32, 3)),
    Guess(1, (1, 224, 224, 3), image=224),
    Guess(1, (1, 299, 299, 3), image=299),
)


def seeded_value(name: str, dtype: Any, shape: Any, guess: Guess) -> Any:
    """Return a value for a tensor, by its name: small floats, zeros and ones, or empty strings.

    Single integers and vectors of them are ones: they may be sizes, or the lengths of sequences, of
    which 0 would leave nothing to compare. A truth of unknown rank is a flag: one value.
    """
    sizes = () if dtype.base_dtype.is_bool else guess.whole
    if shape.rank is not None:
        image = guess.image if shape.rank == 4 else 0
        sizes = tuple(dim or (n and image) or guess.size for n, dim in enumerate(shape.as_list()))
    base = dtype.base_dtype
    if base.name == "string":
        return np.full(sizes, b"", dtype=object)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if base.is_floating or base.is_complex:
        return np.asarray(random.standard_normal(sizes, dtype=np.float32)).astype(
            base.as_numpy_dtype
        )
    least = 0 if base.is_bool or len(sizes) > 1 else 1
    return np.asarray(random.integers(least, 2, size=sizes)).astype(base.as_numpy_dtype)


def upstream_weights(name: str, like: Any) -> Any:
    """Return the upstream gradient with which the gradient of an output is taken."""
    like = np.asarray(like)
    random = np.random.default_rng(zlib.crc32(f"dy {name}".encode()))
    return np.asarray(random.standard_normal(like.shape, dtype=np.float32)).astype(like.dtype)


def fed_values(feed: Feed | None) -> dict[str, Any]:
    """Return the arrays that are fed by the full names of their tensors."""
    values = read_feed(feed) if isinstance(feed, str | Path) else feed or {}
    return {full_tensor_name(name): value for name, value in values.items()}


def read_feed(path: str | Path) -> dict[str, Any]:
    """Return the arrays of a .npz file, by tensor name. Raises ModelError where it is none."""
    try:
        if not Path(path).is_file():
            raise ModelError(f"cannot read {path}: there is no such file")
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MOST_FED:
                raise ModelError(f"{path} unpacks to {size:,} bytes; {MOST_FED:,} at most are fed")
            arrays = {n: array(archive.read(n), f"{n} in {path}") for n in archive.namelist()}
    except RulesError as error:
        raise ModelError(str(error)) from None
    except zipfile.BadZipFile:
        raise ModelError(f"{path} is not an .npz file, or is cut short") from None
    except (*UNPACKING, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    named = ((name.removesuffix(NPY_SUFFIX), value.copy()) for name, value in arrays.items())
    return {full_tensor_name(name): value for name, value in named}


def full_tensor_name(name: str) -> str:
    """Return the name of a tensor: that of an op means its output 0."""
    return name if ":" in name else f"{name}:0"


def same_bits(a: Any, b: Any) -> bool:
    """Compare bit by bit: NaNs by their payload, zeros by their sign."""
    a, b = np.asarray(a), np.asarray(b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return bool(a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes())


def difference_in_words(before: Any, after: Any) -> str:
    """Say how far two arrays are apart."""
    before, after = np.asarray(before), np.asarray(after)
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return f"{before.dtype.name} {list(before.shape)} -> {after.dtype.name} {list(after.shape)}"
    if before.dtype == object or before.dtype == bool:
        return f"{int(np.sum(before != after))} of {before.size} elements differ"
    bits, bits_after = (np.frombuffer(a.tobytes(), f"V{a.itemsize}") for a in (before, after))
    count = f"{int(np.sum(bits != bits_after))} of {before.size} elements differ"
    largest, relative = distance(before, after)
    if not largest:
        return f"{count}, in {unlike_bits(before)} alone"
    part = f" ({relative:.3g} of the largest element)"
    if np.isinf(relative) and np.isfinite(largest):
        part = "; it was 0 everywhere"
    return f"{count}, by at most {largest:.3g}{part}"


def unlike_bits(array: Any) -> str:
    """Say what of it another array has otherwise that is not the same bits, at distance 0."""
    return f"the signs of zeros{' or the bits of NaN' if np.any(np.isnan(array)) else ''}"


def distance(before: Any, after: Any) -> tuple[float, float]:
    """Return the largest difference, and that as a part of the first array's largest element.

    NaN and NaN, and infinities of one sign, are equal; elements of which one side alone is finite
    are infinitely far apart. The largest element is the largest finite one.
    """
    if not before.size:
        return 0.0, 0.0
    # Of 64 bits, which no float64 has, ints are told apart all the same.
    wide = {"c": np.complex128, "i": np.longdouble, "u": np.longdouble}.get(before.dtype.kind, "f8")
    with np.errstate(all="ignore"):
        before, after = before.astype(wide), after.astype(wide)
        is_equal = (before == after) | (np.isnan(before) & np.isnan(after))
        apart = np.abs(before - after)
        apart = np.where(is_equal, 0, np.where(np.isfinite(apart), apart, np.inf))
        sizes = np.abs(before[np.isfinite(before)])
        largest, size = float(np.max(apart)), float(np.max(sizes, initial=0))
        return largest, largest / size if size else float("inf") if largest else 0.0
