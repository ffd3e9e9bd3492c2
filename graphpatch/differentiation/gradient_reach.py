"""What `tf.gradients` does in a body, step by step as TensorFlow does it, without running it.

It looks for the ops between the two ends, visits each when all that read it were visited, and asks
it for the gradients of its inputs. So a cycle without its control-flow context is never visited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from graphpatch.control_flow.op_types import EXITS
from graphpatch.control_flow.stored import StoredContexts
from graphpatch.differentiation.flow import TRAINABLE
from graphpatch.differentiation.loop_order import LoopOrder
from graphpatch.differentiation.override_keys import CARRIED
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.graph.node import Node


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where tf.gradients raises: the op, the kind of cause, and what it says."""

    node: Node
    kind: str
    says: str


@dataclass(frozen=True, slots=True)
class OpGradientFlow:
    """What an op answers where a gradient comes to its outputs: the input slots it flows into.

    `reach` has, by slot, the outputs from which what flows is not always zero; default: from any.
    `inside` are the functions that it calls in which something is raised. `is_whole`: the op calls
    a function that is differentiated as a whole. Such a one is asked though it is a source, and
    each of its outputs gets zeros where it gets nothing else.
    """

    slots: frozenset[int] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    reach: Mapping[int, frozenset[int]] = field(default_factory=dict)
    inside: tuple[GradientReach, ...] = ()
    is_whole: bool = False

    @property
    def first(self) -> Refusal | None:
        """Return what is raised first, at the op or in what it calls."""
        candidates = (*self.refusals, *(cause.first for cause in self.inside))
        return next((cause for cause in candidates if cause is not None), None)

    @property
    def raises(self) -> bool:
        """Return whether anything is raised but by what our own rules carry."""
        own = any(cause.kind != CARRIED for cause in self.refusals)
        return own or any(cause.raises for cause in self.inside)


Ask = Callable[[Wiring, int], OpGradientFlow]


