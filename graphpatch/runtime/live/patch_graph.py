"""Rules on a live graph: in place where keys are enough, else in a patched copy of the graph."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphpatch.application import Result, RulesLike, apply, rules_of
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.formats import Model
from graphpatch.graph import attrs, provenance
from graphpatch.graph.attrs import OUTPUT_SHAPES
from graphpatch.graph.check import BUILT
from graphpatch.graph.node import Node
from graphpatch.rules import Rule
from graphpatch.runtime.live.keys import NoKeyError, by_key
from graphpatch.runtime.live.rebuilt_graph import Counterparts, is_assignment, rebuilt_graph
from graphpatch.runtime.model_of_graph import model_of
from graphpatch.runtime.register import register_key
from graphpatch.runtime.unconverted import unconverted
from graphpatch.table import plural, short

if TYPE_CHECKING:
    import tensorflow as tf


WRITTEN_ATTRS = (attrs.OVERRIDE, provenance.PROVENANCE_ATTR)


def patched_in_place(rules: Sequence[Rule], model: Model, graph: Any) -> Result:
    """Apply rules to the live graph that `model` was taken from, by keys on its ops.

    All rules are tried on the model first: where one fails, the graph is left as it was. Raises
    NoKeyError where a key cannot do what a rule says, and what `apply` raises.
    """
    if graph.finalized:
        raise NoKeyError("the graph is finalized, so no gradient can be built in it any more")
    keys: dict[str, None] = {}
    result = apply([by_key(rule, False, keys) for rule in rules], model)
    main = result.model.graphs[0].main
    changed = [Node(main, index) for index in sorted(main.edited)]
    ops = {node.name: graph.get_operation_by_name(node.name) for node in changed}
    for node in changed:
        _refuse_shadowed(node, ops[node.name])
    register_all(keys)
    with graph._mutation_lock():  # no Session runs meanwhile
        for node in changed:
            write_key(node, ops[node.name])
    return result


def register_all(keys: Iterable[str]) -> None:
    """Register keys of ours with TensorFlow in this process; others are left to their owners."""
    for key in keys:
        register_key(key, allow_python=True)


def write_key(node: Node, op: Any) -> None:
    """Give a live op the gradient key, and what is written down of it, that its node has."""
    import tensorflow as tf

    written = node.attrs()
    for key in WRITTEN_ATTRS:
        if key in written:
            value = tf.compat.v1.AttrValue()
            value.ParseFromString(written[key].SerializeToString(deterministic=True))
            # The record and the node in one piece: the export noted shapes, which the op has not.
            if len(value.list.s) == 2:
                was = tf.compat.v1.NodeDef.FromString(value.list.s[1])
                was.attr.pop(OUTPUT_SHAPES, None)
                value.list.s[1] = was.SerializeToString(deterministic=True)
            op._set_attr(key, value)
        elif key in op.node_def.attr:
            op._clear_attr(key)


def _refuse_shadowed(node: Node, op: Any) -> None:
    """Raise NoKeyError for an op whose gradient Python holds: TensorFlow looks at no key then."""
    if op._gradient_function is not None and node.attr(attrs.OVERRIDE) is not None:
        raise NoKeyError(f"{node} calls a tf.function, whose gradient Python holds")


def built_before(graph: Any, names: Collection[str]) -> list[str]:
    """What the report says of gradients that were built of these ops before they were patched.

    Each op of a gradient knows the forward op that it was built for, in the process that built it.
    """
    counts: Counter[str] = Counter()
    for op in graph.get_operations():
        forward = op._original_op
        if forward is not None and forward.name in names:
            counts[forward.name] += 1
    if not counts:
        return []
    some = short([repr(name) for name in counts], 1)
    return [
        f"gradients of {some} were built before ({plural(sum(counts.values()), 'op')}) and stay as "
        f"they are, in every Session: build them again (tf.gradients, an optimizer's minimize)"
    ]


@dataclass(frozen=True, eq=False, repr=False)
class PatchedGraph:
    """A live graph to which rules were applied.

    `in_place`: `graph` is the graph that was given, and keys are registered in this process. Else
    `graph` is a new one beside it, with the variables, collections, savers, queue runners,
    control-flow contexts, devices and colocations of the old one, which is left as it was. `report`
    is what `graphpatch apply --json` prints, with `in_place`. `counterparts` holds both graphs.

    Forward, each tensor of `graph` has the value, shape and dtype of the one that it stands for.

    Example:
        >>> old = tf.Graph()
        >>> with old.as_default():
        ...     x = tf.compat.v1.get_variable("x", [2])
        ...     y = tf.nn.relu(x, name="act")
        >>> patched = graphpatch.patch_graph("rules.json", old, in_place=False)
        >>> patched.of({"x": x, "y": y})["y"].shape
        TensorShape([2])
        >>> patched.variable(x).name, patched.operation("act").name, patched.tensor("act").name
        ('x:0', 'act', 'act:0')
        >>> a, b = (tf.compat.v1.Session(graph=one) for one in (old, patched.graph))
        >>> a.run(x.initializer)
        >>> patched.restore(a, b)
        ['x:0']
    """

    graph: Any
    in_place: bool
    report: dict[str, Any]
    counterparts: Counterparts

    @property
    def ok(self) -> bool:
        """True: `patch_graph` raises where a rule cannot be applied."""
        return True

    def document(self) -> dict[str, Any]:
        """Return the report."""
        return self.report

    def tensor(self, old: Any) -> Any:
        """Return the tensor that stands for a tensor of the old graph, or has this name.

        It carries the new gradient. Raises TypeError for what is not a tensor, ValueError for one
        of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.tensor(old)

    def operation(self, old: Any) -> Any:
        """Return the operation that stands for one of the old graph, or has this name.

        Where a construction took the name of an op, it is the op that consumers read; the op that
        computes the value is called `NAME/forward`. Raises TypeError for what is not an operation,
        ValueError for one of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.operation(old)

    def variable(self, old: Any) -> Any:
        """Return the variable that stands for one of the old graph. Values: see `restore`.

        Raises TypeError for what is not a variable, ValueError for one of another graph.
        """
        return self.counterparts.variable(old)

    def of(self, old: Any) -> Any:
        """What stands for a tensor, operation, variable, saver or queue runner of the old graph.

        Also for names (`x:0` is a tensor, `x` an operation), for sparse and ragged tensors, and
        for all of these in a list, tuple or dict, in which None stays. Raises TypeError for
        anything else, ValueError for what is of another graph, KeyError for a name that is not
        there.
        """
        return self.counterparts.of(old)

    def restore(self, old_session: Any, new_session: Any) -> list[str]:
        """Copy the values of variables from a Session of the old graph to one of the patched.

        All variables are copied that are in a collection and have a value, reference and resource
        variables alike; no op is added. Returns their names. Not copied, as it is not a variable:
        what tables, queues, iterators and random ops hold. Raises ValueError where a Session is of
        another graph.
        """
        return restore(self.counterparts, old_session, new_session)

    def __repr__(self) -> str:
        rules = self.report["rules"]
        count = sum(len(rule["matches"]) for rule in rules)
        how = "in place" if self.in_place else "as a new graph"
        return f"<PatchedGraph: {plural(len(rules), 'rule')} on {plural(count, 'op')}, {how}>"


def restore(counterparts: Counterparts, old_session: Any, new_session: Any) -> list[str]:
    """Copy the values of all variables that have one; the names of those that were copied.

    Raises ValueError where a Session is of another graph.
    """
    for session, graph in ((old_session, counterparts.old), (new_session, counterparts.new)):
        if session.graph is not graph:
            raise ValueError("expected a Session of the old graph, then one of the patched graph")
    variables = collected_variables(counterparts.old)
    values = _values_of(variables, old_session)
    pairs = [
        (counterparts.variable(variable).initializer, value)
        for variable, value in zip(variables, values, strict=True)
        if value is not None
    ]
    # What an initializer assigns is its input 1; feeding that adds no op to the graph.
    new_session.run(
        [initializer for initializer, _ in pairs],
        {initializer.inputs[1]: value for initializer, value in pairs},
    )
    copied = [
        variable for variable, value in zip(variables, values, strict=True) if value is not None
    ]
    return [variable.name for variable in copied]


def collected_variables(graph: Any) -> list[Any]:
    """Return the variables that any collection of a graph holds, each once."""
    import tensorflow as tf

    by_id = {
        id(variable): variable
        for key in graph.get_all_collection_keys()
        for variable in graph.get_collection(key)
        if isinstance(variable, tf.Variable) and not is_assignment(variable)
    }
    return list(by_id.values())


def _values_of(variables: list[Any], session: Any) -> list[Any]:
    """Return the value of each variable; None for one that has none yet."""
    import tensorflow as tf

    try:
        return list(session.run(variables))
    except tf.errors.FailedPreconditionError:
        return [_value_of(variable, session) for variable in variables]


def _value_of(variable: Any, session: Any) -> Any:
    import tensorflow as tf

    try:
        return session.run(variable)
    except tf.errors.FailedPreconditionError:
        return None


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
    live = _graph(graph)
    ready, model = rules_of(rules, allow_python), replace(model_of(live), live=True)
    if in_place is False:
        return _patched_by_rebuilding(ready, model, live, "in_place is False")
    try:
        return _in_place(ready, model, live)
    except NoKeyError as error:
        if in_place:
            raise
        patched = _patched_by_rebuilding(ready, model, live, str(error))
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
    if hasattr(graph, "outer_graph"):
        raise PatchError(
            f"a function that is being traced can be patched in place alone: {reason}; "
            f"graphpatch.apply takes its concrete function"
        )
    result = apply(rules, model)
    counterparts, notes = rebuilt_graph(result.model, graph)
    report = _reported(result, graph, [f"a patched graph was made: {reason}", *notes])
    return PatchedGraph(counterparts.new, False, {**report, "in_place": False}, counterparts)


def _reported(result: Result, graph: Any, notes: Sequence[str]) -> dict[str, Any]:
    names = {match["op"] for rule in result.report["rules"] for match in rule["matches"]}
    stale = built_before(graph, names)
    reported = [text for text in result.report["notes"] if not (stale and BUILT in text)]
    every = [*notes, *reported, *stale]
    return {**result.report, "in_place": True, "notes": every}
