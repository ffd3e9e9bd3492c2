"""The layer that returns its input as it is and changes the gradient that flows back."""

from __future__ import annotations

from typing import Any

from graphpatch.errors import RulesError
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import GradientSpec, LibraryGradient
from graphpatch.runtime.functions.filters import filter_gradient, library_gradient
from graphpatch.runtime.functions.specs import gradient_meant
from graphpatch.runtime.layers.base import UnchangedLayer


class GradientFilter(UnchangedLayer):
    """Return the input unchanged; pass the gradient that flows back to it through `gradient`.

    Forward: the input, bit for bit, in the same dtype, also under a mixed precision policy.
    Backward: what `gradient` computes of the upstream gradient, of the shape and dtype of the
    input. Input: a floating tensor of any shape, or a structure of them; masks are passed on.

    Args:
        gradient: A gradient as a rules file has it: a name of the library (`"reverse"`), a name
            with parameters (`{"clip": {"min": -0.1, "max": 0.1}}`, `{"scale": 0.5}`), or a formula
            of `dy` and `x` (`{"formula": "where(x > 0, dy, 0)"}`).
        adjustable: Whether the parameters are non-trainable weights, which `adjust` changes during
            training without tracing the model again. They are saved with the other weights.
            Default: False.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        RulesError: There is no such gradient, or a parameter is wrong; or `adjustable`, and the
            gradient has no parameters.
        FormulaError: The formula is not valid.
        TypeError: When called: the input is not a floating tensor.

    When not to use it: on a path that no gradient takes, such as integer inputs.

    Example:
        >>> layer = graphpatch.keras.GradientFilter({"reverse": 0.5})
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = 3.0 * layer(x)
        >>> tape.gradient(y, x).numpy()
        array([-1.5, -1.5], dtype=float32)
    """

    def __init__(self, gradient: GradientSpec, adjustable: bool = False, **options: Any) -> None:
        super().__init__(**options)
        found = gradient_meant("GradientFilter", gradient)
        self.gradient = gradient
        self.adjustable = adjustable
        self._named = found if isinstance(found, LibraryGradient) else None
        self._weights_of: dict[str, Any] = {}
        if adjustable and not (self._named and self._named.parameters):
            raise RulesError(f"GradientFilter: {gradient!r} has no parameters to adjust")

    def build(self, input_shape: Any) -> None:
        """Make the weights of an adjustable filter."""
        if self.adjustable and self._named is not None:
            for name, value in self._named.parameters:
                self._weights_of[name] = self.add_weight(
                    name=name,
                    shape=(),
                    dtype="float32",
                    initializer=self.keras.initializers.Constant(value),
                    trainable=False,
                )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The inputs, with the filtered gradient."""
        import tensorflow as tf

        if self.adjustable and self._named is not None:
            name, given = self._named.name, self._weights_of
            return tf.nest.map_structure(
                lambda x: library_gradient("GradientFilter", x, name, given), inputs
            )
        return tf.nest.map_structure(lambda x: filter_gradient(x, self.gradient), inputs)

    def adjust(self, **parameters: float) -> None:
        """Change parameters of an adjustable filter, which are float32 scalars.

        Forward nothing changes; backward the filter has the new values. Raises RulesError for a
        parameter that it does not have or a value that is not legal, and where the layer is not
        adjustable or has not been built.

        Example:
            >>> layer = graphpatch.keras.GradientFilter({"reverse": 0.0}, adjustable=True)
            >>> same = layer(tf.constant([1.0, 2.0]))
            >>> layer.adjust(strength=0.5)
        """
        if not self._weights_of or self._named is None:
            why = "has not been called yet" if self.adjustable else "is not adjustable"
            raise RulesError(f"GradientFilter: {self.gradient!r} {why}, so it cannot be adjusted")
        now = {name: float(weight.numpy()) for name, weight in self._weights_of.items()}
        for name, value in LIBRARY[self._named.name].checked({**now, **parameters}).items():
            self._weights_of[name].assign(value)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The gradient as a rules file has it."""
        own = {"gradient": self.gradient, "adjustable": self.adjustable}
        return {**super().get_config(), **own}
