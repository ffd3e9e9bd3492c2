"""Control-flow contexts of a graph whose file has none, as TensorFlow itself writes them.

A GraphDef has no place for them; `import_meta_graph` reads them from two collections. What they
need, and freezing or optimising took out, is added; none of it is read by what was there, so that
the forward pass stays what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphpatch.control_flow.contexts import (
    Branch,
    Cond,
    Context,
    ControlFlow,
    Loop,
    control_flow,
    has_control_flow,
    is_constant,
    position,
)
from graphpatch.control_flow.stored import (
    COLLECTION,
    CONTEXTS,
    collection_entry,
    contexts,
    is_loop,
    nested_contexts,
)
from graphpatch.errors import ModelError
from graphpatch.graph.editor import Editor, without_records
from graphpatch.graph.graph import ModelGraph, read_record
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import CONTROL_FLOW, ENTERS, EXITS, MERGES
from graphpatch.graph.walk import data_uses, first_producers
from graphpatch.graph.wire import encoded
from graphpatch.names import fresh, op_of, parse
from graphpatch.protos import AttrValue, CollectionDef, CondContextDef, WhileContextDef


def with_pruned_ops(graph: ModelGraph) -> ControlFlow:
    """Return the contexts of a graph of one's own, to which what they need is added.

    Forward: nothing changes. Backward: a loop variable whose Exit was pruned has no gradient, and
    TensorFlow gives None for what enters the loop by it; each has its Exit again. A branch needs an
    op that is there when it is taken, a loop one that is there in each iteration. Raises ModelError
    where there are loops or branches that no context can tell of.
    """
    editor, flow = Editor(graph, None), control_flow(graph.main)
    before = len(graph.main)
    for loop in flow.loops.values():
        _add_exits(loop, editor)
        if body_pivot(graph.main, loop) < 0:
            _add_body_pivot(loop, editor)
    for index in [index for index in flow.shared if flow.context(index) is not None]:
        _split(Node(graph.main, index), editor)
    flow = flow if len(graph.main) == before else control_flow(graph.main)
    before, switches = len(graph.main), _switches(flow)
    for branch, pivot in branch_pivots(flow).items():
        if pivot < 0:
            _add_branch_pivot(branch, Node(graph.main, switches[branch][0]), editor)
    return flow if len(graph.main) == before else control_flow(graph.main)


def body_pivot(body: Body, loop: Loop) -> int:
    """Return an op that runs in each iteration of a loop, not after the last; -1: there is none.

    TensorFlow takes the Identity of the first loop variable.
    """
    for switch in loop.switches:
        pivots = [
            index
            for index in _reading(body, switch, 1)
            if body.heads.ops[index] not in CONTROL_FLOW and Node(body, index).outputs
        ]
        if pivots:
            return min(pivots, key=lambda i: (body.heads.ops[i] != "Identity", position(body, i)))
    return -1


def branch_pivots(flow: ControlFlow) -> dict[Branch, int]:
    """Return for each branch an Identity that runs when it is taken; -1 where there is none."""
    pivots = {}
    for branch, switches in _switches(flow).items():
        read = (
            reader for index in switches for reader in _reading(flow.body, index, branch.number)
        )
        pivots[branch] = next(
            (reader for reader in read if flow.body.heads.ops[reader] == "Identity"), -1
        )
    return pivots


def _switches(flow: ControlFlow) -> dict[Branch, list[int]]:
    """Return the Switches into each branch; first that which tf.cond makes of the predicate."""
    switches: dict[Branch, list[int]] = defaultdict(list)
    for index, cond in [*flow.pivots.items(), *flow.shared.items()]:
        for branch in list(cond.current.branches.values()):
            switches[branch].append(index)
    for index, branch in flow.guards.items():
        switches[branch.current].append(index)
    return switches


def _reading(body: Body, index: int, output: int) -> list[int]:
    """Return the ops that read this output as data."""
    uses = data_uses(body, body.heads.names[index])
    return [reader for reader, _, text in uses if parse(text).index == output]


def _add_exits(loop: Loop, editor: Editor) -> None:
    body = editor.graph.main
    for index in list(loop.switches):
        if not _reading(body, index, 0):
            switch = Node(body, index)
            kind = "RefExit" if switch.op == "RefSwitch" else "Exit"
            editor.add(_sibling(switch, "Exit"), kind, [switch.name], _type(switch), beside=switch)


def _add_body_pivot(loop: Loop, editor: Editor) -> None:
    for index in loop.switches[:1]:
        switch = Node(editor.graph.main, index)
        inputs = [f"{switch.name}:1"]
        editor.add(_sibling(switch, "Identity"), "Identity", inputs, _type(switch), beside=switch)


def _split(switch: Node, editor: Editor) -> None:
    """Let a Switch that gives to both branches be two, one for each, as tf.cond makes them.

    In a loop, TensorFlow would take it for that of a loop variable, in a branch for one of that.
    """
    if _reading(switch.body, switch.index, 0) and _reading(switch.body, switch.index, 1):
        inputs = list(switch.inputs)
        true_switch = editor.add(
            f"{switch.name}/true", switch.op, inputs, _type(switch), beside=switch
        )
        editor.reroute(switch, 1, f"{true_switch.name}:1", keep=true_switch.index)


def _add_branch_pivot(branch: Branch, switch: Node, editor: Editor) -> None:
    scope, slash, _ = parse(branch.cond.current.pred).op.rpartition("/")
    name = f"{scope}{slash}switch_{'t' if branch.number else 'f'}"
    inputs = [f"{switch.name}:1" if branch.number else switch.name]
    editor.add(name, "Identity", inputs, _type(switch), beside=switch)


def _sibling(switch: Node, kind: str) -> str:
    """Return the name that tf.while_loop gave the op of this kind of the same loop variable."""
    scope, slash, last = switch.name.removesuffix("/forward").rpartition("/")
    stem = last if last.startswith("Switch") else f"{last}/Switch"
    return f"{scope}{slash}{stem.replace('Switch', kind, 1)}"


def _type(switch: Node) -> dict[str, AttrValue]:
    value = switch.attr("T")
    return {} if value is None else {"T": value}


@dataclass(frozen=True)
class KnownValues:
    """The tensors of a context, and by what each tensor from outside is read in it."""

    values: set[str] = field(default_factory=set)
    external: dict[str, str] = field(default_factory=dict)


def known_values(flow: ControlFlow, pivots: Mapping[Branch, int]) -> dict[Context, KnownValues]:
    """Return what each context knows; `pivots` has an op of each branch that runs with it."""
    known: dict[Context, KnownValues] = defaultdict(KnownValues)
    made_outside = {index for index in pivots.values() if _reads_pivot(flow, index)}
    for index in sorted(flow.of):
        context = flow.of[index].current
        if index in made_outside:
            _knows(known, context.outer, _outputs(flow, index))
        elif index in flow.guards:
            _guarded(flow, known, index, context)
        elif flow.body.heads.ops[index] in ENTERS:
            _entered(flow, known[context], index)
        else:
            _knows(known, context, _outputs(flow, index))
        if flow.body.heads.ops[index] in EXITS and context.outer is not None:
            known[context.outer.current].values.update(_outputs(flow, index))
    for context, index in pivots.items():
        pred = parse(context.cond.current.pred).full
        known[context].values.update({pred, *_outputs(flow, index)})
        known[context].external[pred] = pred
    return dict(known)


def outer_tensor(flow: ControlFlow, text: str) -> str:
    """Return the tensor outside that is brought into contexts as this one."""
    for node in first_producers(flow.body.producer(text)):
        entered = node.op in ENTERS and is_constant(node)
        guard = flow.guards.get(node.index)
        passed = entered or (guard is not None and guard.number == parse(text).index)
        if not passed or not node.data_inputs:
            break
        text = node.data_inputs[0]
    return parse(text).full


def _knows(
    known: dict[Context, KnownValues], context: Context | None, tensors: Iterable[str]
) -> None:
    """Add what an op gives; a loop keeps it to itself, a branch tells all contexts around it."""
    tensors = list(tensors)
    if isinstance(context, Loop):
        known[context].values.update(tensors)
        return
    while context is not None:
        known[context.current].values.update(tensors)
        context = context.outer


def _guarded(
    flow: ControlFlow, known: dict[Context, KnownValues], index: int, context: Context
) -> None:
    """Note a Switch by which a tensor from outside comes into a branch."""
    switch, number = Node(flow.body, index), flow.guards[index].number
    brought = parse(switch.data_inputs[0]).full
    first, mine = outer_tensor(flow, brought), known[context]
    mine.values.update({first, brought} if context.outer is not None else {first})
    if context.outer is not None:
        mine.external[brought] = brought
    mine.external[first] = f"{switch.name}:{number}"
    # One that only passes a tensor on to the Merge was made in the branch, with both outputs.
    readers = flow.body.readers.get(switch.name, ())
    passes = all(flow.body.heads.ops[reader] in MERGES for reader, _ in readers)
    numbers = (0, 1) if passes else (number,)
    _knows(known, context, [f"{switch.name}:{output}" for output in numbers])


def _entered(flow: ControlFlow, known: KnownValues, index: int) -> None:
    enter = Node(flow.body, index)
    known.values.add(f"{enter.name}:0")
    if is_constant(enter):
        first = outer_tensor(flow, enter.data_inputs[0])
        known.values.add(first)
        known.external[first] = f"{enter.name}:0"


def _outputs(flow: ControlFlow, index: int) -> list[str]:
    """Return the tensors of an op; of a type that we don't know, those that are read."""
    node = Node(flow.body, index)
    flat = node.outputs
    if flat is None:
        return sorted({parse(text).full for _, _, text in data_uses(flow.body, node.name)})
    return [f"{node.name}:{output}" for output in range(len(flat))]


