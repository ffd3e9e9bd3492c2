"""What `tf.gradients` does in a body, step by step as TensorFlow does it, without running it.

It looks for the ops between the two ends, visits each when all that read it were visited, and asks
it for the gradients of its inputs. In a v1 loop that has its context, the Switch of a loop variable
is visited each time that it is read; the Exits wait for one another, and those that nobody reads
get zeros where another has a gradient. (`_ControlFlowState` and `_UpdatePendingAndEnqueueReady` in
TensorFlow.) A loop without its context, and without an Exit, is never visited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, Union

from graphpatch.control_flow.stored import StoredContexts, StoredLoop
from graphpatch.differentiation import flow
from graphpatch.differentiation.flow import CARRIED
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import ALL_SWITCHES, ENTERS, EXITS, LOOP_COND, MERGES

# What is raised where an op is differentiated outside its loop: at the ops where an iteration
# begins, and where the gradient reads what the op read or gave, which cannot be read from outside.
# In saying so TensorFlow 2.21 fails: an imported op has no traceback to print.
NO_CONTEXT = "AttributeError: 'NoneType' object has no attribute 'outer_context'"
NO_STATE = "AttributeError: 'NoneType' object has no attribute 'grad_state'"
NO_PIVOT = "AttributeError: 'NoneType' object has no attribute 'pivot'"
NO_PREDICATE = "AttributeError: 'WhileContext' object has no attribute 'pred'"
NOT_FROM_OUTSIDE = "TypeError: 'NoneType' object is not iterable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where tf.gradients raises: the op, the kind of cause, and what it says."""

    node: Node
    kind: str
    says: str


Raised: TypeAlias = Sequence[Union[Refusal, "GradientReach"]]
"""What is raised, in TensorFlow's order: at ops, and inside functions that ops call."""


def _first(raised: Raised) -> Refusal | None:
    causes = (cause if isinstance(cause, Refusal) else cause.first for cause in raised)
    return next((cause for cause in causes if cause is not None), None)


def _raises(raised: Raised) -> bool:
    """Return whether anything is raised but by what our own rules carry."""
    return any(
        cause.kind != CARRIED if isinstance(cause, Refusal) else cause.raises for cause in raised
    )


@dataclass(frozen=True, slots=True)
class OpGradientFlow:
    """What an op answers where a gradient comes to its outputs: the input slots it flows into.

    `reach` has, by slot, the outputs from which what flows is not always zero; default: from any.
    `is_whole`: the op calls a function that is differentiated as a whole. Such a one is asked
    though it is a source, and each of its outputs gets zeros where it gets nothing else.
    """

    slots: frozenset[int] = frozenset()
    raised: Raised = ()
    reach: Mapping[int, frozenset[int]] = field(default_factory=dict)
    is_whole: bool = False

    @property
    def first(self) -> Refusal | None:
        """Return what is raised first, at the op or in what it calls."""
        return _first(self.raised)

    @property
    def raises(self) -> bool:
        """Return whether anything is raised but by what our own rules carry."""
        return _raises(self.raised)


Ask = Callable[[Wiring, int], OpGradientFlow]


