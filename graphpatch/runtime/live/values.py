"""Values of variables, from a Session of the old graph to one of the patched graph."""

from __future__ import annotations

from typing import Any

from graphpatch.runtime.live.counterparts import Counterparts


def restore(found: Counterparts, old_session: Any, new_session: Any) -> list[str]:
    """Copy the values of all variables that have one; the names of those that were copied.

    Raises ValueError where a Session is of another graph.
    """
    for session, graph in ((old_session, found.old), (new_session, found.new)):
        if session.graph is not graph:
            raise ValueError("expected a Session of the old graph, then one of the patched graph")
    variables = collected_variables(found.old)
    values = _values(variables, old_session)
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
        if isinstance(one, tf.Variable)
    }
    return list(found.values())


def _values(variables: list[Any], session: Any) -> list[Any]:
    """The value of each variable; None for one that has none yet."""
    import tensorflow as tf

    try:
        return list(session.run(variables))
    except tf.errors.FailedPreconditionError:
        return [_value(variable, session) for variable in variables]


def _value(variable: Any, session: Any) -> Any:
    import tensorflow as tf

    try:
        return session.run(variable)
    except tf.errors.FailedPreconditionError:
        return None
