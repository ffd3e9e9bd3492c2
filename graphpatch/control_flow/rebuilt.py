"""Control-flow contexts of a graph whose file has none, as TensorFlow itself writes them.

A GraphDef has no place for them; `import_meta_graph` reads them from two collections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.control_flow.branches import Branch, Cond, Context, Loop
from graphpatch.control_flow.context_collections import (
    COLLECTION,
    CONTEXTS,
    collection_entry,
    contexts,
    is_loop,
    message_class,
    nested_contexts,
)
from graphpatch.control_flow.contexts import ControlFlow, has_control_flow
from graphpatch.control_flow.frames import is_constant, position
from graphpatch.control_flow.op_types import MERGES
from graphpatch.control_flow.pruned import body_pivot, branch_pivots, with_pruned_ops
from graphpatch.control_flow.values_def import KnownValues, known_values, outer_tensor
from graphpatch.errors import ModelError
from graphpatch.graph.body import Node
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.topology import first_producers
from graphpatch.graph.wire import encoded
from graphpatch.names import fresh, op_of, parse

COUNTER = "iteration_counter"  # what tf.while_loop counts by where it is given maximum_iterations
DEEPEST_CONTEXT = 50  # contexts in one another: each is two messages, and protobuf reads 100 levels
PARALLEL = 10  # iterations at once, where an Enter does not say


def with_contexts(graph: ModelGraph) -> tuple[ModelGraph, bytes]:
    """A graph as it is to be written with its contexts, and these as fields of a MetaGraphDef.

    What was pruned, and the contexts need, is added again. A graph without v1 control flow comes
    back as it is, with nothing. Raises ModelError where contexts cannot be rebuilt.
    """
    if not has_control_flow(graph.main):
        return graph, b""
    graph = graph.copy()
    try:
        found = _Messages(with_pruned_ops(graph))
        return graph, _collection("cond_context", found, Branch) + _collection(
            "while_context", found, Loop
        )
    except ModelError as error:
        raise ModelError(f"the control-flow contexts cannot be rebuilt: {error}") from error


def _collection(key: str, messages: _Messages, kind: type[Context]) -> bytes:
    """The collection of the contexts of a kind that are in no other one."""
    found = [messages.of(one) for one in messages.inside[None] if isinstance(one, kind)]
    raw = [one.SerializeToString(deterministic=True) for one in found]
    collection = CollectionDef(bytes_list=CollectionDef.BytesList(value=raw))
    return encoded(COLLECTION, collection_entry(key, collection)) if raw else b""


class _Messages:
    """The messages of the contexts of a body; `inside` has the contexts in each of them."""

    def __init__(self, found: ControlFlow) -> None:
        self.found, self.body = found, found.body
        self.inside: dict[Context | None, list[Context]] = defaultdict(list)
        self.taken: set[str] = set()
        self.pivots = branch_pivots(found)
        for context in _in_order(found):
            self.inside[None if context.outer is None else context.outer.current].append(context)
            _refuse_deep(context)
        self.known = known_values(found, self.pivots)

    def of(self, context: Context) -> Any:
        """The message of one context, those in it included."""
        message = self._branch(context) if isinstance(context, Branch) else self._loop(context)
        known = self.known.get(context, KnownValues())
        message.values_def.values.extend(sorted(known.values))
        for key in sorted(known.external):
            message.values_def.external_values.add(key=key, value=known.external[key])
        for inner in self.inside[context]:
            nested = message.nested_contexts.add()
            held = nested.cond_ctxt if isinstance(inner, Branch) else nested.while_ctxt
            held.CopyFrom(self.of(inner))
        return message

    def _branch(self, branch: Branch) -> Any:
        message = message_class("CondContextDef")()
        pred = parse(branch.cond.current.pred)
        scope, slash, _ = pred.op.rpartition("/")
        message.context_name = fresh(f"{scope}{slash}cond_text", self.taken)
        self.taken.add(message.context_name)
        message.pred_name = parse(branch.cond.current.pred).full
        message.pivot_name = self._output(self.pivots[branch])
        message.branch = branch.number
        return message

    def _loop(self, loop: Loop) -> Any:
        message, frame, body = message_class("WhileContextDef")(), loop.frame, self.body
        message.context_name = frame.name
        parallel = Node(body, frame.enters[0]).attr("parallel_iterations")
        message.parallel_iterations = PARALLEL if parallel is None else parallel.i
        message.back_prop = True
        message.pivot_name = self._output(frame.condition)
        message.pivot_for_pred_name = self._output(self._first_merge(loop))
        message.pivot_for_body_name = self._output(body_pivot(body, frame))
        changing = [index for index in frame.enters if not is_constant(Node(body, index))]
        message.loop_enter_names.extend(map(self._output, changing))
        message.loop_exit_names.extend(map(self._output, self._exits(loop)))
        message.maximum_iterations_name = self._maximum(loop)
        return message

    def _output(self, index: int) -> str:
        """The first output of an op, or the second of a Switch that a loop's body begins with."""
        return f"{self.body.heads.names[index]}:0"

    def _first_merge(self, loop: Loop) -> int:
        """The Merge of the first loop variable: no Merge of a cond, as those join branches."""
        for switch in loop.frame.switches[:1]:
            for producer in first_producers(Node(self.body, switch)):
                if producer.op in MERGES:
                    return producer.index
        raise ModelError(f"the v1 loop {loop.frame.name!r} has no Switch that reads a Merge")

    def _exits(self, loop: Loop) -> list[int]:
        """The Exits, in the order of the loop variables."""
        places = {index: place for place, index in enumerate(loop.frame.switches)}

        def place(index: int) -> int:
            before = (node.index for node in first_producers(Node(self.body, index)))
            return next((places[one] for one in before if one in places), len(places))

        return sorted(loop.frame.exits, key=place)

    def _maximum(self, loop: Loop) -> str:
        """The tensor that bounds the iterations, where tf.while_loop was given one."""
        both = self._reads(loop.frame.condition, 0)
        less = None if both is None or both.op != "LogicalAnd" else self._reads(both.index, 0)
        if less is None or less.op != "Less":
            return ""
        enter, start = self._reads(less.index, 1), self._reads(loop.frame.enters[0], 0)
        counts = start is not None and start.name.rpartition("/")[2].startswith(COUNTER)
        if not counts or enter is None:
            return ""
        return outer_tensor(self.found, less.data_inputs[1])

    def _reads(self, index: int, slot: int) -> Node | None:
        inputs = Node(self.body, index).data_inputs
        return self.body.producer(inputs[slot]) if slot < len(inputs) else None


