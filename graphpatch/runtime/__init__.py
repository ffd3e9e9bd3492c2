"""The only folder that imports TensorFlow: with the first thing that is asked of `tf`.

So modules here can be imported by what needs no TensorFlow. `from graphpatch.runtime import tf` is
TensorFlow for all of them; `graph_run.require_tensorflow` says what needs it where it is missing.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["tf"]

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _TensorFlow:
        def __getattr__(self, name: str) -> Any:
            import tensorflow

            return getattr(tensorflow, name)

    tf = _TensorFlow()