def _reads_pivot(flow: ControlFlow, index: int) -> bool:
    """Return whether an op reads the Switch that tf.cond makes of the predicate."""
    producer = flow.body.producer(Node(flow.body, index).data_inputs[0])
    return producer is not None and producer.index in flow.pivots


COUNTER = "iteration_counter"  # what tf.while_loop counts by where it is given maximum_iterations
DEEPEST_CONTEXT = 50  # contexts in one another: each is two messages, and protobuf reads 100 levels
PARALLEL = 10  # iterations at once, where an Enter does not say


def with_contexts(graph: ModelGraph) -> tuple[ModelGraph, bytes]:
    """Return a graph to be written with its contexts, and these as fields of a MetaGraphDef.

    What was pruned, and the contexts need, is added again, and written down as added where the
    model has a record: taking rules off takes it off. A model without rules is only converted. A
    graph without v1 control flow comes back as it is, with nothing. Raises ModelError where
    contexts cannot be rebuilt.
    """
    if not has_control_flow(graph.main):
        return graph, b""
    graph = graph.copy()
    try:
        messages = _Messages(with_pruned_ops(graph))
        if read_record(graph) is None:
            without_records(graph.main)
        return graph, _collection("cond_context", messages, Branch) + _collection(
            "while_context", messages, Loop
        )
    except ModelError as error:
        raise ModelError(f"the control-flow contexts cannot be rebuilt: {error}") from error


