"""What rules did to a graph that was taken from a live one, done to the live ops.

An op has on record which rules changed it, by their places among all rules of the graph. Functions
that are traced in a graph are exported with it, so their ops count on in the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

import graphpatch
from graphpatch.graph import attrs, provenance
from graphpatch.graph.graph import NODE, ModelGraph, carrier, graph_of, read_record
from graphpatch.graph.node import Node
from graphpatch.graph.record import AppliedRule, ModelRecord
from graphpatch.graph.wire import enclosed, encoded, piece_bytes
from graphpatch.protos import NodeDef
from graphpatch.runtime.gradient_functions import gradient_of
from graphpatch.runtime.imported import graph_def_of, spliced
from graphpatch.runtime.register import register
from graphpatch.runtime.values import full_tensor_name

WRITTEN_ATTRS = (attrs.OVERRIDE, provenance.PROVENANCE_ATTR)


@dataclass(eq=False)
class LiveRules:
    """The rules that changed a live graph, and functions in it, in the order of their numbers.

    `signed` has for each of these graphs the op that has them on record, and how many it has.
    """

    applied: list[AppliedRule] = field(default_factory=list)
    signed: WeakKeyDictionary[Any, tuple[str, int]] = field(default_factory=WeakKeyDictionary)

    def read(self, graph: ModelGraph, live: Any) -> None:
        """Read what a live graph has on record; `graph` was taken from it."""
        place, record = carrier(graph), read_record(graph)
        if place is not None and record is not None:
            self.applied[:] = record.rules
            if place[0].is_main:
                self.signed[live] = Node(*place).name, len(self.applied)

    def add(self, rules: Iterable[AppliedRule]) -> None:
        """Number further rules."""
        known = {rule.author for rule in self.applied}
        self.applied += [rule for rule in rules if rule.author not in known]

    def number(self, graph: ModelGraph) -> None:
        """Let a graph that was taken from the live one know the rules by their numbers."""
        graph.library.rules[:] = [rule.author for rule in self.applied]

    def sign(self, live: Any, name: str) -> None:
        """Let one op of a live graph have all rules on record: this one, where there is none."""
        name, count = self.signed.get(live, (name, 0))
        if count == len(self.applied):
            return
        op = live.get_operation_by_name(name)
        node = Node(graph_of_op(op).main, 0)
        record = node.body.open_node(0).record
        was = record.model or ModelRecord(live=True)
        record.model = replace(was, version=graphpatch.__version__, rules=tuple(self.applied))
        _set_attrs(op, node)
        self.signed[live] = name, len(self.applied)


_RULES: WeakKeyDictionary[Any, LiveRules] = WeakKeyDictionary()


def rules_of_live(live: Any) -> LiveRules:
    """Return the rules of a live graph, or of the graph in which the function that it is is traced.

    What TensorFlow traces functions in while it executes eagerly is nobody's graph.
    """
    import tensorflow as tf

    around = list(graphs_around(live))
    with tf.init_scope():
        is_eager = tf.executing_eagerly()
    root = around[-2] if is_eager and len(around) > 1 else around[-1]
    if root not in _RULES:
        _RULES[root] = LiveRules()
        _RULES[root].read(graph_of(graph_def_of(root)), root)
    return _RULES[root]


def graphs_around(live: Any) -> Iterator[Any]:
    """Yield a graph, and those in which it is traced."""
    while live is not None:
        yield live
        live = getattr(live, "outer_graph", None)


def graph_of_op(op: Any) -> ModelGraph:
    """Return a graph that holds one live op."""
    return graph_of(encoded(NODE, op.node_def.SerializeToString()))


def put_into(live: Any, nodes: Sequence[Node], keys: Iterable[str]) -> None:
    """Let the ops of a live graph be as these nodes, which rules edited, `keys` being registered.

    Ops that rules added are made, each op reads what its node does, and has its key and record.
    """
    for key in keys:
        register(key, partial(gradient_of, key, allow_python=True))
    for node in sorted(nodes, key=lambda node: not provenance.is_added(node)):
        op = _live_op(live, node)
        with live._mutation_lock():  # no Session runs meanwhile
            _set_attrs(op, node)
        if node.attr(attrs.OVERRIDE) is not None:
            op._gradient_function = None  # of a call; TensorFlow would look at no key


def _live_op(live: Any, node: Node) -> Any:
    """Return the op that a node is, made where it is not there, which reads what the node does."""
    import tensorflow as tf

    names = [full_tensor_name(text) for text in node.data_inputs]
    tensors = {name: live.get_tensor_by_name(name) for name in names}
    try:
        op = live.get_operation_by_name(node.name)
    except KeyError:
        written = b"".join(map(piece_bytes, enclosed(NODE, node.body.payload(node.index).pieces)))
        definition = tf.compat.v1.GraphDef.FromString(written)
        definition.versions.CopyFrom(live.graph_def_versions)  # or they become the lowest
        with live.as_default(), live.control_dependencies(None):
            spliced(definition, tensors, [], "")
        op = live.get_operation_by_name(node.name)
    for slot, name in enumerate(names):
        if op.inputs[slot].name != name:
            op._update_input(slot, tensors[name])
    return op


def _set_attrs(op: Any, node: Node) -> None:
    """Give an op the key of its gradient, and what is on record of the change, as a node has it."""
    import tensorflow as tf

    written = node.attrs()
    for key in WRITTEN_ATTRS:
        if key in written:
            value = tf.compat.v1.AttrValue()
            value.ParseFromString(written[key].SerializeToString(deterministic=True))
            if len(value.list.s) == 2:
                # The node as it was: the export noted shapes, which the op has not.
                was = NodeDef.FromString(value.list.s[1])
                was.attr.pop(attrs.OUTPUT_SHAPES, None)
                value.list.s[1] = was.SerializeToString(deterministic=True)
            op._set_attr(key, value)
        elif key in op.node_def.attr:
            op._clear_attr(key)
