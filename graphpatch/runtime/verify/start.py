"""Starting TensorFlow, which talks about devices on standard error before it can be told not to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from graphpatch.errors import GraphpatchError


def start(quietly: bool = False) -> None:
    """Import TensorFlow and let it look for devices; `quietly`: it warns of nothing from then on.

    Raises GraphpatchError where it is missing.
    """
    try:
        with _quiet():
            import tensorflow as tf

            with tf.Graph().as_default(), tf.compat.v1.Session():
                tf.config.list_physical_devices()
            if quietly:
                tf.get_logger().setLevel("ERROR")
    except ImportError as error:
        raise GraphpatchError(
            "verify runs both models with TensorFlow, which is not installed here: pip install "
            "'graphpatch[tensorflow]'; --no-run looks at the graphs alone (in Python: run=False)"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep standard error back; where something is raised, it is told after all."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            said.seek(0)
            os.write(2, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
