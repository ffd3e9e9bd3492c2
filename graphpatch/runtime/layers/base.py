"""What the layers use of Keras, whichever Keras it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class KerasLayer:
        """keras.layers.Layer, as far as the layers use it."""

        supports_masking: bool
        built: bool

        def __init__(self, **options: Any) -> None: ...

        def __call__(self, inputs: Any, **options: Any) -> Any:
            """The outputs for a tensor, or for a list or dict of tensors."""
            ...

        def build(self, input_shape: Any) -> None:
            """Make the weights."""
            ...

        def add_weight(self, **options: Any) -> Any:
            """Make one weight."""
            ...

        def get_config(self) -> dict[str, Any]:
            """What the layer is made of."""
            ...
else:
    KerasLayer = object


class UnchangedLayer(KerasLayer):
    """A layer that passes values on as they are: not cast to the dtype of a mixed policy."""

    keras: Any  # the Keras that the class was built for

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"autocast": False, **options})
        self.supports_masking = True