def _refuse_deep(context: Context) -> None:
    """Raise ModelError for a context in so many others that protobuf cannot read them."""
    outer, depth = context.outer, 1
    while outer is not None and depth <= DEEPEST_CONTEXT:
        outer, depth = outer.current.outer, depth + 1
    if depth > DEEPEST_CONTEXT:
        raise ModelError(
            f"v1 loops and branches are nested more than {DEEPEST_CONTEXT} deep, and TensorFlow "
            f"could not read their contexts, as protobuf reads messages of up to 100 levels"
        )


def _in_order(found: ControlFlow) -> list[Context]:
    """All contexts in the order in which they were made, as far as the file tells."""
    first: dict[Cond, tuple[int, int]] = {}
    switches = [*found.pivots.items(), *found.shared.items()]
    switches += [(index, branch.cond) for index, branch in found.guards.items()]
    for index, cond in switches:
        place = position(found.body, index)
        first[cond.current] = min(place, first.get(cond.current, place))
    made: list[tuple[Any, Context]] = [
        ((place, -number), branch)
        for cond, place in first.items()
        for number, branch in cond.branches.items()
    ]
    loops = found.loops.values()
    made += [((position(found.body, loop.frame.enters[0]), 0), loop) for loop in loops]
    return [context for _, context in sorted(made, key=lambda one: one[0])]


def without_ops(meta: Any, live: Any, there: Container[str]) -> None:
    """Give `meta` the contexts of `live`, without the ops that are not `there` any more.

    Both are MetaGraphDefs. A context whose pivot is gone goes as well, with those inside it.
    """
    for key in CONTEXTS:
        kept = [one for one in contexts(live.collection_def[key], key) if _prune(one, there)]
        if kept or key in meta.collection_def:
            values = meta.collection_def[key].bytes_list.value
            values[:] = [one.SerializeToString(deterministic=True) for one in kept]


def _prune(context: Any, there: Container[str]) -> bool:
    """Take out of a context what is not there; whether the context itself is."""
    if op_of(context.pivot_name) not in there:
        return False
    lists = [context.values_def.values]
    lists += [context.loop_exit_names, context.loop_enter_names] if is_loop(context) else []
    for texts in lists:
        texts[:] = [text for text in texts if op_of(text) in there]
    _prune_external(context.values_def.external_values, there)
    gone = [not _prune(inner, there) for inner in nested_contexts(context)]
    for place in reversed([place for place, is_gone in enumerate(gone) if is_gone]):
        del context.nested_contexts[place]
    return True


def _prune_external(external: Any, there: Container[str]) -> None:
    """In the order of their names, so that what is written is the same on every run."""
    pairs = sorted((one.key, one.value) for one in external)
    del external[:]
    for key, value in pairs:
        if op_of(key) in there and op_of(value) in there:
            external.add(key=key, value=value)
