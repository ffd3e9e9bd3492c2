"""Functions of formulas that cut and join arrays along an axis, or draw numbers, in numpy."""

from __future__ import annotations

import math

import numpy as np

from graphpatch.gradients.along import SEED_2
from graphpatch.gradients.numpy_functions import Array

_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_ROUNDS = 10


def split_part(x: Array, parts: int, index: int, axis: int = 0) -> Array:
    """Part `index` of `parts` equal ones along an axis."""
    return np.split(x, parts, axis)[index]


def concat(*arrays: Array, axis: int = 0) -> Array:
    """The arrays one after the other along an axis."""
    return np.concatenate(arrays, axis)


def gather(x: Array, indices: Array, axis: int = 0) -> Array:
    """The parts of x at these places along an axis."""
    return np.take(x, indices, axis)


def lower_quantile(x: Array, q: float, from_axis: int = 0) -> Array:
    """The element at place floor(q * (n - 1)) of those in order, over the axes from this one on."""
    rows = np.sort(x.reshape(*x.shape[:from_axis], -1), axis=-1)
    found = rows[..., math.floor(q * (rows.shape[-1] - 1))]
    return found.reshape(x.shape[:from_axis] + (1,) * (x.ndim - from_axis))


def normal_like(x: Array, seed: int) -> Array:
    """The numbers that TensorFlow draws first: Philox of 4 words, and Box and Muller's formula.

    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
    """
    words = _philox(math.ceil(x.size / 4), seed, SEED_2).reshape(-1, 2)
    bits = (words & 0x7FFFFF).astype(np.uint32) | np.uint32(127 << 23)
    unit = bits.view(np.float32) - np.float32(1)
    length = np.sqrt(-2 * np.log(np.maximum(unit[:, 0], np.float32(1e-7))))
    angle = np.float32(2 * math.pi) * unit[:, 1]
    found = np.stack([np.sin(angle) * length, np.cos(angle) * length], 1).ravel()
    return found[: x.size].reshape(x.shape).astype(x.dtype)


def _philox(count: int, seed: int, seed_2: int) -> Array:
    """Four words for each counter from 0 on, whose upper half is `seed_2`; `seed` is the key."""
    low = np.uint64(0xFFFFFFFF)
    numbers = np.arange(count, dtype=np.uint64)
    high = np.full(count, seed_2 & 0xFFFFFFFF, np.uint64)
    words = [numbers, numbers >> np.uint64(32), high, np.full(count, seed_2 >> 32, np.uint64)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        first, second = (np.uint64(f) * w for f, w in zip(_FACTORS, words[::2], strict=True))
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            second & low,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(k + step) & 0xFFFFFFFF for k, step in zip(key, _KEY_STEPS, strict=True)]
    return np.stack(words, 1)
