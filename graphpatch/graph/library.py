"""What the bodies of a graph share: functions as op types, their gradients, restored ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from graphpatch import opdefs

if TYPE_CHECKING:
    from graphpatch.graph.graph import Graph
from tensorboard.compat.proto.function_pb2 import FunctionDef


class Restored(msgspec.Struct, frozen=True, eq=False):
    """The gradient of the ops whose `_gradient_op_type` is `key`.

    tf.saved_model.load registers it. TensorFlow calls it with the upstream gradients alone: what it
    reads besides are tensors of another function that the object graph binds to its last arguments,
    as for tf.custom_gradient.

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


class Library(msgspec.Struct, eq=False):
    """The functions of a GraphDef, as far as one who calls them must know.

    `signatures` has each function as the op type that a call of it is, `gradients` the name of
    its gradient function where there is one. `producer` is the GraphDef's version. `graph` gives
    the graph that they are of; None for bodies on their own.
    """

    signatures: dict[str, opdefs.OpDef] = msgspec.field(default_factory=dict)
    gradients: dict[str, str] = msgspec.field(default_factory=dict)
    producer: int = 0
    graph: Callable[[], Graph | None] = lambda: None

    def opdef(self, op: str) -> opdefs.OpDef | None:
        """What this op type looks like, or None where neither library nor TensorFlow has it."""
        return self.signatures.get(op) or opdefs.lookup(op)

    def copy(self) -> Library:
        """The same functions, to be added to without this one seeing it."""
        return Library(dict(self.signatures), dict(self.gradients), self.producer)
