"""Rules on a live graph in place: keys on ops that exist already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from graphpatch.application import Result, apply
from graphpatch.formats import Model
from graphpatch.graph import attrs, provenance
from graphpatch.graph.body import Node
from graphpatch.rules import Rule
from graphpatch.runtime.live.by_key import by_key
from graphpatch.runtime.live.gradient_keys import NoKeyError
from graphpatch.runtime.register import register_key
from graphpatch.table import plural, short

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

    held = node.attrs()
    for key in WRITTEN_ATTRS:
        if key in held:
            raw = held[key].SerializeToString(deterministic=True)
            op._set_attr(key, tf.compat.v1.AttrValue.FromString(raw))
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
    found: Counter[str] = Counter()
    for op in graph.get_operations():
        forward = op._original_op
        if forward is not None and forward.name in names:
            found[forward.name] += 1
    if not found:
        return []
    some = short([repr(name) for name in found], 1)
    return [
        f"gradients of {some} were built before ({plural(sum(found.values()), 'op')}) and stay as "
        f"they are, in every Session: build them again (tf.gradients, an optimizer's minimize)"
    ]
