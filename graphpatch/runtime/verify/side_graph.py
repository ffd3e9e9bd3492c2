"""A graph as its process runs it: in a Session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.analysis.gradient_scope import GradientScope, gradient_scopes
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.container import meta_around
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.op_types import CALLS
from graphpatch.match.nearest import nearest_names
from graphpatch.names import OpKey, op_of
from graphpatch.runtime.graph_run import (
    GraphRun,
    first_line,
    may_be_endless,
    seeded_feeds,
)
from graphpatch.runtime.tf_gradients import (
    GradientAnswer,
    RaisedError,
    gradients_or_raised,
    recorded,
)
from graphpatch.runtime.values import GUESSES, Values
from graphpatch.runtime.verify import outputs, seeded
from graphpatch.runtime.verify.branch_watch import BranchWatch, in_functions
from graphpatch.runtime.verify.formulas import FormulaCheck, check_formulas
from graphpatch.runtime.verify.outputs import writes
from graphpatch.runtime.verify.seeded import (
    checkpoint,
    initial_values,
    known_variables,
    restored_values,
    seeded_graph,
)
from graphpatch.runtime.waiting import waiting_ops


@dataclass(eq=False)
class DifferentiableGraph(GraphRun):
    """A tf.Graph that is run, and differentiated."""

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""
        there, asked = _built_gradients(self, sources, target, dy)
        tensors = {name: one.value for name, one in there.items() if one.kind == "tensor"}
        return {**there, **_values_run(self, tensors)}, asked


def _built_gradients(
    running: GraphRun, sources: Sequence[str], target: str, dy: Any
) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
    import tensorflow as tf

    with running.graph.as_default(), recorded() as asked:
        upstream = tf.constant(dy, running.graph.get_tensor_by_name(target).dtype)
        try:
            found = gradients_or_raised(running.graph, target, sources, upstream, dense=True)
        except RaisedError as error:
            return {name: GradientAnswer("error", says=str(error)) for name in sources}, asked
    return {
        name: GradientAnswer("none") if dx is None else GradientAnswer("tensor", dx)
        for name, dx in zip(sources, found, strict=True)
    }, asked


def _values_run(running: GraphRun, tensors: Mapping[str, Any]) -> dict[str, GradientAnswer]:
    """The values, all in one run; where that fails, each in a run of its own.

    Where it takes too long, all fail: each alone might take as long again.
    """
    import tensorflow as tf

    try:
        values = running.evaluate(tensors) if tensors else {}
    except Exception as error:  # what TensorFlow raises there is told
        if len(tensors) == 1 or isinstance(error, tf.errors.DeadlineExceededError):
            failed = GradientAnswer("error", says=f"running it fails: {first_line(error)}")
            return dict.fromkeys(tensors, failed)
        alone = [_values_run(running, {name: tensor}) for name, tensor in tensors.items()]
        return {name: one for found in alone for name, one in found.items()}
    return {name: GradientAnswer("tensor", np.asarray(value)) for name, value in values.items()}


class GraphSide:
    """A graph that was imported, with what it is fed. `named` is the model as the user names it."""

    def __init__(self, model: Model, graph: ModelGraph, named: Model) -> None:
        self.model, self.graph = model, graph
        self.prefix = checkpoint(named)
        self.tf_graph = seeded_graph(model, graph)
        types = (op_type for body in graph.bodies for op_type in body.by_type)
        self.is_limited = may_be_endless(types)
        self.running = self._graphed(self.tf_graph)
        self._branches: BranchWatch | None = None

    def _graphed(
        self, tf_graph: Any, feeds: Values | None = None, variables: Values | None = None
    ) -> DifferentiableGraph:
        return DifferentiableGraph(
            tf_graph, feeds or {}, variables or {}, is_limited=self.is_limited
        )

    def names(self, given: Sequence[str]) -> list[str]:
        """The names of tensors as TensorFlow spells them. Raises ModelError for what is none."""
        return [self._full_name(name) for name in given]

    def _full_name(self, name: str) -> str:
        full = name if ":" in name else f"{name}:0"
        try:
            self.tf_graph.get_tensor_by_name(full)
        except (KeyError, ValueError):
            legal = [op.name for op in self.tf_graph.get_operations()]
            near = ", ".join(nearest_names(name.partition(":")[0], legal))
            raise ModelError(f"no tensor is named {name!r}; nearest: {near or 'none'}") from None
        return full

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> list[str]:
        """What can be compared: outputs, those of signatures, `more`, and what is asked for."""
        signed = self._signed()
        asked = [*outputs.result_tensors(self.tf_graph), *signed, *more, *self.names(targets)]
        # An import adds Exits that freezing pruned; what is compared is what the file has.
        held = (name for name in dict.fromkeys(asked) if op_of(name) in self.graph.main.by_name)
        return self.there(list(held))

    def _signed(self) -> Iterator[str]:
        """The outputs of the signatures around the graph."""
        for signature in meta_around(self.graph).signature_def.values():
            yield from (info.name for info in signature.outputs.values() if info.name)

    def there(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that there are, and that can be fetched."""
        return list(outputs.fetchable(self.tf_graph, names))

    def writing(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that come after an op that writes to a variable."""
        return outputs.writing(self.tf_graph, names)

    def choose(self, tensors: Sequence[str], given: Values) -> tuple[Values, Values]:
        """What it is fed, and what its variables hold: the guess with which most of it runs."""
        named = dict(zip(self.names(list(given)), given.values(), strict=True))
        values = restored_values(self.tf_graph, self.prefix)
        best, most, tried = self._graphed(self.tf_graph), -1, list[list[str]]()
        for size, whole in GUESSES:
            feeds = seeded_feeds(self.tf_graph, size, whole, named)
            variables = initial_values(self.tf_graph, values, size, whole)
            shapes = [str(np.shape(value)) for value in (*feeds.values(), *variables.values())]
            if shapes in tried:
                continue
            tried.append(shapes)
            running = self._graphed(self.tf_graph, feeds, variables)
            count = len(running.run(tensors, False)[0])
            if count > most:
                best, most = running, count
            if count == len(tensors):
                break
        self.running = best
        return best.feeds, best.variables

    def values(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        own = restored_values(self.tf_graph, self.prefix)
        self.running.variables = {**known_variables(self.tf_graph, variables), **own}

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.running.feeds = feeds

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot."""
        return (self._as_stored() if optimise else self.running).run(fetches, optimise)

    def _as_stored(self) -> DifferentiableGraph:
        """The graph whose calls have TensorFlow optimise their functions as the model says."""
        if not any(CALLS & body.by_type.keys() for body in self.graph.bodies):
            return self.running
        graph = seeded_graph(self.model, self.graph, optimise=True)
        return self._graphed(graph, self.running.feeds, self.running.variables)

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, GradientAnswer], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""
        return self.running.gradients(sources, target, dy)

    def sources(self, patched: Sequence[str]) -> list[str]:
        """The tensors by which gradients are taken, where nobody names them."""
        return outputs.default_sources(self.tf_graph, self.running.feeds, patched)

    def targets(self, compared: Sequence[str], patched: Sequence[str]) -> list[str]:
        """Of these tensors those of which gradients are taken, where nobody names them.

        First come those that are computed from the ops that rules patched.
        """
        ends = [name for name in outputs.unread_results(self.tf_graph) if name in set(compared)]
        tensors = map(self.tf_graph.get_tensor_by_name, ends)
        found = [tensor for tensor in tensors if outputs.is_differentiable(tensor)]
        ops = {op.name: op for op in self.tf_graph.get_operations()}
        behind = waiting_ops([ops[name] for name in patched if name in ops])
        found.sort(key=lambda tensor: tensor.op not in behind)
        return [tensor.name for tensor in found]

    def trained(self, names: Sequence[str]) -> list[str]:
        """Of these tensors those that an optimizer computes from its gradients."""
        ops = trained(self.tf_graph, gradient_scopes(self.graph.main))
        return [name for name in names if self.tf_graph.get_tensor_by_name(name).op in ops]

    def formulas(self) -> list[FormulaCheck]:
        """Each formula that the graph carries, against numpy."""
        return check_formulas(self.graph, self.running)

    def branches(self) -> dict[str, tuple[bool, bool]]:
        """For each op that takes branches: whether the values that it is fed take each of them."""
        self._branches = self._branches or BranchWatch(self.tf_graph)
        return self._branches.taken(self.running)

    def unwatched(self) -> dict[str, int]:
        """How many ops that take branches stand where nobody can look, by where that is."""
        self._branches = self._branches or BranchWatch(self.tf_graph)
        inside = self._branches.hidden
        return {"v1 loops or branches": inside, "functions": in_functions(self.graph)}

    def steered(self, names: Sequence[str], upwards: bool) -> Mapping[str, Any]:
        """What to feed right at these ops, so that they take the branches that they did not."""
        self._branches = self._branches or BranchWatch(self.tf_graph)
        return self._branches.steered(self.running, names, upwards)

    def probed(
        self, places: Sequence[OpKey], sources: Sequence[str], targets: Mapping[str, Any]
    ) -> set[OpKey]:
        """Those of these ops whose gradient functions run; `targets` with their upstream gradient.

        They are in functions that TensorFlow differentiates in C++.
        """
        graph = seeded_graph(self.model, self.graph, places)
        running = self._graphed(graph, self.running.feeds, self.running.variables)
        since = seeded.printed_bytes()
        for target, dy in targets.items():
            running.gradients(sources, target, dy)
        return seeded.fired_since(places, since)

    def registered(self) -> set[str]:
        """The keys for which gradients are registered in this process."""
        return registered_keys()


def registered_keys() -> set[str]:
    """The keys for which gradients are registered in this process."""
    from tensorflow.python.framework import ops

    return set(ops.gradient_registry.list())


def trained(graph: Any, scopes: Sequence[GradientScope]) -> set[Any]:
    """The gradients that update variables, and the ops that are computed from them.

    Gradients of which a loss is computed, as a gradient penalty, are not among them: they come
    before the gradients of that loss.
    """
    inside = [[op for op in graph.get_operations() if one.holds(op.name)] for one in scopes]
    found: set[Any] = set()
    for ops in inside:
        behind = waiting_ops(ops, control=False)
        before_others = any(op in behind for other in inside if other is not ops for op in other)
        if not before_others and any(map(writes, behind)):
            found |= behind
    return found