@dataclass(eq=False)
class GradientReach:
    """How far gradients come in one body, from its targets back to its sources.

    `got` are the tensors for which there is a gradient, `live` those of which it is not always 0:
    the same set, as long as all are. `answers` has those of ops that were asked; `visited`, all.
    """

    wiring: Wiring
    between: set[int]
    got: set[Tensor]
    live: set[Tensor]
    visited: set[int] = field(default_factory=set)
    answers: dict[int, OpGradientFlow] = field(default_factory=dict)
    raised: list[Refusal | GradientReach] = field(default_factory=list)

    def refusals(self, listed: set[int] | None = None) -> Iterator[Refusal]:
        """What is raised here and inside; of a function once, not of one `listed` by its id."""
        listed, todo = set() if listed is None else listed, [iter(self.raised)]
        while todo:
            cause = next(todo[-1], None)
            if cause is None:
                todo.pop()
            elif isinstance(cause, Refusal):
                yield cause
            elif id(cause) not in listed:
                listed.add(id(cause))
                todo.append(iter(cause.raised))

    def refusals_here(self) -> Iterator[Refusal]:
        """Return what is raised at ops of the body itself, not in functions that they call."""
        return (cause for cause in self.raised if isinstance(cause, Refusal))

    @cached_property
    def first(self) -> Refusal | None:
        """Return what is raised first. It is asked of the innermost functions first, at the end."""
        return _first(self.raised)

    @cached_property
    def raises(self) -> bool:
        """Return whether anything is raised but by what our own rules carry."""
        return _raises(self.raised)

    @cached_property
    def arguments(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the places of the function's arguments that are among `got`, and among `live`."""
        got, live = (
            frozenset(-1 - index for index, _ in tensors if index < 0)
            for tensors in (self.got, self.live)
        )
        return got, live


def ops_on_paths(wiring: Wiring, within: Set[int], targets: Iterable[Tensor]) -> list[int]:
    """The ops `within` on the path to the targets, in the order in which TensorFlow finds them."""
    inputs, on_path = wiring.inputs, dict.fromkeys(i for i, _ in targets if i in within)
    todo = list(on_path)
    for index in todo:
        for producer, _ in inputs(index):
            if producer in within and producer not in on_path:
                on_path[producer] = None
                todo.append(producer)
    return todo


def differentiate(
    wiring: Wiring,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    ask: Ask,
    stored: StoredContexts | None,
    control_flow_v2: bool,
    within: Set[int],
) -> GradientReach:
    """Follow the gradients of `targets` back to `sources`.

    `within` are the ops that depend on the sources by outputs that carry gradients. `ask` says what
    an op answers; `stored` are the v1 loops that have their contexts, None in a function, whose
    loops are rebuilt. Refusals are listed in TensorFlow's order; it stops at the first, and what
    lies beyond is what would come after it is fixed.
    """
    on_path = ops_on_paths(wiring, within, targets)
    walk = _Walk(wiring, targets, on_path, ask, stored or StoredContexts(), control_flow_v2)
    bare = [index for index in walk.exits if walk.loop(index) is None]
    if stored is not None and bare:
        walk.reach.raised.append(Refusal(Node(wiring.body, bare[0]), "loop", NO_CONTEXT))
    walk.run(sources)
    return walk.reach


class _Walk:
    """One call of `tf.gradients` in one body, whose ops `on_path` are between the two ends.

    `pending` is how often each op is still to be reached, `waiting` how many Exits of each loop
    are, and `first` are the targets that nothing on the path reads. Without loops, or their Exits,
    `has_loops` is False.
    """

    def __init__(
        self,
        wiring: Wiring,
        targets: Sequence[Tensor],
        on_path: list[int],
        ask: Ask,
        stored: StoredContexts,
        control_flow_v2: bool,
    ) -> None:
        self.wiring, self.ops = wiring, wiring.body.heads.ops
        self.ask, self.stored, self.control_flow_v2 = ask, stored, control_flow_v2
        self.exits = [index for index in on_path if index >= 0 and self.ops[index] in EXITS]
        self.has_loops = bool(self.exits or stored.in_loops)
        got = set(targets)
        self.reach = GradientReach(wiring, set(on_path), got, set(targets) if self.exits else got)
        by_name = wiring.body.by_name
        loops = dict.fromkeys(loop for index in self.exits if (loop := self.loop(index)))
        self.exits_of = {
            loop: [by_name[name] for name in loop.exits if name in by_name] for loop in loops
        }
        exits = [index for loop_exits in self.exits_of.values() for index in loop_exits]
        self.pending = dict.fromkeys([*on_path, *exits], 0)
        for index in self.pending:
            for producer, _ in wiring.inputs(index):
                if producer in self.pending:
                    self.pending[producer] += 1
        self.first = dict.fromkeys(i for i, _ in targets if self.pending.get(i) == 0)
        self.waiting = {
            loop: sum(self.pending[index] > 0 for index in loop_exits)
            for loop, loop_exits in self.exits_of.items()
        }
        self.loop_of_exit = {
            index: loop for loop, loop_exits in self.exits_of.items() for index in loop_exits
        }

    def run(self, sources: Sequence[Tensor]) -> None:
        """Visit each op when all that read it were visited: of loops, as TensorFlow does there."""
        wiring, pending, visited = self.wiring, self.pending, self.reach.visited
        inputs, tensors, got = wiring.inputs, wiring.tensors, self.reach.got
        has_loops, is_loop_variable = self.has_loops, self._is_loop_variable
        ends = {  # sources that have no other source before them: TensorFlow does not ask those
            index
            for index, _ in sources
            if not any(pending.get(producer) for producer, _ in wiring.inputs(index))
        }
        queue = deque(self.first)
        for loop in [loop for loop, count in self.waiting.items() if not count]:
            queue += self._ready_exits(loop)
        while queue:
            index = queue.popleft()
            visited.add(index)
            has_gradient = index >= 0 and not got.isdisjoint(tensors(index))
            if has_gradient and (index not in ends or self.ask(wiring, index).is_whole):
                self._visit(index)
            for producer, _ in inputs(index):
                pending[producer] = unvisited = pending.get(producer, 0) - 1
                if unvisited == 0 and not has_loops:
                    queue.append(producer)
                elif unvisited == 0 or (has_loops and unvisited > 0 and is_loop_variable(producer)):
                    queue += self._ready(producer)

    def _ready(self, index: int) -> Sequence[int]:
        """Return the ops to visit where this one is reached: Exits wait for the last of a loop."""
        loop = self.loop_of_exit.get(index)
        if loop is None:
            return [index]
        self.waiting[loop] -= 1
        return () if self.waiting[loop] else self._ready_exits(loop)

    def _ready_exits(self, loop: StoredLoop) -> list[int]:
        got, exits = self.reach.got, self.exits_of[loop]
        used = [index for index in exits if (index, 0) in got]
        if used:
            got |= {(index, 0) for index in exits if self.wiring.trainable((index, 0))}
        return [index for index in dict.fromkeys([*used, *exits]) if index not in self.first]

    def _visit(self, index: int) -> None:
        """Ask an op that got a gradient for those of its inputs, unless TensorFlow does not."""
        reach, wiring = self.reach, self.wiring
        if self.has_loops and self._is_left_out(index):
            return
        answer = reach.answers[index] = self.ask(wiring, index)
        if answer.raised:
            reach.raised += answer.raised
        if self.has_loops and answer.slots and answer.first is None:
            says = self._raised_outside_loop(index)
            if says:
                reach.raised.append(Refusal(Node(wiring.body, index), "loop_inside", says))
        inputs = wiring.inputs(index)
        flowing = [inputs[slot] for slot in answer.slots if slot < len(inputs)]
        if reach.live is reach.got and (answer.reach or answer.is_whole):
            reach.live = reach.got.copy()  # so far, nothing that came was always zero
        reach.got.update(flowing)
        if answer.is_whole:
            reach.got.update(filter(wiring.trainable, wiring.tensors(index)))
        if reach.live is reach.got:
            return
        if answer.reach or self.exits:
            self._spread_live(index)
        elif not reach.live.isdisjoint(wiring.tensors(index)):
            reach.live.update(flowing)

    def _spread_live(self, index: int) -> None:
        """Let what is not always zero flow through an op that was asked.

        Round a loop it flows in the iterations before, too: through ops that were visited before.
        """
        live, answers, wiring = self.reach.live, self.reach.answers, self.wiring
        todo = [index]
        for index in todo:
            answer, inputs = answers[index], wiring.inputs(index)
            outputs = {tensor[1] for tensor in wiring.tensors(index) if tensor in live}
            for slot in answer.slots if outputs else ():
                is_done = slot >= len(inputs) or inputs[slot] in live
                if not is_done and not outputs.isdisjoint(answer.reach.get(slot, outputs)):
                    live.add(inputs[slot])
                    if inputs[slot][0] in answers:
                        todo.append(inputs[slot][0])

    def _is(self, index: int, ops: Set[str]) -> bool:
        return index >= 0 and self.ops[index] in ops

    def loop(self, index: int) -> StoredLoop | None:
        """Return the loop with a context in which an op is."""
        names = self.wiring.body.heads.names
        return self.stored.in_loops.get(names[index]) if index >= 0 else None

    def _is_loop_variable(self, index: int) -> bool:
        """Return whether an op is the Switch of a loop variable, which is visited repeatedly.

        Where no loop has its context, and an Exit says so, gradients go on as if it had.
        """
        if not self._is(index, ALL_SWITCHES):
            return False
        is_asked = self.loop(index) is not None or (self.exits and not self.waiting)
        decision = self.wiring.inputs(index)[1:2]  # none in a broken graph
        return bool(is_asked and decision) and self._is(decision[0][0], {LOOP_COND})

    def _is_left_out(self, index: int) -> bool:
        """Return whether TensorFlow does not ask an op of a loop: a Switch waits for its Exit."""
        loop = self.loop(index)
        if loop not in self.waiting:
            return False
        if index in self.loop_of_exit:
            return not loop.back_prop
        return (index, 0) not in self.reach.got and self._is_loop_variable(index)

    def _raised_outside_loop(self, index: int) -> str:
        """What is raised at an op of a loop that has no Exit between the ends; or nothing."""
        loop, op, read = self.loop(index), self.ops[index], self.wiring.inputs(index)
        if loop is None or loop in self.waiting:
            return ""
        if not self.waiting and self._needs_zeros(index):
            return NOT_FROM_OUTSIDE if self.control_flow_v2 else NO_PREDICATE
        if self._is_loop_variable(index):
            return NO_STATE
        if op in MERGES and read and self._is(read[0][0], ENTERS):
            return NO_PIVOT
        is_apart = flow.is_asked_apart(op, lambda: all(map(self._shapes.is_known, read)))
        return "" if is_apart else NOT_FROM_OUTSIDE

    @cached_property
    def _shapes(self) -> Shapes:
        return Shapes(self.wiring)

    def _needs_zeros(self, index: int) -> bool:
        """Whether some output of an op that is in no branch has no gradient, and gets zeros."""
        if self.wiring.body.heads.names[index] in self.stored.in_branches:
            return False
        outputs = ((index, place) for place in range(len(self.wiring.form(index).outputs)))
        return any(t not in self.reach.got and self.wiring.trainable(t) for t in outputs)
