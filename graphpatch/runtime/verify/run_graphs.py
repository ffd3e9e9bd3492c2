"""Two graphs, run side by side in Sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphpatch.analysis.rule_words import rules_at
from graphpatch.analysis.surroundings import meta_around
from graphpatch.analysis.unsafe import apart_from_savers, refuse_unsafe
from graphpatch.analysis.verify.overrides import Reasons
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.graph import Graph
from graphpatch.match.nearest import nearest_names
from graphpatch.names import op_of
from graphpatch.runtime.running import VARIABLES, placeholders
from graphpatch.runtime.values import GUESSES
from graphpatch.runtime.verify import outputs
from graphpatch.runtime.verify.asked import Wanted
from graphpatch.runtime.verify.formulas import formulas
from graphpatch.runtime.verify.forward import Forward, forward
from graphpatch.runtime.verify.gradient import backward
from graphpatch.runtime.verify.imported import checkpoint, imported, initial, known, restored
from graphpatch.runtime.verify.result import Ran
from graphpatch.runtime.verify.session_gradients import Graphed
from graphpatch.runtime.verify.unfired import sort_out

TARGETS = 32  # outputs whose gradients are taken, where nobody names them


def run_graphs(one: Model, other: Model, left: Graph, right: Graph, wanted: Wanted) -> Ran:
    """Run a graph of a model and its patched copy, and compare."""
    for graph in (left, right):
        refuse_unsafe(graph, wanted.allow_unsafe_ops, [])  # what an import may run
    try:
        before = imported(one, left)
    except ModelError as error:
        return Ran(why=f"{one.path}: {error}")
    try:
        after = imported(other, right)
    except ModelError as error:
        return Ran(why=f"{other.path}: {error}", is_wrong=True)
    tensors, saved = _tensors(before, after, left, right, wanted), list[str]()
    if not wanted.allow_unsafe_ops:
        tensors, saved = apart_from_savers(left, tensors)
    written = outputs.writing(before, tensors)
    tensors = [name for name in tensors if name not in written]
    for graph in (left, right):
        refuse_unsafe(graph, wanted.allow_unsafe_ops, [*tensors, *_initialisers(left)])
    runs = _fed(one, before, tensors, wanted), Graphed(after)
    runs[1].feeds = runs[0].feeds
    own = restored(after, checkpoint(other))
    runs[1].variables = {**known(after, runs[0].variables), **own}
    ran = _ran(other, left, right, runs, tensors, wanted)
    ran.forward.uncompared |= dict.fromkeys(written, "it comes after a write to a variable")
    ran.forward.uncompared |= dict.fromkeys(saved, "it saves variables to files, or restores them")
    return ran


def _ran(
    model: Model,
    left: Graph,
    right: Graph,
    runs: tuple[Graphed, Graphed],
    tensors: Sequence[str],
    wanted: Wanted,
) -> Ran:
    one, other = runs
    ran = Ran(fed={name: _shape(value) for name, value in one.feeds.items()})
    ran.forward = forward(one, other, tensors)
    sources = _named(one.graph, wanted.sources) or outputs.sources(one.graph, one.feeds)
    targets = _targets(one.graph, ran.forward, wanted, ran)
    if not sources:
        ran.untaken.append(
            "nothing is fed that is a float, and there are no float variables or constants"
        )
    if sources and targets:
        values = {name: ran.forward.values[name] for name in targets}
        ran.backward = backward(one, other, sources, values)
    pairs = [(pair.source, pair.target) for pair in ran.backward.pairs]
    sort_out(left, Reasons(model, right, pairs), ran)
    ran.formulas = formulas(right, other)
    return ran


def _targets(graph: Any, found: Forward, wanted: Wanted, ran: Ran) -> list[str]:
    """The float outputs of which gradients are taken."""
    named = _named(graph, wanted.targets)
    if named:
        return [name for name in named if name in found.values]
    ends = [name for name in outputs.ends(graph) if name in found.compared]
    floats = [name for name in ends if outputs.is_differentiable(graph.get_tensor_by_name(name))]
    if len(floats) > TARGETS:
        ran.untaken.append(f"of {len(floats) - TARGETS} more outputs; --to names those that matter")
    return floats[:TARGETS]


def _tensors(before: Any, after: Any, left: Graph, right: Graph, wanted: Wanted) -> list[str]:
    """What is compared: outputs, those of signatures, what rules were at, what is asked for."""
    touched = [f"{op}:0" for body, op in rules_at(right) if body == "main"]
    asked = [*outputs.outputs(before), *_signed(left), *touched, *_named(before, wanted.targets)]
    # An import adds Exits that freezing pruned; what is compared is what the file has.
    held = (name for name in dict.fromkeys(asked) if op_of(name) in left.main.by_name)
    there = list(outputs.fetchable(before, held))
    return list(outputs.fetchable(after, there))


def _signed(graph: Graph) -> Iterator[str]:
    """The outputs of the signatures around a graph."""
    for signature in meta_around(graph).signature_def.values():
        yield from (info.name for info in signature.outputs.values() if info.name)


def _named(graph: Any, names: Sequence[str]) -> list[str]:
    """The names of tensors as TensorFlow spells them. Raises ModelError for what is none."""
    found = []
    for name in names:
        full = name if ":" in name else f"{name}:0"
        try:
            graph.get_tensor_by_name(full)
        except (KeyError, ValueError):
            legal = [op.name for op in graph.get_operations()]
            near = ", ".join(nearest_names(name.partition(":")[0], legal))
            raise ModelError(f"no tensor is named {name!r}; nearest: {near or 'none'}") from None
        found.append(full)
    return found


def _fed(model: Model, graph: Any, tensors: Sequence[str], wanted: Wanted) -> Graphed:
    """The graph with the guess at unknown shapes with which most of it runs."""
    given = dict(zip(_named(graph, list(wanted.feed)), wanted.feed.values(), strict=True))
    values = restored(graph, checkpoint(model))
    best, most, tried = Graphed(graph), -1, list[list[str]]()
    for size, whole in GUESSES:
        feeds = placeholders(graph, size, whole, given)
        variables = initial(graph, values, size, whole)
        shapes = [_shape(value) for value in (*feeds.values(), *variables.values())]
        if shapes in tried:
            continue
        tried.append(shapes)
        running = Graphed(graph, feeds, variables)
        count = len(running.run(tensors, False)[0])
        if count > most:
            best, most = running, count
        if count == len(tensors):
            break
    return best


def _initialisers(graph: Graph) -> list[str]:
    """What variables may be assigned first."""
    variables = [index for op in VARIABLES for index in graph.main.by_type.get(op, ())]
    names = (f"{graph.main.heads.names[index]}/Assign" for index in variables)
    return [name for name in names if name in graph.main.by_name]


def _shape(value: Any) -> str:
    return str(list(getattr(value, "shape", ())))
