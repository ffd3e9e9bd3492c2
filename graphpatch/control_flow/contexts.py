"""The control-flow context of each op of a body, read off what it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from graphpatch.control_flow.branches import Branch, Cond, Context, Loop, decider, innermost, merged
from graphpatch.control_flow.frames import Frame, Frames, frames, ops_of, position, reads
from graphpatch.control_flow.op_types import (
    ENTERS,
    EXITS,
    MERGES,
    NEXTS,
    SWITCHES,
    TENSOR_ARRAY,
)
from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import data_uses
from graphpatch.names import op_of, parse

PRED = "pred_id"  # what tf.cond calls the predicate that its Switches read


class ControlFlow(msgspec.Struct, eq=False):
    """Loops and branches of a body: the context of each op that is in one.

    A Switch that guards what a branch reads is in the branch; one that gives to both is in none
    (`shared`), and neither is that which tf.cond makes of the predicate alone (`pivots`). An Exit
    is in its loop, and what it gives outside of it.
    """

    body: Body
    frames: Frames
    loops: dict[Frame, Loop] = msgspec.field(default_factory=dict)
    conds: dict[tuple[str, Context | None], Cond] = msgspec.field(default_factory=dict)
    of: dict[int, Context] = msgspec.field(default_factory=dict)
    guards: dict[int, Branch] = msgspec.field(default_factory=dict)
    pivots: dict[int, Cond] = msgspec.field(default_factory=dict)
    shared: dict[int, Cond] = msgspec.field(default_factory=dict)

    def context(self, index: int) -> Context | None:
        """The context that an op is in."""
        found = self.of.get(index)
        return None if found is None else found.current

    def given(self, index: int, text: str) -> Context | None:
        """The context of a tensor of an op, as an input spells it."""
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


def has_control_flow(body: Body) -> bool:
    """Whether there is a v1 loop or branch at all."""
    return any(body.by_type.get(op) for op in ENTERS | SWITCHES)


def has_tensor_arrays(body: Body) -> bool:
    """Whether there are TensorArrays of v1 loops; with control flow v2 they have no gradient."""
    return bool(body.by_type.get(TENSOR_ARRAY))


def inside_control_flow(body: Body) -> frozenset[int]:
    """The ops that are in a v1 loop or branch: those between its start and its end.

    Where its contexts are none that TensorFlow can tell of, an op that reads a Merge is not told.
    """
    if not has_control_flow(body):
        return frozenset()
    try:
        found = control_flow(body)
    except ModelError:
        return frozenset(_readers_up_to(body, ops_of(body, ENTERS | SWITCHES), EXITS | MERGES))
    return frozenset(index for index in found.of if found.given(index, body.heads.names[index]))


def control_flow(body: Body) -> ControlFlow:
    """The contexts of a body. Linear in its size.

    Raises ModelError where its loops and branches are none that TensorFlow's contexts can tell of.
    """
    found = ControlFlow(body, frames(body))
    found.loops.update({frame: Loop(frame) for frame in found.frames.loops.values()})
    for index in _in_order(body, found.frames):
        context = _context(found, index)
        if context is not None:
            found.of[index] = context
    for loop in found.loops.values():
        if loop.outer is None and loop.frame.outer is not None:
            loop.outer = found.loops[loop.frame.outer]
    return found


def _context(found: ControlFlow, index: int) -> Context | None:
    body, frame = found.body, found.frames.of.get(index)
    kind = body.heads.ops[index]
    if frame is not None and kind in ENTERS:
        loop = found.loops[frame]
        outer = _join_of(found, index, found.loops.get(frame.outer) if frame.outer else None)
        loop.outer = innermost(body, index, loop.outer, outer)
        return loop
    start = None if frame is None else found.loops[frame]
    if kind in MERGES:
        return _of_merge(found, index, start)
    context = _join_of(found, index, start)
    if kind in SWITCHES and index not in found.frames.switches:
        return _of_switch(found, index, context)
    return context


def _join_of(found: ControlFlow, index: int, context: Context | None) -> Context | None:
    for producer, text in reads(found.body, index):
        context = innermost(found.body, index, context, found.given(producer, text))
    return context


def _of_merge(found: ControlFlow, index: int, start: Context | None) -> Context | None:
    """What joins the branches of a cond, or what a loop variable is."""
    given = [(text, found.given(producer, text)) for producer, text in reads(found.body, index)]
    joined = [context or start for text, context in given if not text.startswith("^")]
    context = joined[0] if joined else start
    for other in joined[1:]:
        context = merged(found.body, index, context, other)
    for text, other in given:
        if text.startswith("^"):
            context = innermost(found.body, index, context, other)
    return context


def _of_switch(found: ControlFlow, index: int, around: Context | None) -> Context | None:
    body = found.body
    node = Node(body, index)
    if len(node.data_inputs) != 2:
        raise ModelError(f"{node} must read two tensors, and reads {len(node.data_inputs)}")
    data, pred = node.data_inputs
    taken = {parse(text).index for _, _, text in data_uses(body, node.name)}
    alike = parse(data) == parse(pred)
    if alike or (len(taken) > 1 and decider(body, data) == decider(body, pred)):
        found.pivots[index] = _cond(found, _pred_of_cond(body, index, pred), around)
        return around
    cond = _cond(found, pred, around)
    cond.is_guarded = True
    if len(taken) != 1:
        found.shared[index] = cond
        return around
    found.guards[index] = cond.branch(taken.pop())
    return found.guards[index].current


def _cond(found: ControlFlow, pred: str, outer: Context | None) -> Cond:
    key = (str(parse(pred)), None if outer is None else outer.current)
    if key not in found.conds:
        found.conds[key] = Cond(*key)
    return found.conds[key].current


def _pred_of_cond(body: Body, pivot: int, pred: str) -> str:
    """The predicate that tf.cond made beside this Switch, which conds with the same one share."""
    scope, slash, _ = body.heads.names[pivot].removesuffix("/forward").rpartition("/")
    index = body.by_name.get(f"{scope}{slash}{PRED}")
    if index is None or body.heads.ops[index] != "Identity":
        return pred
    made = body.heads.names[index]
    return made if decider(body, made) == decider(body, pred) else pred


def _in_order(body: Body, found: Frames) -> Iterator[int]:
    """What lies behind Enters and Switches, each op behind what it reads.

    A loop's Exits come behind all of its Enters; what a NextIteration gives back is left out.
    Raises ModelError where there is a circle without a NextIteration.
    """
    region = _readers_up_to(body, ops_of(body, ENTERS | SWITCHES))
    back = _back_edges(body)
    waits = {index: _waits_for(body, index, region, back) for index in region}
    after: dict[Frame, int] = {loop: len(loop.enters) for loop in found.loops.values()}
    for loop in found.loops.values():
        for index in loop.exits:
            waits[index] += 1
    ready, done = [index for index in region if not waits[index]], 0
    while ready:
        index = ready.pop()
        done += 1
        yield index
        freed = [i for i, slot in _uses(body, index) if (i, slot) not in back]
        if body.heads.ops[index] in ENTERS:
            loop = found.of[index]
            after[loop] -= 1
            freed += loop.exits if not after[loop] else []
        for reader in freed:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    if done < len(region):
        stuck = min((i for i in region if waits[i] > 0), key=lambda index: position(body, index))
        raise ModelError(f"{Node(body, stuck)} lies on a circle that no NextIteration closes")


def _uses(body: Body, index: int) -> Iterable[tuple[int, int]]:
    return body.readers.get(body.heads.names[index], ())


def _readers_up_to(
    body: Body, starts: Iterable[int], ends: Collection[str] = frozenset()
) -> dict[int, None]:
    """The starts, and what reads them and so on, up to before these op types."""
    found = dict.fromkeys(starts)
    todo = list(found)
    while todo:
        for reader, _ in _uses(body, todo.pop()):
            if reader not in found and body.heads.ops[reader] not in ends:
                found[reader] = None
                todo.append(reader)
    return found


def _waits_for(
    body: Body, index: int, region: dict[int, None], back: Collection[tuple[int, int]]
) -> int:
    """How many inputs an op waits for: those from the region that no NextIteration gives back."""
    return sum(
        body.by_name.get(op_of(text)) in region and (index, slot) not in back
        for slot, text in enumerate(body.heads.inputs[index])
    )


def _back_edges(body: Body) -> set[tuple[int, int]]:
    """The inputs of Merges that come, perhaps through what a patch added, from a NextIteration."""
    found, todo = set(), ops_of(body, NEXTS)
    seen = set(todo)
    while todo:
        for reader, slot in _uses(body, todo.pop()):
            if body.heads.ops[reader] in MERGES:
                found.add((reader, slot))
            elif reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return found
