"""Rules on a live graph: in place where keys are enough, else in a patched copy of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphpatch.application import Result, RulesLike, apply, rules_of
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.formats import Model
from graphpatch.graph.check import BUILT
from graphpatch.rules import Rule
from graphpatch.runtime.live.counterparts import Counterparts
from graphpatch.runtime.live.gradient_keys import NoKeyError
from graphpatch.runtime.live.in_place import built_before, patched_in_place
from graphpatch.runtime.live.patched import PatchedGraph
from graphpatch.runtime.model_of_graph import model_of
from graphpatch.runtime.unconverted import unconverted

if TYPE_CHECKING:
    import tensorflow as tf


@unconverted
def patch_graph(
    rules: RulesLike,
    graph: tf.Graph | None = None,
    *,
    in_place: bool | None = None,
    allow_python: bool = False,
) -> PatchedGraph:
    """Apply rules to a live `tf.compat.v1` graph, each on the result of the one before.

    Forward: every tensor keeps its value, bit for bit. Backward: gradients that are built from now
    on are what the rules say; those that exist already stay, and `report["notes"]` names them.
    Where a key on an op is all that each rule takes, the graph is patched in place, as
    `gradient_override_map` would have done; else a patched copy is made, which a warning says, and
    `graph` stays as it is: go on with the `PatchedGraph`.

    Args:
        rules: A rules file's path, a list of dicts, a dict with `rules`, or `Rule`s.
        graph: The graph. Default: the default graph.
        in_place: True raises where keys are not enough; False makes a patched graph in any case.
        allow_python: Let {"python": "package.module:function"} import that module.

    Raises:
        RulesError: A rule is not valid.
        MatchError: A rule does not match as often as it expects.
        PatchError: A patch cannot be done, or the rules were applied to this graph before.
        ModelError: The graph cannot be exported, or is larger than protobuf's 2 GB.
        GraphpatchError: There is no graph, since TensorFlow executes eagerly.
        TypeError: `graph` is not a `tf.Graph`. Nothing is changed where anything is raised.

    When not to use it: for gradients that are built already; `rebuild_gradients` builds them anew.

    Example:
        >>> with tf.Graph().as_default():
        ...     x = tf.constant([2.0])
        ...     y = tf.nn.relu(x)
        ...     patched = graphpatch.patch_graph("rules.json")
        ...     dx = tf.gradients(patched.tensor(y), patched.tensor(x), tf.constant([-1.0]))[0]
        ...     print(tf.compat.v1.Session().run(dx))
        [0.]
    """
    found = _graph(graph)
    ready, model = rules_of(rules, allow_python), replace(model_of(found), live=True)
    if in_place is False:
        return _patched_by_rebuilding(ready, model, found, "in_place is False")
    try:
        return _in_place(ready, model, found)
    except NoKeyError as error:
        if in_place:
            raise
        patched = _patched_by_rebuilding(ready, model, found, str(error))
        warnings.warn(
            f"graphpatch.patch_graph made a patched copy of the graph, as {error}. The graph that "
            f"was given stays as it is: go on with the `graph` of what is returned, and get at "
            f"tensors with its `tensor`. in_place=False says that a copy is expected, "
            f"in_place=True raises instead",
            stacklevel=4,  # past `unconverted`
        )
        return patched


def _graph(graph: Any) -> Any:
    import tensorflow as tf

    if graph is None:
        if tf.executing_eagerly():
            raise GraphpatchError(
                "TensorFlow executes eagerly, so there is no default graph: give `graph`, or call "
                "patch_graph in `with graph.as_default():`"
            )
        return tf.compat.v1.get_default_graph()
    if not isinstance(graph, tf.Graph):
        raise TypeError(f"graph: expected a tf.Graph, found {type(graph).__name__}")
    return graph


def _in_place(rules: Sequence[Rule], model: Model, graph: Any) -> PatchedGraph:
    result = patched_in_place(rules, model, graph)
    return PatchedGraph(graph, True, _reported(result, graph, []), Counterparts(graph, graph))


def _patched_by_rebuilding(
    rules: Sequence[Rule], model: Model, graph: Any, reason: str
) -> PatchedGraph:
    from graphpatch.runtime.live.rebuilt_graph import rebuilt_graph

    if hasattr(graph, "outer_graph"):
        raise PatchError(
            f"a function that is being traced can be patched in place alone: {reason}; "
            f"graphpatch.apply takes its concrete function"
        )
    result = apply(rules, model)
    found, notes = rebuilt_graph(result.model, graph)
    report = _reported(result, graph, [f"a patched graph was made: {reason}", *notes])
    return PatchedGraph(found.new, False, {**report, "in_place": False}, found)


def _reported(result: Result, graph: Any, notes: Sequence[str]) -> dict[str, Any]:
    names = {match["op"] for rule in result.report["rules"] for match in rule["matches"]}
    stale = built_before(graph, names)
    told = [text for text in result.report["notes"] if not (stale and BUILT in text)]
    every = [*notes, *told, *stale]
    return {**result.report, "in_place": True, "notes": every}
