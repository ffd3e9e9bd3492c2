"""The one construction that all functions on tensors use: values forward, a gradient backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

BackwardFunction: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
"""(inputs, outputs, upstream gradients) -> the gradient of each input, or None."""


def with_gradient(
    values: Sequence[Any],
    inputs: Sequence[Any],
    backward: BackwardFunction,
    reads_outputs: bool = False,
) -> list[Any]:
    """The values, bit for bit, with `backward` as their gradient by the inputs.

    Nothing flows back to what the values are computed from. With `reads_outputs` the outputs that
    `backward` is given carry the same gradient, so that second derivatives pass through them, too.
    """
    import tensorflow as tf

    count = len(values)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def carry(*tensors: Any) -> Any:
        kept, given = tensors[:count], tensors[count:]

        def gradient(*upstream: Any) -> list[Any]:
            outputs = with_gradient(kept, given, backward, True) if reads_outputs else kept
            return [*[None] * count, *backward(given, outputs, upstream)]

        return tuple(tf.identity(value) for value in kept), gradient

    return list(carry(*(tf.stop_gradient(value) for value in values), *inputs))
