"""The layer that computes a graph file, with the gradients that rules gave it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.application import apply
from graphpatch.errors import ModelError
from graphpatch.formats import Model, load
from graphpatch.formats.from_bytes import opened
from graphpatch.graph.wire import piece_bytes
from graphpatch.rules import Rule
from graphpatch.runtime.layers.base import UnchangedLayer
from graphpatch.runtime.layers.graph_function import graph_function


class PatchedModel(UnchangedLayer):
    """Compute a graph file; its gradients are those that the rules of the file give.

    Forward: what the graph computes without the rules, op by op bit for bit. Backward: its
    gradients, with the overrides that the file carries and those of `rules`, wherever Keras and
    TensorFlow differentiate the layer; nothing is to be registered. In functions that the graph
    calls (PartitionedCall) TensorFlow raises NotFoundError. The graph must hold its weights as
    constants, which the layer does not train. Input: a tensor of the dtype and shape of the graph's
    input, or of another floating dtype, as a mixed precision policy gives it, which is cast; for
    several inputs a list in the order of `inputs`, or a dict by the names in `inputs`. Output: a
    tensor, or a list in the order of `outputs`.

    Args:
        model: The path of a .pb, .pbtxt or .meta, its bytes, or a graphpatch.Model. The config of
            the layer holds the patched graph, weights included, so that a saved model needs no
            other file.
        inputs: The tensor that is given (`"image"`, `"split:1"`), or a list of them. One may lie
            inside of the graph: it is cut there.
        outputs: The tensor that is computed, or a list of them.
        rules: Rules to apply first: those of graphpatch.load_rules, or dicts. Default: none.
        **options: Those of keras.layers.Layer, such as `name`.

    Raises:
        ModelError: The file cannot be read, or is a TF2 SavedModel.
        OutputError: There is no such tensor, a placeholder is not among the inputs, or the graph
            holds variables, tables or v1 loops.
        RulesError: A rule is not valid.
        MatchError: A rule does not match as often as it expects.
        PatchError: A patch cannot be done.
        TypeError: `model` is of none of these kinds; when called: an input is of another dtype that
            is not cast.
        ValueError: When called: other inputs are given than those in `inputs`.

    When not to use it: to train the weights of the graph. In an .h5 file, which has no room for
    large configs: save as .keras.

    Example:
        >>> rules = graphpatch.load_rules("rules.json")
        >>> layer = graphpatch.keras.PatchedModel("model.pb", "x", "features", rules=rules)
        >>> layer(tf.zeros([1, 4, 4, 1])).shape
        TensorShape([1, 4, 4, 1])
    """

    def __init__(
        self,
        model: str | Path | bytes | Model,
        inputs: str | Sequence[str],
        outputs: str | Sequence[str],
        rules: Sequence[Rule | Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        self.outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        loaded = _loaded(model)
        if rules:
            loaded = apply(rules, loaded).model
        self._data = b"".join(map(piece_bytes, loaded.pieces()))
        reopened = opened(self._data, loaded.path)
        self._function = graph_function(reopened, self.inputs, self.outputs)

    def call(self, inputs: Any) -> Any:
        """The outputs of the graph."""
        found = self._function(*self._ordered(inputs))
        return found[0] if len(self.outputs) == 1 else list(found)

    def _ordered(self, inputs: Any) -> list[Any]:
        """The tensors that are given, in the order of `inputs`."""
        if isinstance(inputs, dict):
            if set(inputs) != set(self.inputs):
                raise ValueError(
                    f"PatchedModel takes {list(self.inputs)}, and found {sorted(inputs)}"
                )
            inputs = [inputs[name] for name in self.inputs]
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) != len(self.inputs):
            raise ValueError(
                f"PatchedModel takes {len(self.inputs)} inputs, {list(self.inputs)}, and found "
                f"{len(given)}"
            )
        dtypes = [tensor.dtype for tensor in self._function.inputs]
        return list(map(_of_dtype, self.inputs, given, dtypes))

    def get_config(self) -> dict[str, Any]:
        """The patched graph, compressed, as text."""
        data = base64.b64encode(zlib.compress(self._data)).decode()
        own = {"model": data, "inputs": self.inputs, "outputs": self.outputs}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """The layer of a config."""
        data = zlib.decompress(base64.b64decode(config["model"]))
        return cls(**{**config, "model": data})


def _of_dtype(name: str, given: Any, dtype: Any) -> Any:
    """What is given as a tensor of this dtype. Raises TypeError where it is not such a float."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(given, dtype_hint=dtype)
    if tensor.dtype != dtype and not (tensor.dtype.is_floating and dtype.is_floating):
        raise TypeError(
            f"PatchedModel: {name} is {dtype.name} in the graph, and found {tensor.dtype.name}"
        )
    return tf.cast(tensor, dtype)


def _loaded(model: str | Path | bytes | Model) -> Model:
    if isinstance(model, bytes):
        loaded = opened(model, "bytes")
    else:
        loaded = model if isinstance(model, Model) else load(model)
    if len(loaded.graphs) != 1 or loaded.graphs[0].around.is_object_based:
        raise ModelError(
            f"{loaded.path}: a {loaded.format} that TensorFlow 2 wrote, or with several "
            f"MetaGraphDefs; PatchedModel takes one graph with its weights as constants. Load a "
            f"patched TF2 SavedModel with tf.saved_model.load"
        )
    return loaded
