"""Starting TensorFlow, in the process that runs a model."""

from __future__ import annotations

from graphpatch.errors import GraphpatchError


def start() -> None:
    """Import TensorFlow and let it look for devices. Raises GraphpatchError where it is missing."""
    try:
        import tensorflow as tf

        with tf.Graph().as_default(), tf.compat.v1.Session():
            tf.config.list_physical_devices()
    except ImportError as error:
        raise GraphpatchError(
            "verify runs both models with TensorFlow, which is not installed here: pip install "
            "'graphpatch[tensorflow]'; --no-run looks at the graphs alone (in Python: run=False)"
        ) from error
