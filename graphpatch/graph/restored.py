"""Gradients that tf.saved_model.load registers when it restores a TF2 SavedModel.

The library names a function and the key of its gradient (`registered_gradients`). TensorFlow calls
it with the upstream gradients alone: what it reads besides are tensors of another function that
the object graph binds to its last arguments, as it does for tf.custom_gradient.
"""

from __future__ import annotations

import msgspec
from tensorboard.compat.proto.function_pb2 import FunctionDef


class Restored(msgspec.Struct, frozen=True, eq=False):
    """The gradient of the ops whose `_gradient_op_type` is `key`.

    `results` says for each input of the op which output of the function is its gradient, and is
    empty where there is none. The last arguments, `captured`, are those of the same names of the
    function `of`, in which the op stands.
    """

    key: str
    function: FunctionDef
    results: tuple[str, ...]
    captured: tuple[str, ...] = ()
    of: str = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        name: str = self.function.signature.name
        return name
