"""What `patch_graph` returns: a patched graph, its report, and the map from the old one to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphpatch.runtime.live.counterparts import Counterparts, is_assignment
from graphpatch.table import plural


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
        """The report."""
        return self.report

    def tensor(self, old: Any) -> Any:
        """The tensor that stands for a tensor of the old graph, or has this name.

        It carries the new gradient. Raises TypeError for what is not a tensor, ValueError for one
        of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.tensor(old)

    def operation(self, old: Any) -> Any:
        """The operation that stands for one of the old graph, or has this name.

        Where a construction took the name of an op, it is the op that consumers read; the op that
        computes the value is called `NAME/forward`. Raises TypeError for what is not an operation,
        ValueError for one of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.operation(old)

    def variable(self, old: Any) -> Any:
        """The variable that stands for one of the old graph. Values: see `restore`.

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


def restore(found: Counterparts, old_session: Any, new_session: Any) -> list[str]:
    """Copy the values of all variables that have one; the names of those that were copied.

    Raises ValueError where a Session is of another graph.
    """
    for session, graph in ((old_session, found.old), (new_session, found.new)):
        if session.graph is not graph:
            raise ValueError("expected a Session of the old graph, then one of the patched graph")
    variables = collected_variables(found.old)
    values = _values_of(variables, old_session)
    pairs = [
        (found.variable(variable).initializer, value)
        for variable, value in zip(variables, values, strict=True)
        if value is not None
    ]
    # What an initializer assigns is its input 1; feeding that adds no op to the graph.
    new_session.run(
        [initializer for initializer, _ in pairs],
        {initializer.inputs[1]: value for initializer, value in pairs},
    )
    copied = [variable for variable, one in zip(variables, values, strict=True) if one is not None]
    return [variable.name for variable in copied]


def collected_variables(graph: Any) -> list[Any]:
    """The variables that any collection of a graph holds, each once."""
    import tensorflow as tf

    found = {
        id(one): one
        for key in graph.get_all_collection_keys()
        for one in graph.get_collection(key)
        if isinstance(one, tf.Variable) and not is_assignment(one)
    }
    return list(found.values())


def _values_of(variables: list[Any], session: Any) -> list[Any]:
    """The value of each variable; None for one that has none yet."""
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
