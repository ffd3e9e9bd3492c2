"""A TF2 SavedModel as its process runs it: loaded, and called by its signatures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.graph import Graph
from graphpatch.names import OpKey
from graphpatch.runtime.graph_run import first_line
from graphpatch.runtime.tf_gradients import GradientAnswer
from graphpatch.runtime.values import GUESSES, Values
from graphpatch.runtime.verify import loaded_model
from graphpatch.runtime.verify.branch_watch import in_functions
from graphpatch.runtime.verify.formulas import FormulaCheck, check_formulas
from graphpatch.runtime.verify.side_graph import registered_keys


class SavedSide:
    """A SavedModel that was loaded, with what it is fed. Tensors are called `signature:name`."""

    def __init__(self, model: Model, graph: Graph, named: Model) -> None:
        import tensorflow as tf

        self.graph = graph
        self._folder = tempfile.TemporaryDirectory()
        if not tf.executing_eagerly():
            raise ModelError("TensorFlow does not execute eagerly, which a TF2 SavedModel needs")
        self.saved = loaded_model.seeded_copy(model, Path(self._folder.name, "model"))
        try:
            self.saved.signatures()
        except Exception as error:  # whatever the loader says is the reason
            raise ModelError(f"tf.saved_model.load raises {first_line(error)}") from error

    def names(self, given: Sequence[str]) -> list[str]:
        """The names of inputs and outputs. Raises ModelError for what is none."""
        legal = [
            *loaded_model.signature_inputs(self.saved),
            *loaded_model.signature_outputs(self.saved),
        ]
        for name in given:
            if name not in legal:
                raise ModelError(
                    f"no input or output is named {name!r}; there are: {', '.join(legal)}"
                )
        return list(given)

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> list[str]:
        """What can be compared: the outputs of signatures."""
        self.names(targets)
        return list(loaded_model.signature_outputs(self.saved))

    def there(self, names: Sequence[str]) -> list[str]:
        """Of these outputs those that there are."""
        held = set(loaded_model.signature_outputs(self.saved))
        return [name for name in names if name in held]

    def writing(self, names: Sequence[str]) -> list[str]:
        """None: a signature is called as a whole."""
        return []

    def choose(self, tensors: Sequence[str], given: Values) -> tuple[Values, Values]:
        """What it is fed: the guess at unknown shapes with which most of it runs."""
        best, most = self.saved.feeds, -1
        for size, whole in GUESSES:
            self.saved.feeds = loaded_model.signature_feeds(self.saved, size, whole, given)
            count = len(self.saved.run(tensors, False)[0])
            if count > most:
                best, most = self.saved.feeds, count
            if count == len(tensors):
                break
        self.saved.feeds = best
        return best, {}

    def values(self, variables: Values) -> None:
        """Variables have the values of the model's own checkpoint."""

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.saved.feeds = feeds

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those outputs that can be computed, and why the others cannot."""
        return self.saved.run(fetches, optimise)

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""
        return self.saved.gradients(sources, target, dy)

    def sources(self, patched: Sequence[str]) -> list[str]:
        """The inputs by which gradients can be taken."""
        del patched  # all ops are in functions, where nobody can look
        return list(loaded_model.signature_sources(self.saved))

    def targets(self, compared: Sequence[str], patched: Sequence[str]) -> list[str]:
        """Of these outputs those of which gradients can be taken."""
        del patched  # all ops are in functions, where nobody can look
        floats = set(loaded_model.floats(self.saved))
        return [name for name in compared if name in floats]

    def trained(self, names: Sequence[str]) -> list[str]:
        """None: all ops are in functions, where nobody can look."""
        return []

    def formulas(self) -> list[FormulaCheck]:
        """Each formula that the graph carries, against numpy."""
        return check_formulas(self.graph, None)

    def branches(self) -> dict[str, tuple[bool, bool]]:
        """None: all ops are in functions, where nobody can look."""
        return {}

    def unwatched(self) -> dict[str, int]:
        """How many ops that take branches stand where nobody can look, by where that is."""
        return {"functions": in_functions(self.graph)}

    def steered(self, names: Sequence[str], upwards: bool) -> Mapping[str, Any]:
        """Nothing: what is in functions cannot be fed."""
        return {}

    def registered(self) -> set[str]:
        """The keys for which gradients are registered in this process."""
        return registered_keys()
