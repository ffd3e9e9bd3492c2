"""Control-flow contexts of a body, as TensorFlow had them when it was built: a tree.

A loop is a context, and so is each branch of a v1 cond: what is dead where the other one is taken.
An op is in the innermost context of all that it reads. A branch begins at Switches that share a
predicate, a cond ends at Merges.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphpatch.control_flow.frames import Frame
from graphpatch.errors import ModelError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import first_producers


class Loop(msgspec.Struct, eq=False):
    """The context of a loop, inside of `outer`."""

    frame: Frame
    outer: Context | None = None

    @property
    def current(self) -> Loop:
        """Itself."""
        return self


class Cond(msgspec.Struct, eq=False):
    """A cond: its predicate, a tensor; another cond takes its place where they turn out as one."""

    pred: str
    outer: Context | None
    is_guarded: bool = False  # the predicate is that of a Switch that guards what branches read
    branches: dict[int, Branch] = msgspec.field(default_factory=dict)
    one_with: Cond | None = None

    @property
    def current(self) -> Cond:
        """The cond that this one is by now."""
        found = self
        while found.one_with is not None:
            found = found.one_with
        return found

    def branch(self, number: int) -> Branch:
        """The context of its branch: 1 where the predicate holds, 0 where not."""
        return self.branches.setdefault(number, Branch(self, number))


class Branch(msgspec.Struct, eq=False):
    """The context of one branch of a cond."""

    cond: Cond
    number: int

    @property
    def current(self) -> Branch:
        """The branch that this one is by now."""
        return self.cond.current.branch(self.number)

    @property
    def outer(self) -> Context | None:
        """The context around the cond."""
        outer = self.cond.current.outer
        return None if outer is None else outer.current


Context = Loop | Branch


def innermost(body: Body, index: int, one: Context | None, other: Context | None) -> Context | None:
    """The inner of two contexts; ModelError where neither lies in the other.

    Branches of two conds with one predicate are one, as the same is taken of both.
    """
    while True:
        first, second = _parted(one, other)
        if first is None:
            return None if other is None else other.current
        if second is None:
            return None if one is None else one.current
        if not (_of_one_predicate(body, first, second) and _number(first) == _number(second)):
            raise ModelError(
                f"{Node(body, index)} reads {described(first)} and {described(second)}, of which "
                f"only one is ever there; a Merge must stand between"
            )
        unite(first, second)


def merged(body: Body, index: int, one: Context | None, other: Context | None) -> Context | None:
    """The context of a Merge of these two: that around the cond where they are its branches."""
    first, second = _parted(one, other)
    if first is None or second is None:
        return innermost(body, index, one, other)
    whole = (
        one is not None and first is one.current and other is not None and second is other.current
    )
    if not whole or not _of_one_predicate(body, first, second):
        raise ModelError(
            f"{Node(body, index)} joins {described(one)} and {described(other)}; it must join the "
            f"two branches of one cond"
        )
    if (_number(first), _number(second)) != (0, 1):
        raise ModelError(
            f"{Node(body, index)} has {described(first)} as its first input; TensorFlow's gradient "
            f"of it takes the first for the one where the predicate is false"
        )
    unite(first, second)
    return first.outer


def unite(one: Context, other: Context) -> None:
    """Let two branches be of one cond; its predicate is that which guards what they read."""
    assert isinstance(one, Branch)
    assert isinstance(other, Branch)
    kept, left = one.cond.current, other.cond.current
    if left.is_guarded and not kept.is_guarded:
        kept, left = left, kept
    if kept is not left:
        left.one_with = kept
        for number in left.branches:
            kept.branch(number)


def described(context: Context | None) -> str:
    """A context in words."""
    if context is None:
        return "what is in no branch"
    if isinstance(context, Loop):
        return f"the v1 loop {context.frame.name!r}"
    return f"what is there if {context.cond.current.pred!r} is {bool(context.number)}"


def _number(context: Context) -> int:
    return context.number if isinstance(context, Branch) else -1


def _of_one_predicate(body: Body, one: Context, other: Context) -> bool:
    """Whether they are branches of conds that the same predicate decides."""
    if not isinstance(one, Branch) or not isinstance(other, Branch):
        return False
    first, second = one.cond.current, other.cond.current
    return first is second or decider(body, first.pred) == decider(body, second.pred)


def decider(body: Body, tensor: str) -> str:
    """The tensor that a predicate is, Identities left out."""
    for producer in first_producers(body.producer(tensor)):
        if producer.op != "Identity" or not producer.data_inputs:
            break
        tensor = producer.data_inputs[0]
    return tensor.removesuffix(":0")


def _parted(one: Context | None, other: Context | None) -> tuple[Context | None, Context | None]:
    """Where two contexts part, seen from outside: nothing for the one that holds the other."""
    near = _parted_near(one, other)
    if near is not None:
        return near
    ways = list(_way(one)), list(_way(other))
    ways[0].reverse()
    ways[1].reverse()
    for first, second in zip(*ways, strict=False):
        if first is not second:
            return first, second
    shared = min(map(len, ways))
    rests = [way[shared] if len(way) > shared else None for way in ways]
    return rests[0], rests[1]


def _parted_near(
    one: Context | None, other: Context | None
) -> tuple[Context | None, Context | None] | None:
    """The same where it is seen from inside, as of most: None where it is not."""
    first, second = (None if context is None else context.current for context in (one, other))
    if first is second:
        return None, None
    if first is None or second is None:
        return first, second
    outer, beside = (one.outer if isinstance(one, Branch) else one for one in (first, second))
    if isinstance(first, Branch) and outer is second:
        return first, None
    if isinstance(second, Branch) and beside is first:
        return None, second
    is_beside = isinstance(first, Branch) and isinstance(second, Branch) and outer is beside
    return (first, second) if is_beside else None


def _way(context: Context | None) -> Iterator[Context]:
    """A context and those around it, as far as the loop that it is in."""
    while context is not None:
        context = context.current
        yield context
        if isinstance(context, Loop):
            return
        context = context.outer