def _collection(key: str, messages: _Messages, kind: type[Context]) -> bytes:
    """Return the collection of the contexts of a kind that are in no other one."""
    built = [messages.of(context) for context in messages.inside[None] if isinstance(context, kind)]
    raw = [context.SerializeToString(deterministic=True) for context in built]
    collection = CollectionDef(bytes_list=CollectionDef.BytesList(value=raw))
    return encoded(COLLECTION, collection_entry(key, collection)) if raw else b""


class _Messages:
    """The messages of the contexts of a body; `inside` has the contexts in each of them."""

    def __init__(self, flow: ControlFlow) -> None:
        self.flow, self.body = flow, flow.body
        self.inside: dict[Context | None, list[Context]] = defaultdict(list)
        self.taken: set[str] = set()
        self.pivots = branch_pivots(flow)
        for context in _in_order(flow):
            self.inside[None if context.outer is None else context.outer.current].append(context)
            _refuse_deep(context)
        self.known = known_values(flow, self.pivots)

    def of(self, context: Context) -> Any:
        """Return the message of one context, those in it included."""
        message = self._branch(context) if isinstance(context, Branch) else self._loop(context)
        known = self.known.get(context, KnownValues())
        message.values_def.values.extend(sorted(known.values))
        for key in sorted(known.external):
            message.values_def.external_values.add(key=key, value=known.external[key])
        for inner in self.inside[context]:
            nested = message.nested_contexts.add()
            field = nested.cond_ctxt if isinstance(inner, Branch) else nested.while_ctxt
            field.CopyFrom(self.of(inner))
        return message

    def _branch(self, branch: Branch) -> Any:
        pred = parse(branch.cond.current.pred)
        scope, slash, _ = pred.op.rpartition("/")
        name = fresh(f"{scope}{slash}cond_text", self.taken)
        self.taken.add(name)
        return CondContextDef(
            context_name=name,
            pred_name=pred.full,
            pivot_name=self._output(self.pivots[branch]),
            branch=branch.number,
        )

    def _loop(self, loop: Loop) -> Any:
        body = self.body
        parallel = Node(body, loop.enters[0]).attr("parallel_iterations")
        changing = [index for index in loop.enters if not is_constant(Node(body, index))]
        return WhileContextDef(
            context_name=loop.name,
            parallel_iterations=PARALLEL if parallel is None else parallel.i,
            back_prop=True,
            pivot_name=self._output(loop.condition),
            pivot_for_pred_name=self._output(self._first_merge(loop)),
            pivot_for_body_name=self._output(body_pivot(body, loop)),
            loop_enter_names=map(self._output, changing),
            loop_exit_names=map(self._output, self._exits(loop)),
            maximum_iterations_name=self._maximum(loop),
        )

    def _output(self, index: int) -> str:
        """Return output 0 of an op, or 1 of a Switch that a loop's body begins with."""
        return f"{self.body.heads.names[index]}:0"

    def _first_merge(self, loop: Loop) -> int:
        """Return the Merge of the first loop variable: none of a cond, which join branches."""
        for switch in loop.switches[:1]:
            for producer in first_producers(Node(self.body, switch)):
                if producer.op in MERGES:
                    return producer.index
        raise ModelError(f"the v1 loop {loop.name!r} has no Switch that reads a Merge")

    def _exits(self, loop: Loop) -> list[int]:
        """Return the Exits, in the order of the loop variables."""
        places = {index: place for place, index in enumerate(loop.switches)}

        def place(index: int) -> int:
            before = (node.index for node in first_producers(Node(self.body, index)))
            return next((places[name] for name in before if name in places), len(places))

        return sorted(loop.exits, key=place)

    def _maximum(self, loop: Loop) -> str:
        """Return the tensor that bounds the iterations, where tf.while_loop was given one."""
        both = self._reads(loop.condition, 0)
        less = None if both is None or both.op != "LogicalAnd" else self._reads(both.index, 0)
        if less is None or less.op != "Less":
            return ""
        enter, start = self._reads(less.index, 1), self._reads(loop.enters[0], 0)
        counts = start is not None and start.name.rpartition("/")[2].startswith(COUNTER)
        if not counts or enter is None:
            return ""
        return outer_tensor(self.flow, less.data_inputs[1])

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


