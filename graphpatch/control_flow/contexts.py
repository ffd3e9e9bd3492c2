"""The control-flow context of each op of a body, read off what it reads.

As TensorFlow had them when the body was built, contexts are a tree. A loop is one, told by its
Enters: as in TensorFlow's executor, an op is in the frame of what it reads; an Enter leads into the
frame that its attr names, an Exit back out of it. Each branch of a v1 cond is one: what is dead
where the other one is taken. A branch begins at Switches that share a predicate, a cond ends at
Merges. An op is in the innermost context of all that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import (
    ENTERS,
    EXITS,
    LOOP_COND,
    MERGES,
    NEXTS,
    SWITCHES,
    TENSOR_ARRAY,
)
from graphpatch.graph.walk import data_uses, first_producers, in_order, reached
from graphpatch.names import op_of, parse


class Loop(msgspec.Struct, eq=False):
    """The context of a loop, inside of `outer`; `around` is the loop that its Enters read from.

    Its Enters, Exits, Switches of loop variables and LoopConds by index, in the order of the file.
    """

    name: str
    around: Loop | None = None
    outer: Context | None = None
    enters: list[int] = msgspec.field(default_factory=list)
    exits: list[int] = msgspec.field(default_factory=list)
    switches: list[int] = msgspec.field(default_factory=list)
    conditions: list[int] = msgspec.field(default_factory=list)

    @property
    def current(self) -> Loop:
        """Return itself."""
        return self

    @property
    def condition(self) -> int:
        """Return its LoopCond, of which `control_flow` has checked that there is one."""
        return self.conditions[0]


class Cond(msgspec.Struct, eq=False):
    """A cond: its predicate, a tensor; another cond takes its place where they turn out as one."""

    pred: str
    outer: Context | None
    depth: int
    is_guarded: bool = False  # the predicate is that of a Switch that guards what branches read
    branches: dict[int, Branch] = msgspec.field(default_factory=dict)
    one_with: Cond | None = None

    @property
    def current(self) -> Cond:
        """Return the cond that this one is by now."""
        cond = self
        while cond.one_with is not None:
            cond = cond.one_with
        return cond

    def branch(self, number: int) -> Branch:
        """Return the context of its branch: 1 where the predicate holds, 0 where not."""
        return self.branches.setdefault(number, Branch(self, number))


class Branch(msgspec.Struct, eq=False):
    """The context of one branch of a cond."""

    cond: Cond
    number: int

    @property
    def current(self) -> Branch:
        """Return the branch that this one is by now."""
        return self.cond.current.branch(self.number)

    @property
    def outer(self) -> Context | None:
        """Return the context around the cond."""
        outer = self.cond.current.outer
        return None if outer is None else outer.current


Context = Loop | Branch


def innermost(body: Body, index: int, a: Context | None, b: Context | None) -> Context | None:
    """Return the inner of two contexts; ModelError where neither lies in the other.

    Branches of two conds with one predicate are one, as the same is taken of both.
    """
    while True:
        first, second = _diverge(a, b)
        if first is None:
            return None if b is None else b.current
        if second is None:
            return None if a is None else a.current
        if not (_of_one_predicate(body, first, second) and _number(first) == _number(second)):
            raise ModelError(
                f"{Node(body, index)} reads {described(first)} and {described(second)}, of which "
                f"only one is ever there; a Merge must stand between"
            )
        unite(first, second)


def merged(body: Body, index: int, a: Context | None, b: Context | None) -> Context | None:
    """Return the context of a Merge of these two: that around the cond of these branches."""
    first, second = _diverge(a, b)
    if first is None or second is None:
        return innermost(body, index, a, b)
    whole = a is not None and first is a.current and b is not None and second is b.current
    if not whole or not _of_one_predicate(body, first, second):
        raise ModelError(
            f"{Node(body, index)} joins {described(a)} and {described(b)}; it must join the "
            f"two branches of one cond"
        )
    if (_number(first), _number(second)) != (0, 1):
        raise ModelError(
            f"{Node(body, index)} has {described(first)} as its first input; TensorFlow's gradient "
            f"of it takes the first for the one where the predicate is false"
        )
    unite(first, second)
    return first.outer


def unite(a: Context, b: Context) -> None:
    """Let two branches be of one cond; its predicate is that which guards what they read."""
    assert isinstance(a, Branch)
    assert isinstance(b, Branch)
    merged_cond, dropped_cond = a.cond.current, b.cond.current
    if dropped_cond.is_guarded and not merged_cond.is_guarded:
        merged_cond, dropped_cond = dropped_cond, merged_cond
    if merged_cond is not dropped_cond:
        dropped_cond.one_with = merged_cond
        for number in dropped_cond.branches:
            merged_cond.branch(number)


def described(context: Context | None) -> str:
    """Return a context in words."""
    if context is None:
        return "what is in no branch"
    if isinstance(context, Loop):
        return f"the v1 loop {context.name!r}"
    return f"what is there if {context.cond.current.pred!r} is {bool(context.number)}"


def _number(context: Context) -> int:
    return context.number if isinstance(context, Branch) else -1


def _of_one_predicate(body: Body, a: Context, b: Context) -> bool:
    """Return whether they are branches of conds that the same predicate decides."""
    if not isinstance(a, Branch) or not isinstance(b, Branch):
        return False
    first, second = a.cond.current, b.cond.current
    return first is second or decider(body, first.pred) == decider(body, second.pred)


def decider(body: Body, tensor: str) -> str:
    """Return the tensor that a predicate is, Identities left out."""
    for producer in first_producers(body.producer(tensor)):
        if producer.op != "Identity" or not producer.data_inputs:
            break
        tensor = producer.data_inputs[0]
    return tensor.removesuffix(":0")


def _diverge(a: Context | None, b: Context | None) -> tuple[Context | None, Context | None]:
    """Return where two contexts part, seen from outside: nothing for the one that holds the other.

    Where one is nothing, it is the other itself. Of what is in a loop, what is around the loop is
    not looked at.
    """
    first, second = (None if context is None else context.current for context in (a, b))
    if first is None or second is None:
        return first, second
    parted: list[Context | None] = [None, None]
    while first is not second:
        depths = _depth(first), _depth(second)
        if depths[0] >= depths[1]:
            parted[0], first = first, _outer_in_loop(first)
        if depths[1] >= depths[0]:
            parted[1], second = second, _outer_in_loop(second)
    return parted[0], parted[1]


def _outer_in_loop(context: Context | None) -> Context | None:
    return context.outer if isinstance(context, Branch) else None


def _depth(context: Context | None) -> int:
    """Return how many contexts there are around and with this one, as far as the loop it is in."""
    if isinstance(context, Branch):
        return context.cond.current.depth
    return 0 if context is None else 1


PRED = "pred_id"  # what tf.cond calls the predicate that its Switches read


class ControlFlow(msgspec.Struct, eq=False):
    """Loops and branches of a body: the context of each op that is in one.

    A Switch that guards what a branch reads is in the branch; one that gives to both is in none
    (`shared`), and neither is that which tf.cond makes of the predicate alone (`pivots`). An Exit
    is in its loop, and what it gives outside of it. `loops` are by name; `in_loop` has the loop of
    each op that is in one: of an Enter the one that it enters, of an Exit the one that it leaves.
    `loop_switches` are those of loop variables.
    """

    body: Body
    loops: dict[str, Loop] = msgspec.field(default_factory=dict)
    in_loop: dict[int, Loop] = msgspec.field(default_factory=dict)
    loop_switches: set[int] = msgspec.field(default_factory=set)
    conds: dict[tuple[str, Context | None], Cond] = msgspec.field(default_factory=dict)
    of: dict[int, Context] = msgspec.field(default_factory=dict)
    guards: dict[int, Branch] = msgspec.field(default_factory=dict)
    pivots: dict[int, Cond] = msgspec.field(default_factory=dict)
    shared: dict[int, Cond] = msgspec.field(default_factory=dict)

    def context(self, index: int) -> Context | None:
        """Return the context that an op is in."""
        context = self.of.get(index)
        return None if context is None else context.current

    def given(self, index: int, text: str) -> Context | None:
        """Return the context of a tensor of an op, as an input spells it."""
        cond = self.pivots.get(index) or self.shared.get(index)
        is_control = text.startswith("^")
        if cond is not None and not is_control:
            return cond.branch(parse(text).index).current
        context = self.context(index)
        # What waits for a Switch runs whichever branch is taken.
        outside = is_control and index in self.guards
        if context is not None and (outside or self.body.heads.ops[index] in EXITS):
            context = context.outer
        return None if context is None else context.current


def ops_of(body: Body, types: frozenset[str]) -> list[int]:
    """Return the ops of these types, in the order of the file that would be written now."""
    indices = [index for op in types for index in body.by_type.get(op, ())]
    return sorted(indices, key=lambda index: position(body, index))


def position(body: Body, index: int) -> tuple[int, int]:
    """Return where an op stands in that file."""
    root = body.root.get(index, index)
    order = body.placed.get(root)
    return root, order.index(index) if order else 0


def reads(body: Body, index: int) -> Iterator[tuple[int, str]]:
    """Yield what an op reads, data and control: the op that gives it, and its spelling."""
    for text in body.heads.inputs[index]:
        producer = body.by_name.get(op_of(text))
        if producer is not None:
            yield producer, text


def is_constant(enter: Node) -> bool:
    """Return whether an Enter gives the same tensor in each iteration, no loop variable."""
    value = enter.attr("is_constant")
    return value is not None and value.b


def has_control_flow(body: Body) -> bool:
    """Return whether there is a v1 loop or branch at all."""
    return any(body.by_type.get(op) for op in ENTERS | SWITCHES)


def has_tensor_arrays(body: Body) -> bool:
    """Return whether there are TensorArrays of v1 loops, without gradient in v2."""
    return bool(body.by_type.get(TENSOR_ARRAY))


def inside_control_flow(body: Body) -> frozenset[int]:
    """Return the ops that are in a v1 loop or branch: those between its start and its end.

    Where its contexts are none that TensorFlow can tell of, an op that reads a Merge is not told.
    """
    if not has_control_flow(body):
        return frozenset()
    try:
        flow = control_flow(body)
    except ModelError:
        return frozenset(_readers_up_to(body, ops_of(body, ENTERS | SWITCHES), EXITS | MERGES))
    return frozenset(index for index in flow.of if flow.given(index, body.heads.names[index]))


def control_flow(body: Body) -> ControlFlow:
    """Return the contexts of a body. Linear in its size.

    Raises ModelError where its loops and branches are none that TensorFlow's contexts can tell of.
    """
    flow = ControlFlow(body)
    _find_loops(flow)
    for index in _in_order(flow):
        context = _context(flow, index)
        if context is not None:
            flow.of[index] = context
    for loop in flow.loops.values():
        if loop.outer is None:
            loop.outer = loop.around
    return flow


def _find_loops(flow: ControlFlow) -> None:
    """Find the loops of a body, and the loop of each op that is in one. Linear in its size.

    Raises ModelError where an op is in two loops at once, or a loop has not one LoopCond.
    """
    body = flow.body
    for index in ops_of(body, ENTERS):
        name = _frame_name(Node(body, index))
        flow.in_loop[index] = flow.loops.setdefault(name, Loop(name))
        flow.in_loop[index].enters.append(index)
    for loop in list(flow.loops.values()):
        for index in loop.enters:
            _spread(flow, index, loop)
    _refuse_circle(flow.loops.values())
    for index in ops_of(body, EXITS | SWITCHES | {LOOP_COND}):
        loop_of_op = flow.in_loop.get(index)
        if loop_of_op is not None and body.heads.ops[index] == LOOP_COND:
            loop_of_op.conditions.append(index)
        elif loop_of_op is not None and body.heads.ops[index] in SWITCHES:
            # It is a LoopCond that decides for the Switch of a loop variable.
            inputs = body.heads.inputs[index]
            decides = body.by_name.get(op_of(inputs[1])) if len(inputs) > 1 else None
            if decides is not None and body.heads.ops[decides] == LOOP_COND:
                loop_of_op.switches.append(index)
    for loop in flow.loops.values():
        loop.exits.sort(key=lambda index: position(body, index))
        if len(loop.conditions) != 1:
            raise ModelError(
                f"the v1 loop {loop.name!r} has {len(loop.conditions) or 'no'} LoopConds, and must "
                f"have one (its first Enter is {Node(body, loop.enters[0]).name!r})"
            )
        flow.loop_switches.update(loop.switches)


def _frame_name(enter: Node) -> str:
    value = enter.attr("frame_name")
    if value is None or not value.s:
        raise ModelError(f"{enter} names no frame (attr frame_name): nothing tells its loop")
    if not enter.data_inputs:
        raise ModelError(f"{enter} must read a tensor, and reads none")
    return str(value.s, errors="backslashreplace")


def _spread(flow: ControlFlow, start: int, loop: Loop) -> None:
    """Mark as in the loop what reads an op; behind the Exits of a loop lies the one around it."""
    body, todo = flow.body, [(start, loop)]
    while todo:
        index, loop = todo.pop()
        for reader, _ in _uses(body, index):
            if body.heads.ops[reader] in ENTERS:
                todo += _nest(flow, reader, loop)
            elif reader not in flow.in_loop:
                flow.in_loop[reader] = loop
                if body.heads.ops[reader] not in EXITS:
                    todo.append((reader, loop))
                    continue
                loop.exits.append(reader)
                todo += [(reader, loop.around)] if loop.around is not None else []
            elif flow.in_loop[reader] is not loop:
                raise _conflict(Node(body, reader), flow.in_loop[reader], loop)


def _nest(flow: ControlFlow, enter: int, around: Loop) -> list[tuple[int, Loop]]:
    """Put the loop of an Enter into the one around it; where to go on, behind its Exits."""
    inner = flow.in_loop[enter]
    if inner.around is around:
        return []
    if inner.around is not None or inner is around:
        raise _conflict(Node(flow.body, enter), inner.around or inner, around)
    inner.around = around
    return [(index, around) for index in inner.exits]


def _conflict(node: Node, a: Loop, b: Loop) -> ModelError:
    return ModelError(
        f"{node} reads from the v1 loops {a.name!r} and {b.name!r} at once; an Exit must "
        f"lead out of a loop, and an Enter into it"
    )


def _refuse_circle(loops: Iterable[Loop]) -> None:
    """Raise ModelError where loops lie in each other: none is the outermost. Linear."""
    known: set[Loop] = set()
    for loop in loops:
        path: dict[Loop, None] = {}
        outer: Loop | None = loop
        while outer is not None and outer not in known:
            if outer in path:
                names = " and ".join(sorted(repr(each.name) for each in path))
                raise ModelError(f"the v1 loops {names} lie in each other, and one must be around")
            path[outer] = None
            outer = outer.around
        known.update(path)


def _context(flow: ControlFlow, index: int) -> Context | None:
    body, loop = flow.body, flow.in_loop.get(index)
    kind = body.heads.ops[index]
    if loop is not None and kind in ENTERS:
        outer = _join_of(flow, index, loop.around)
        loop.outer = innermost(body, index, loop.outer, outer)
        return loop
    if kind in MERGES:
        return _of_merge(flow, index, loop)
    context = _join_of(flow, index, loop)
    if kind in SWITCHES and index not in flow.loop_switches:
        return _of_switch(flow, index, context)
    return context


def _join_of(flow: ControlFlow, index: int, context: Context | None) -> Context | None:
    for producer, text in reads(flow.body, index):
        context = innermost(flow.body, index, context, flow.given(producer, text))
    return context


def _of_merge(flow: ControlFlow, index: int, start: Context | None) -> Context | None:
    """Return what joins the branches of a cond, or what a loop variable is."""
    context_by_input = [
        (text, flow.given(producer, text)) for producer, text in reads(flow.body, index)
    ]
    joined = [context or start for text, context in context_by_input if not text.startswith("^")]
    context = joined[0] if joined else start
    for input_context in joined[1:]:
        context = merged(flow.body, index, context, input_context)
    for text, input_context in context_by_input:
        if text.startswith("^"):
            context = innermost(flow.body, index, context, input_context)
    return context


def _of_switch(flow: ControlFlow, index: int, around: Context | None) -> Context | None:
    body = flow.body
    node = Node(body, index)
    if len(node.data_inputs) != 2:
        raise ModelError(f"{node} must read two tensors, and reads {len(node.data_inputs)}")
    data, pred = node.data_inputs
    taken = {parse(text).index for _, _, text in data_uses(body, node.name)}
    alike = parse(data) == parse(pred)
    if alike or (len(taken) > 1 and decider(body, data) == decider(body, pred)):
        flow.pivots[index] = _cond(flow, _pred_of_cond(body, index, pred), around)
        return around
    cond = _cond(flow, pred, around)
    cond.is_guarded = True
    if len(taken) != 1:
        flow.shared[index] = cond
        return around
    flow.guards[index] = cond.branch(taken.pop())
    return flow.guards[index].current


def _cond(flow: ControlFlow, pred: str, outer: Context | None) -> Cond:
    key = (str(parse(pred)), None if outer is None else outer.current)
    if key not in flow.conds:
        flow.conds[key] = Cond(*key, depth=_depth(key[1]) + 1)
    return flow.conds[key].current


def _pred_of_cond(body: Body, pivot: int, pred: str) -> str:
    """Return the predicate that tf.cond made beside this Switch; conds may share it."""
    scope, slash, _ = body.heads.names[pivot].removesuffix("/forward").rpartition("/")
    index = body.by_name.get(f"{scope}{slash}{PRED}")
    if index is None or body.heads.ops[index] != "Identity":
        return pred
    made = body.heads.names[index]
    return made if decider(body, made) == decider(body, pred) else pred


def _in_order(flow: ControlFlow) -> list[int]:
    """Return what lies behind Enters and Switches, each op behind what it reads.

    A loop's Exits come behind all of its Enters; what a NextIteration gives back is left out.
    Raises ModelError where there is a circle without a NextIteration.
    """
    body, back = flow.body, _back_edges(flow.body)
    region = dict.fromkeys(_readers_up_to(body, ops_of(body, ENTERS | SWITCHES)))
    read_by = {
        index: {
            producer
            for slot, text in enumerate(body.heads.inputs[index])
            if (producer := body.by_name.get(op_of(text))) in region and (index, slot) not in back
        }
        for index in region
    }
    for number, loop in enumerate(flow.loops.values(), len(body)):
        read_by[number] = {*loop.enters}  # of the loop as a whole
        for index in loop.exits:
            read_by[index].add(number)
    order = [index for index in in_order(read_by) if index < len(body)]
    if len(order) < len(region):
        stuck = min(region.keys() - set(order), key=lambda index: position(body, index))
        raise ModelError(f"{Node(body, stuck)} lies on a circle that no NextIteration closes")
    return order


def _uses(body: Body, index: int) -> Iterable[tuple[int, int]]:
    return body.readers.get(body.heads.names[index], ())


def _readers_up_to(
    body: Body, starts: Iterable[int], ends: Collection[str] = frozenset()
) -> Iterable[int]:
    """Return the starts, and what reads them and so on, up to before these op types."""
    ops = body.heads.ops

    def readers(index: int) -> list[int]:
        return [reader for reader, _ in _uses(body, index) if ops[reader] not in ends]

    return reached(starts, readers)


def _back_edges(body: Body) -> set[tuple[int, int]]:
    """Return inputs of Merges that come, also through what a patch added, from a NextIteration."""
    behind = _readers_up_to(body, ops_of(body, NEXTS), MERGES)
    uses = (use for index in behind for use in _uses(body, index))
    return {(reader, slot) for reader, slot in uses if body.heads.ops[reader] in MERGES}
