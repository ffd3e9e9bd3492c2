"""Keras layers with a gradient of their own, for tf.keras: importing this registers them.

`tf.keras` is Keras 3, or tf_keras where TF_USE_LEGACY_KERAS is set. For models that are built with
`import tf_keras` there is graphpatch.tf_keras. A program that loads a saved model with such layers
must import this module first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphpatch.runtime.layers import BackwardAs, GradientFilter, PatchedModel, Surrogate
else:
    from graphpatch.runtime.layers import for_tensorflow

    globals().update(for_tensorflow())

PatchedGraph = PatchedModel  # as early programs call it

__all__ = ["BackwardAs", "GradientFilter", "PatchedModel", "Surrogate"]
