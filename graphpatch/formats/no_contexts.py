"""What a GraphDef cannot hold."""

from __future__ import annotations

# A note on a .pb; a .meta of the same graph holds its contexts.
NO_CONTEXTS = (
    "v1 loops or branches: tf.gradients needs their contexts, which a .pb cannot hold; write "
    "a .meta (-o NAME.meta), or load it with graphpatch.import_model"
)
