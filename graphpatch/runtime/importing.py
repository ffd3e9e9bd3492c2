"""What TensorFlow says of a graph that it does not import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphpatch.errors import ModelError
from graphpatch.runtime.running import first_line


@contextmanager
def importing(path: str = "") -> Iterator[None]:
    """Raise ModelError, in TensorFlow's words, where it does not import the model of this path."""
    import tensorflow as tf

    try:
        yield
    except (ValueError, TypeError, LookupError, AssertionError, tf.errors.OpError) as error:
        where = f"{path}: " if path else ""
        raise ModelError(f"{where}TensorFlow does not import it: {first_line(error)}") from error
