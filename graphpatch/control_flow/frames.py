"""v1 loops of a body: which ops each of them holds, told by its Enters, and how they nest.

As in TensorFlow's executor, an op is in the frame of what it reads; an Enter leads into the frame
that its attr names, an Exit back out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from graphpatch.control_flow.op_types import ENTERS, EXITS, LOOP_COND, SWITCHES
from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.names import op_of


class Frame(msgspec.Struct, eq=False):
    """One loop; its Enters, Exits, Switches and LoopCond by index, in the order of the file."""

    name: str
    outer: Frame | None = None
    enters: list[int] = msgspec.field(default_factory=list)
    exits: list[int] = msgspec.field(default_factory=list)
    switches: list[int] = msgspec.field(default_factory=list)
    conditions: list[int] = msgspec.field(default_factory=list)

    @property
    def condition(self) -> int:
        """Its LoopCond, of which `frames` has seen that there is one."""
        return self.conditions[0]


class Frames(msgspec.Struct, frozen=True, eq=False):
    """The loops of a body by name, and the loop of each op that is in one.

    An Enter belongs to the loop that it enters, an Exit to the one that it leaves. `switches` are
    those of loop variables.
    """

    loops: dict[str, Frame] = msgspec.field(default_factory=dict)
    of: dict[int, Frame] = msgspec.field(default_factory=dict)
    switches: set[int] = msgspec.field(default_factory=set)


def frames(body: Body) -> Frames:
    """The loops of a body. Linear in its size.

    Raises ModelError where an op is in two loops at once, or a loop has not one LoopCond.
    """
    found = Frames()
    for index in ops_of(body, ENTERS):
        name = _frame_name(Node(body, index))
        found.of[index] = found.loops.setdefault(name, Frame(name))
        found.of[index].enters.append(index)
    for index in [index for loop in found.loops.values() for index in loop.enters]:
        _spread(body, found, index, found.of[index])
    _refuse_circle(found.loops.values())
    for index in ops_of(body, EXITS | SWITCHES | {LOOP_COND}):
        _put_in_frame(body, found.of.get(index), index)
    for loop in found.loops.values():
        _check_exits(body, loop)
        found.switches.update(loop.switches)
    return found


def ops_of(body: Body, types: frozenset[str]) -> list[int]:
    """The ops of these types, in the order of the file that would be written now."""
    found = [index for op in types for index in body.by_type.get(op, ())]
    return sorted(found, key=lambda index: position(body, index))


def position(body: Body, index: int) -> tuple[int, int]:
    """Where an op stands in that file."""
    root = body.root.get(index, index)
    order = body.placed.get(root)
    return root, order.index(index) if order else 0


def reads(body: Body, index: int) -> Iterator[tuple[int, str]]:
    """What an op reads, data and control: the op that gives it, and how the input spells it."""
    for text in body.heads.inputs[index]:
        producer = body.by_name.get(op_of(text))
        if producer is not None:
            yield producer, text


def is_constant(enter: Node) -> bool:
    """Whether an Enter gives the same tensor in each iteration, not what a loop variable begins."""
    value = enter.attr("is_constant")
    return value is not None and value.b


def _frame_name(enter: Node) -> str:
    value = enter.attr("frame_name")
    if value is None or not value.s:
        raise ModelError(f"{enter} names no frame (attr frame_name): nothing tells its loop")
    if not enter.data_inputs:
        raise ModelError(f"{enter} must read a tensor, and reads none")
    return str(value.s, errors="backslashreplace")


def _spread(body: Body, found: Frames, start: int, frame: Frame) -> None:
    """Mark as in the frame what reads an op; behind the Exits of a frame lies the one around it."""
    todo = [(start, frame)]
    while todo:
        index, frame = todo.pop()
        for reader, _ in body.readers.get(body.heads.names[index], ()):
            if body.heads.ops[reader] in ENTERS:
                todo += _nest(body, found, reader, frame)
                continue
            if reader not in found.of:
                found.of[reader] = frame
                todo += _onward(body, reader, frame)
            elif found.of[reader] is not frame:
                raise _conflict(Node(body, reader), found.of[reader], frame)


def _onward(body: Body, index: int, frame: Frame) -> list[tuple[int, Frame]]:
    if body.heads.ops[index] not in EXITS:
        return [(index, frame)]
    frame.exits.append(index)
    return [(index, frame.outer)] if frame.outer is not None else []


def _nest(body: Body, found: Frames, enter: int, outer: Frame) -> list[tuple[int, Frame]]:
    """Put the loop of an Enter into the one around it; where to go on, behind its Exits."""
    inner = found.of[enter]
    if inner.outer is outer:
        return []
    if inner.outer is not None or inner is outer:
        raise _conflict(Node(body, enter), inner.outer or inner, outer)
    inner.outer = outer
    return [(index, outer) for index in inner.exits]


def _conflict(node: Node, one: Frame, other: Frame) -> ModelError:
    return ModelError(
        f"{node} reads from the v1 loops {one.name!r} and {other.name!r} at once; an Exit must "
        f"lead out of a loop, and an Enter into it"
    )


def _refuse_circle(loops: Iterable[Frame]) -> None:
    """Raise ModelError where loops lie in each other: none is the outermost. Linear."""
    known: set[Frame] = set()
    for loop in loops:
        around: dict[Frame, None] = {}
        one: Frame | None = loop
        while one is not None and one not in known:
            if one in around:
                names = " and ".join(sorted(repr(each.name) for each in around))
                raise ModelError(f"the v1 loops {names} lie in each other, and one must be around")
            around[one] = None
            one = one.outer
        known.update(around)


def _put_in_frame(body: Body, frame: Frame | None, index: int) -> None:
    if frame is None:
        return
    kind = body.heads.ops[index]
    if kind == LOOP_COND:
        frame.conditions.append(index)
    elif kind in SWITCHES and _condition(body, index):
        frame.switches.append(index)


def _condition(body: Body, switch: int) -> bool:
    """Whether it is a LoopCond that decides for a Switch: then it is that of a loop variable."""
    inputs = body.heads.inputs[switch]
    decides = body.by_name.get(op_of(inputs[1])) if len(inputs) > 1 else None
    return decides is not None and body.heads.ops[decides] == LOOP_COND


def _check_exits(body: Body, loop: Frame) -> None:
    loop.exits.sort(key=lambda index: position(body, index))
    if len(loop.conditions) == 1:
        return
    enter, count = Node(body, loop.enters[0]), len(loop.conditions)
    raise ModelError(
        f"the v1 loop {loop.name!r} has {count or 'no'} LoopConds, and must have one "
        f"(its first Enter is {enter.name!r})"
    )