@dataclass(eq=False)
class GradientReach:
    """How far gradients come in one body, from its targets back to its sources.

    `got` are the tensors for which there is a gradient, `live` those of which it is not always 0.
    `told` is what is raised, in the order in which it is: at ops, and in functions that ops call.
    """

    wiring: Wiring
    between: set[int]
    got: set[Tensor]
    live: set[Tensor]
    visited: set[int] = field(default_factory=set)
    told: list[Refusal | GradientReach] = field(default_factory=list)

    def refusals(self, listed: set[int] | None = None) -> Iterator[Refusal]:
        """What is raised here and inside; of a function once, and not of one that is in `told`."""
        listed, todo = set() if listed is None else listed, [iter(self.told)]
        while todo:
            cause = next(todo[-1], None)
            if cause is None:
                todo.pop()
            elif isinstance(cause, Refusal):
                yield cause
            elif id(cause) not in listed:
                listed.add(id(cause))
                todo.append(iter(cause.told))

    def refusals_here(self) -> Iterator[Refusal]:
        """Return what is raised at ops of the body itself, not in functions that they call."""
        return (cause for cause in self.told if isinstance(cause, Refusal))

    @cached_property
    def first(self) -> Refusal | None:
        """Return what is raised first. It is asked of the innermost functions first, at the end."""
        cause = self.told[0] if self.told else None
        return cause if cause is None or isinstance(cause, Refusal) else cause.first

    @cached_property
    def raises(self) -> bool:
        """Return whether anything is raised but by what our own rules carry."""
        return any(
            cause.kind != CARRIED if isinstance(cause, Refusal) else cause.raises
            for cause in self.told
        )

    @cached_property
    def arguments(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the places of the function's arguments that are among `got`, and among `live`."""
        got, live = (
            frozenset(-1 - index for index, _ in some if index < 0)
            for some in (self.got, self.live)
        )
        return got, live


def ops_reached(wiring: Wiring, sources: Iterable[Tensor]) -> set[int]:
    """Return the ops that depend on the ops of these tensors by tensors that carry gradients."""
    reached: set[int] = set()
    todo = [index for index, _ in sources]
    while todo:
        index = todo.pop()
        if index in reached:
            continue
        reached.add(index)
        if uses := wiring.readers(index):
            carries = [arg.dtype in TRAINABLE for arg in wiring.outputs(index)]
            count = len(carries)
            todo += [reader for output, reader, _ in uses if output < count and carries[output]]
    return reached


def ops_on_paths(wiring: Wiring, within: Set[int], targets: Iterable[Tensor]) -> list[int]:
    """The ops `within` on the path to the targets, in the order in which TensorFlow finds them."""
    on_path: dict[int, None] = {}
    todo = deque(index for index, _ in targets)
    while todo:
        index = todo.popleft()
        if index in within and index not in on_path:
            on_path[index] = None
            todo += [producer for producer, _ in wiring.inputs(index)]
    return list(on_path)


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

    `within` are the ops that depend on the sources, as `ops_reached` tells them. `ask` says what an
    op answers; `stored` are the v1 loops that have their contexts, None in a function, whose loops
    are rebuilt. Refusals are listed in TensorFlow's order; it stops at the first, and what
    lies beyond is what would come after it is fixed.
    """
    on_path = ops_on_paths(wiring, within, targets)
    done = GradientReach(wiring, set(on_path), set(targets), set(targets))
    exits = [index for index in on_path if index >= 0 and wiring.body.heads.ops[index] in EXITS]
    names = wiring.body.heads.names
    bare = [i for i in exits if stored is not None and names[i] not in stored.in_loops]
    if bare:
        node = Node(wiring.body, bare[0])
        says = "AttributeError: 'NoneType' object has no attribute 'outer_context'"
        done.told.append(Refusal(node, "loop", says))
    loops = LoopOrder(wiring, stored or StoredContexts(), control_flow_v2)
    loops.take_in(on_path)
    pending = _pending(wiring, on_path)
    ready = dict.fromkeys(index for index, _ in targets if pending.get(index) == 0)
    loose = loops.begin(pending, ready)
    done.got |= {(index, 0) for index in loose}
    ends, queue = _last_sources(wiring, sources, pending), deque([*ready, *loose])
    if exits and not loops.states:
        asked = _visit_without_contexts(done, pending, ends, queue, ask)
    else:
        asked = _step(done, pending, ends, queue, ask, loops)
    if exits:
        _go_round(done, asked)
    return done


def _pending(wiring: Wiring, on_path: Sequence[int]) -> dict[int, int]:
    """How often each op is read on the path: a target that is read too must wait for that."""
    pending = dict.fromkeys(on_path, 0)
    for index in on_path:
        for producer, _ in wiring.inputs(index):
            if producer in pending:
                pending[producer] += 1
    return pending


def _step(
    done: GradientReach,
    pending: dict[int, int],
    ends: set[int],
    queue: deque[int],
    ask: Ask,
    loops: LoopOrder,
) -> dict[int, OpGradientFlow]:
    """Visit each op when all that read it were visited; in loops, as TensorFlow does there."""
    inside, asked = loops if loops.stored.in_loops else None, dict[int, OpGradientFlow]()
    while queue:
        index = queue.popleft()
        done.visited.add(index)
        if not _ends_at(done, index, ends, ask):
            answer = _visit(done, index, ask, inside)
            if answer is not None:
                asked[index] = answer
        queue += loops.after(index, pending, done.got)
    return asked


def _ends_at(done: GradientReach, index: int, ends: set[int], ask: Ask) -> bool:
    """Return whether an op is a source that TensorFlow does not ask."""
    return index in ends and (index < 0 or not ask(done.wiring, index).is_whole)


def _visit_without_contexts(
    done: GradientReach, pending: dict[int, int], ends: set[int], queue: deque[int], ask: Ask
) -> dict[int, OpGradientFlow]:
    """Visit ops until no tensor gets a gradient any more: what would be, had loops contexts."""
    asked = dict[int, OpGradientFlow]()
    while queue:
        index = queue.popleft()
        if index not in pending or index in done.visited or _ends_at(done, index, ends, ask):
            continue
        done.visited.add(index)
        if (answer := _visit(done, index, ask, None)) is not None:
            asked[index] = answer
        queue += [tensor[0] for tensor in done.wiring.inputs(index) if tensor in done.got]
    return asked


def _go_round(done: GradientReach, asked: Mapping[int, OpGradientFlow]) -> None:
    """What flows in an iteration of a loop flows in the ones before it, too.

    A loop variable whose own Exit gives zeros may be read for another variable.
    """
    queue = deque(asked)
    while queue:
        index = queue.popleft()
        queue += [producer for producer in _liven(done, index, asked[index]) if producer in asked]


def _last_sources(wiring: Wiring, sources: Sequence[Tensor], pending: dict[int, int]) -> set[int]:
    """Return the sources that have no other source before them: TensorFlow does not ask those."""
    return {
        index
        for index, _ in sources
        if not any(pending.get(producer) for producer, _ in wiring.inputs(index))
    }


def _visit(
    done: GradientReach, index: int, ask: Ask, loops: LoopOrder | None
) -> OpGradientFlow | None:
    """Ask an op for the gradients of its inputs; None where TensorFlow does not ask it."""
    if index < 0 or done.got.isdisjoint(done.wiring.tensors(index)):
        return None
    if loops is not None and not loops.passes(index, done.got):
        return None
    answer = ask(done.wiring, index)
    if answer.refusals or answer.inside:
        done.told += answer.refusals + answer.inside
    if loops is not None and answer.slots and answer.first is None:
        raised = loops.refusal(index, done.got)
        if raised:
            done.told.append(Refusal(Node(done.wiring.body, index), "loop_inside", raised))
    inputs = done.wiring.inputs(index)
    done.got.update([inputs[slot] for slot in answer.slots if slot < len(inputs)])
    if answer.is_whole:
        done.got |= {
            tensor for tensor in done.wiring.tensors(index) if done.wiring.trainable(tensor)
        }
    _liven(done, index, answer)
    return answer


def _liven(done: GradientReach, index: int, answer: OpGradientFlow) -> list[int]:
    """Let what is not always zero flow through an op; where it flows to anew."""
    inputs = done.wiring.inputs(index)
    live = [output for _, output in filter(done.live.__contains__, done.wiring.tensors(index))]
    if not live:
        return []
    newly_live = [
        inputs[slot]
        for slot in answer.slots
        if slot < len(inputs)
        and inputs[slot] not in done.live
        and (slot not in answer.reach or not answer.reach[slot].isdisjoint(live))
    ]
    done.live.update(newly_live)
    return [producer for producer, _ in newly_live]