def _in_order(flow: ControlFlow) -> list[Context]:
    """Return all contexts in the order in which they were made, as far as the file tells."""
    first: dict[Cond, tuple[int, int]] = {}
    switches = [*flow.pivots.items(), *flow.shared.items()]
    switches += [(index, branch.cond) for index, branch in flow.guards.items()]
    for index, cond in switches:
        place = position(flow.body, index)
        first[cond.current] = min(place, first.get(cond.current, place))
    made: list[tuple[Any, Context]] = [
        ((place, -number), branch)
        for cond, place in first.items()
        for number, branch in cond.branches.items()
    ]
    loops = flow.loops.values()
    made += [((position(flow.body, loop.enters[0]), 0), loop) for loop in loops]
    return [context for _, context in sorted(made, key=lambda pair: pair[0])]


def without_ops(meta: Any, live: Any, present: Container[str]) -> None:
    """Give `meta` the contexts of `live`, without the ops that are not `there` any more.

    Both are MetaGraphDefs. A context whose pivot is gone goes as well, with those inside it.
    """
    for key in CONTEXTS:
        remaining = [
            context
            for context in contexts(live.collection_def[key], key)
            if _prune(context, present)
        ]
        if remaining or key in meta.collection_def:
            values = meta.collection_def[key].bytes_list.value
            values[:] = [context.SerializeToString(deterministic=True) for context in remaining]


def _prune(context: Any, present: Container[str]) -> bool:
    """Take out of a context what is not there; whether the context itself is."""
    if op_of(context.pivot_name) not in present:
        return False
    lists = [context.values_def.values]
    lists += [context.loop_exit_names, context.loop_enter_names] if is_loop(context) else []
    for texts in lists:
        texts[:] = [text for text in texts if op_of(text) in present]
    external = context.values_def.external_values
    pairs = sorted((entry.key, entry.value) for entry in external)  # the same on every run
    del external[:]
    for key, value in pairs:
        if op_of(key) in present and op_of(value) in present:
            external.add(key=key, value=value)
    gone = [not _prune(inner, present) for inner in nested_contexts(context)]
    for place in reversed([place for place, is_gone in enumerate(gone) if is_gone]):
        del context.nested_contexts[place]
    return True
