"""Keras layers with a gradient of their own, for tf_keras: importing this registers them.

They are for models that are built with `import tf_keras`; graphpatch.keras has those for tf.keras.
A program that loads a saved model with such layers must import this module first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphpatch.runtime.layers import BackwardAs, GradientFilter, PatchedModel, Surrogate
else:
    from graphpatch.runtime.layers import for_legacy

    globals().update(for_legacy())

PatchedGraph = PatchedModel  # as early programs call it

__all__ = ["BackwardAs", "GradientFilter", "PatchedModel", "Surrogate"]
