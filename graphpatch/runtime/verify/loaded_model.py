"""A TF2 SavedModel as tf.saved_model.load gives it: its signatures, and gradients on a tape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.formats import Model
from graphpatch.formats.folder import refuse_odd_files
from graphpatch.formats.model import MESSAGE
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import OpKey
from graphpatch.runtime.graph_run import first_line
from graphpatch.runtime.tf_gradients import GradientAnswer, recorded
from graphpatch.runtime.values import Values, seeded_value
from graphpatch.runtime.verify.seeded import own_names, set_seeds


@dataclass(eq=False)
class LoadedSavedModel:
    """A SavedModel in a folder; tensors are called `signature:name`.

    Each run loads it anew where it has random ops, which else would draw on.
    """

    folder: Path
    feeds: Values = field(default_factory=dict)
    is_random: bool = False
    _loaded: Any = None

    def signatures(self) -> Mapping[str, Any]:
        """The functions of the model that have names for their inputs and outputs."""
        import tensorflow as tf

        if self._loaded is None or self.is_random:
            self._loaded = tf.saved_model.load(str(self.folder))
        found: Mapping[str, Any] = self._loaded.signatures
        return found

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot."""
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        functions = self.signatures()
        for key in dict.fromkeys(_input_name(name) for name in fetches):
            wanted = [name for name in fetches if _input_name(name) == key]
            try:
                with _optimised(optimise):
                    found = functions[key](**self._arguments(key, functions[key]))
            except Exception as error:  # whatever TensorFlow says is the reason
                reasons |= dict.fromkeys(wanted, first_line(error))
                continue
            values |= {name: np.asarray(found[name.removeprefix(f"{key}:")]) for name in wanted}
        return values, reasons

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source, as a tape gives it."""
        import tensorflow as tf

        key = _input_name(target)
        near = [name for name in sources if _input_name(name) == key]
        function = self.signatures()[key]
        with recorded() as asked:
            try:
                given = self._arguments(key, function)
                with tf.GradientTape() as tape:
                    xs = [given[name.removeprefix(f"{key}:")] for name in near]
                    tape.watch(xs)
                    y = function(**given)[target.removeprefix(f"{key}:")]
                found = tape.gradient(y, xs, output_gradients=tf.constant(dy, y.dtype))
            except Exception as error:  # whatever a gradient function raises is the answer
                failed = GradientAnswer("error", says=f"a tape raises {first_line(error)}")
                return dict.fromkeys(sources, failed), asked
        there = {name: _dense_gradient(dx) for name, dx in zip(near, found, strict=True)}
        return {name: there.get(name, GradientAnswer("none")) for name in sources}, asked

    def _arguments(self, key: str, function: Any) -> dict[str, Any]:
        import tensorflow as tf

        specs = function.structured_input_signature[1]
        return {name: tf.constant(self.feeds[f"{key}:{name}"], specs[name].dtype) for name in specs}


def _dense_gradient(dx: Any) -> GradientAnswer:
    import tensorflow as tf

    if dx is None:
        return GradientAnswer("none")
    return GradientAnswer("tensor", np.asarray(tf.convert_to_tensor(dx)))


def _input_name(name: str) -> str:
    return name.partition(":")[0]


def seeded_copy(model: Model, folder: Path) -> LoadedSavedModel:
    """The model in a folder of its own, its random ops seeded, its variables those of the model."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if not model.in_memory:
        refuse_odd_files(Path(model.path))
    message = SavedModel.FromString(b"".join(map(piece_bytes, model.pieces())))
    found = []
    for meta, graph in zip(message.meta_graphs, model.graphs, strict=True):
        found += set_seeds(meta.graph_def, own_names(graph))
        for node in meta.object_graph_def.nodes:  # of an optimiser, which a loader may not know
            node.ClearField("slot_variables")
    folder.mkdir()
    (folder / MESSAGE).write_bytes(message.SerializeToString())
    for path in () if model.in_memory else Path(model.path).iterdir():
        if path.name not in {MESSAGE, "saved_model.pbtxt", "fingerprint.pb"}:
            (folder / path.name).symlink_to(path.resolve())
    return LoadedSavedModel(folder, is_random=bool(found))


def signature_feeds(
    saved: LoadedSavedModel, size: int, whole: tuple[int, ...], given: Values
) -> dict[str, Any]:
    """What each input of each signature is fed: what is given, or seeded values."""
    found = {}
    for key, function in saved.signatures().items():
        for name, spec in function.structured_input_signature[1].items():
            full = f"{key}:{name}"
            value = next((given[one] for one in (full, f"{name}:0") if one in given), None)
            if value is None:
                value = seeded_value(full, spec.dtype, spec.shape, size, whole)
            found[full] = value
    return found


def signature_outputs(saved: LoadedSavedModel) -> Iterator[str]:
    """The outputs of each signature."""
    for key, function in saved.signatures().items():
        yield from (f"{key}:{name}" for name in function.structured_outputs)


def signature_inputs(saved: LoadedSavedModel) -> Iterator[str]:
    """The inputs of each signature."""
    for key, function in saved.signatures().items():
        yield from (f"{key}:{name}" for name in function.structured_input_signature[1])


def floats(saved: LoadedSavedModel) -> Iterator[str]:
    """The outputs of which gradients can be taken."""
    for key, function in saved.signatures().items():
        for name, spec in function.structured_outputs.items():
            if spec.dtype.is_floating or spec.dtype.is_complex:
                yield f"{key}:{name}"


def signature_sources(saved: LoadedSavedModel) -> Iterator[str]:
    """The inputs of signatures by which gradients can be taken."""
    for key, function in saved.signatures().items():
        for name, spec in function.structured_input_signature[1].items():
            if spec.dtype.is_floating or spec.dtype.is_complex:
                yield f"{key}:{name}"


@contextmanager
def _optimised(optimise: bool) -> Iterator[None]:
    """Functions as TensorFlow optimises them, or op by op."""
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimise})
    try:
        yield
    finally:
        was = before.get("disable_meta_optimizer", False)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": was})
