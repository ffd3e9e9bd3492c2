"""What a GraphDef has no place for."""

from __future__ import annotations

# What there is to say of a .pb, and not of the .meta that it may be written as.
NO_CONTEXTS = (
    "v1 loops or branches: tf.gradients needs their contexts, for which a .pb has no place; write "
    "a .meta (-o NAME.meta), or load it with graphpatch.import_model"
)
