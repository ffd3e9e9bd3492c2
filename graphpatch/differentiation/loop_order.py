"""Visiting the ops of v1 loops whose contexts are in the file, in TensorFlow's own order.

An op waits for all that read it, but the Switch of a loop variable, which is asked each time; the
Exits of a loop wait for one another, and those that nobody reads get zeros where another has a
gradient. (`_ControlFlowState` and `_UpdatePendingAndEnqueueReady` in TensorFlow.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphpatch.control_flow.op_types import ALL_SWITCHES, ENTERS, EXITS, LOOP_COND, MERGES
from graphpatch.control_flow.stored import StoredContexts, StoredLoop
from graphpatch.differentiation import flow
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Tensor, Wiring

# What is raised where an op is differentiated outside its loop: at the ops where an iteration
# begins, and where the gradient reads what the op read or gave, which cannot be read from outside.
# In saying so TensorFlow 2.21 fails: an imported op has no traceback to print.
NO_STATE = "AttributeError: 'NoneType' object has no attribute 'grad_state'"
NO_PIVOT = "AttributeError: 'NoneType' object has no attribute 'pivot'"
NO_PREDICATE = "AttributeError: 'WhileContext' object has no attribute 'pred'"
NOT_FROM_OUTSIDE = "TypeError: 'NoneType' object is not iterable"


@dataclass(eq=False)
class _State:
    """What TensorFlow keeps of a loop while it differentiates it."""

    loop: StoredLoop
    exits: list[int]
    waiting: int
    deferred: list[int] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)


@dataclass(eq=False)
class LoopOrder:
    """The loops between two ends: those with an Exit among the ops found."""

    wiring: Wiring
    stored: StoredContexts
    control_flow_v2: bool = True
    states: dict[int, _State] = field(default_factory=dict)  # by Exit
    active: set[StoredLoop | None] = field(default_factory=set)
    shapes: Shapes = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = Shapes(self.wiring)

    def take_in(self, on_path: list[int]) -> None:
        """Add all Exits of the loops that have one among the ops found."""
        by_name, known = self.wiring.body.by_name, set(on_path)
        for index in on_path:
            loop = self._loop(index) if self._is(index, EXITS) else None
            if loop is None or index in self.states:
                continue
            exits = [by_name[name] for name in loop.exits if name in by_name]
            state = _State(loop, exits, len(exits))
            self.states.update(dict.fromkeys(exits, state))
            self.active.add(loop)
            on_path += [loop_exit for loop_exit in exits if loop_exit not in known]
            known.update(exits)

    def begin(self, pending: dict[int, int], ready: Iterable[int]) -> list[int]:
        """The Exits that nobody reads, of loops of which nobody reads any; they get zeros."""
        loose, to, states = [], set(ready), list(dict.fromkeys(self.states.values()))
        for state in states:
            for index in state.exits:
                if not pending.get(index):
                    state.waiting -= 1
                    state.unused += [index] * (index not in to)
                    loose += state.unused if not state.waiting else []
            by_name = self.wiring.body.by_name
            for index in (by_name[name] for name in state.loop.enters if name in by_name):
                pending[index] = pending.get(index) or 1
        return [index for index in loose if self.wiring.trainable((index, 0))]

    def after(self, index: int, pending: dict[int, int], got: set[Tensor]) -> list[int]:
        """Return the ops to be visited next, when this one was visited."""
        ready: list[int] = []
        for producer, _ in self.wiring.inputs(index):
            pending[producer] = unvisited = pending.get(producer, 0) - 1
            if unvisited == 0 or (unvisited > 0 and self.is_variable(producer)):
                is_exit = producer in self.states
                ready += self._exited(producer, got) if is_exit else [producer]
        return ready

    def _exited(self, index: int, got: set[Tensor]) -> list[int]:
        """Return the Exits of a loop, when the last of them is reached."""
        state = self.states[index]
        state.deferred.append(index)
        state.waiting -= 1
        if state.waiting:
            return []
        used = [loop_exit for loop_exit in state.deferred if (loop_exit, 0) in got]
        late = [loop_exit for loop_exit in state.deferred if (loop_exit, 0) not in got]
        unused = state.unused = state.unused + late
        if used:
            got |= {(loop_exit, 0) for loop_exit in unused if self.wiring.trainable((loop_exit, 0))}
        return used + unused

    def is_variable(self, index: int) -> bool:
        """Return whether an op is the Switch of a variable of a loop that has its context."""
        if not self._is(index, ALL_SWITCHES) or self._loop(index) is None:
            return False
        decision = self.wiring.inputs(index)[1][0]
        return self._is(decision, frozenset({LOOP_COND}))

    def refusal(self, index: int, got: set[Tensor]) -> str:
        """What is raised at an op of a loop that has no Exit between the ends; or nothing."""
        if self._loop(index) is None or self._is_active(index):
            return ""
        if not self.states and self._needs_zeros(index, got):
            return NOT_FROM_OUTSIDE if self.control_flow_v2 else NO_PREDICATE
        if self.is_variable(index):
            return NO_STATE
        if self._is(index, MERGES) and self._is(self.wiring.inputs(index)[0][0], ENTERS):
            return NO_PIVOT
        op, read = self.wiring.body.heads.ops[index], self.wiring.inputs(index)
        is_apart = flow.is_asked_apart(op, lambda: all(map(self.shapes.is_known, read)))
        return "" if is_apart else NOT_FROM_OUTSIDE

    def _needs_zeros(self, index: int, got: set[Tensor]) -> bool:
        """Whether some output of an op that is in no branch has no gradient, and gets zeros."""
        if self.wiring.body.heads.names[index] in self.stored.in_branches:
            return False
        outputs = ((index, place) for place in range(len(self.wiring.outputs(index))))
        return any(tensor not in got and self.wiring.trainable(tensor) for tensor in outputs)

    def passes(self, index: int, got: set[Tensor]) -> bool:
        """Whether an op of a loop is asked at all: a Switch for its Exit, an Exit for backprop."""
        if index in self.states:
            return self.states[index].loop.back_prop
        return (index, 0) in got or not self.is_variable(index) or not self._is_active(index)

    def _is(self, index: int, ops: frozenset[str]) -> bool:
        return index >= 0 and self.wiring.body.heads.ops[index] in ops

    def _is_active(self, index: int) -> bool:
        """Return whether the loop of an op has an Exit between the ends."""
        return self._loop(index) in self.active

    def _loop(self, index: int) -> StoredLoop | None:
        """Return the loop with a context in which an op is."""
        return self.stored.in_loops.get(self.wiring.body.heads.names[index]) if index >= 0 else None
