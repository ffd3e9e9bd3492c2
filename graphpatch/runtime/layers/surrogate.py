"""Layers with one value forward and the gradient of something else backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphpatch.gradients.formula import Formula
from graphpatch.runtime.functions.replaced import backward_as, surrogate
from graphpatch.runtime.functions.tensors import as_tensor
from graphpatch.runtime.layers.base import UnchangedLayer


class Surrogate(UnchangedLayer):
    """Compute one expression forward, and take the gradient of another backward.

    Forward: `forward(x)`, bit for bit. Backward: the gradient of `backward(x)`, which Keras and
    TensorFlow differentiate; variables of `backward` are trained. Input: a floating tensor, of the
    shape and dtype that the expressions take. Both expressions are computed in training; the shape
    of `backward(x)` must be that of `forward(x)`, or broadcast to it.

    Args:
        forward: A formula of `x` (`"sign(x)"`), a Keras layer, or a function of a tensor that is
            registered with keras.saving.register_keras_serializable. It may be random.
        backward: Likewise.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        FormulaError: A formula is not valid.
        TypeError: `forward` or `backward` is neither of the three.
        ValueError: When called: the shapes do not fit, or `forward` has trainable variables that
            `backward` does not read, which would never be trained.

    When not to use it: where the gradient itself is known, not a function that has it:
    `graphpatch.override_gradient` takes the gradient.

    Example:
        >>> layer = graphpatch.keras.Surrogate("sign(x)", "tanh(4 * x)")
        >>> layer(tf.constant([-0.5, 0.5])).numpy()
        array([-1.,  1.], dtype=float32)
    """

    def __init__(self, forward: Any, backward: Any, **options: Any) -> None:
        super().__init__(**options)
        self.forward, self.backward = forward, backward
        self._values = _callable_of(forward), _callable_of(backward)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The forward expression, with the gradient of the other; Keras passes `training` on."""
        return surrogate(*self._values, inputs)

    def get_config(self) -> dict[str, Any]:
        """Formulas as text; layers and functions as Keras writes them."""
        own = {"forward": self._written(self.forward), "backward": self._written(self.backward)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """The layer of a config."""
        read = {key: cls._read(config[key]) for key in ("forward", "backward")}
        return cls(**{**config, **read})

    def _written(self, expression: Any) -> Any:
        if isinstance(expression, str):
            return expression
        return self.keras.saving.serialize_keras_object(expression)

    @classmethod
    def _read(cls, written: Any) -> Any:
        if not isinstance(written, dict):
            return written
        saving, name = cls.keras.saving, written["config"]
        if written["class_name"] == "function" and (found := saving.get_registered_object(name)):
            return found
        # tf_keras finds a layer of an .h5 file in its first way alone.
        old = cls.keras.__name__ == "tf_keras"
        read = cls.keras.layers.deserialize if old else saving.deserialize_keras_object
        return read(written)


def _callable_of(expression: Any) -> Callable[[Any], Any]:
    """What an expression computes of a tensor."""
    if callable(expression):
        return expression  # type: ignore[no-any-return]
    if not isinstance(expression, str):
        raise TypeError(
            f"Surrogate takes a formula of x, a Keras layer or a function, and found {expression!r}"
        )
    formula = Formula.parse(expression)

    def computed(x: Any) -> Any:
        from graphpatch.runtime.formula_in_tensorflow import formula_value

        return formula_value(formula, [as_tensor("Surrogate", x)])

    return computed


class BackwardAs(UnchangedLayer):
    """Take a pair of tensors; return the first, with the gradient of the second.

    Forward: `noisy`, bit for bit. Backward: the upstream gradient flows to `clean` alone. Input: a
    list `[noisy, clean]` of floating tensors of one shape, or `clean` broadcasts to `noisy`.
    Output: a tensor of the shape and dtype of `noisy`. `options` are those of keras.layers.Layer.

    Raises:
        TypeError: One of the two is not a floating or complex tensor.
        ValueError: There are not two inputs, or the shapes do not fit.

    When not to use it: where one layer computes both: `Surrogate` does.

    Example:
        >>> z = graphpatch.keras.BackwardAs()([tf.constant([2.1, 2.9]), tf.constant([2.0, 3.0])])
        >>> z.numpy()
        array([2.1, 2.9], dtype=float32)
    """

    def call(self, inputs: Any) -> Any:
        """The first, with the gradient of the second."""
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            raise ValueError("BackwardAs takes a list of two tensors, [noisy, clean]")
        return backward_as(*inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of `noisy`."""
        return input_shape[0]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """That of `noisy`."""
        return mask[0] if isinstance(mask, list | tuple) and mask else None
