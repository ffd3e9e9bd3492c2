"""The layers' classes for one Keras: made once, so that each has one identity in a process."""

from __future__ import annotations

import importlib
from typing import Any

from graphpatch.runtime.layers.gradient_filter import GradientFilter
from graphpatch.runtime.layers.patched_model import PatchedModel
from graphpatch.runtime.layers.surrogate import BackwardAs, Surrogate

LAYERS = (BackwardAs, GradientFilter, PatchedModel, Surrogate)

_MADE: dict[type, dict[str, type]] = {}  # by the class of all layers of a Keras


def for_tensorflow() -> dict[str, type]:
    """The classes for tf.keras: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set.

    Raises ImportError where Keras 3 runs on another backend than TensorFlow.
    """
    import tensorflow as tf

    layer = tf.keras.layers.Layer
    # `keras` itself: tf.keras lacks some of its modules.
    keras = importlib.import_module(layer.__module__.partition(".")[0])
    return _classes_for(layer, keras, "graphpatch.keras")


def for_legacy() -> dict[str, type]:
    """The classes for tf_keras. Raises ImportError where it is not installed."""
    import tf_keras

    return _classes_for(tf_keras.layers.Layer, tf_keras, "graphpatch.tf_keras")


def _classes_for(layer: type, keras: Any, module: str) -> dict[str, type]:
    """The classes for a Keras whose layers are of this class, registered with it."""
    if layer not in _MADE:
        _refuse_other_backend(keras)
        register = keras.utils.register_keras_serializable(package="graphpatch")
        found = {}
        for one in LAYERS:
            more = {"__module__": module, "__doc__": one.__doc__, "keras": keras}
            found[one.__name__] = register(type(one.__name__, (one, layer), more))
        _MADE[layer] = found
    return _MADE[layer]


def _refuse_other_backend(keras: Any) -> None:
    named = getattr(keras.backend, "backend", None)
    if named is not None and named() != "tensorflow":
        raise ImportError(
            f"the layers of graphpatch need the TensorFlow backend of Keras, and found "
            f"{named()!r}: set KERAS_BACKEND=tensorflow before Keras is imported"
        )
