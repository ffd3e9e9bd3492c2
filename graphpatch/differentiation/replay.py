"""`tf.gradients` in a Session, or a tape, replayed op by op without running anything.

`GradientReplay.backward` follows gradients in one body as TensorFlow does: it looks for the ops
between the two ends, visits each when all that read it were visited, and asks it for the gradients
of its inputs. What an op answers, `GradientReplay.ask` tells; where it calls functions, these are
followed in turn.

In a v1 loop that has its context, the Switch of a loop variable is visited each time that it is
read; the Exits wait for one another, and those that nobody reads get zeros where another has a
gradient. (`_ControlFlowState` and `_UpdatePendingAndEnqueueReady` in TensorFlow.) A loop without
its context, and without an Exit, is never visited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from graphpatch import opdefs
from graphpatch.control_flow.stored import StoredContexts, StoredLoop
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import CARRIED, CUSTOM, is_carrier, is_registered, override_key
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Form, Tensor, Wiring, holds_no_number
from graphpatch.graph.functions import calls, named_by
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ALL_SWITCHES, CALLS, ENTERS, EXITS, LOOP_COND, LOOPS, MERGES

RESOURCE = "resource"
MOST_OPS_BY_OUTPUT = 1 << 20  # ops of a function, times its outputs, that are asked one by one

# With control flow v2, TensorFlow 2's default, these raise a bare AssertionError.
TENSOR_ARRAYS = frozenset(
    f"TensorArray{what}V3" for what in ("Read", "Write", "Gather", "Scatter", "Concat", "Split")
)
NO_HANDLE_DATA = (
    "ValueError: Internal error: Tried to take gradients (or similar) of a variable without handle "
    "data"
)
BRANCHES = ("then_branch", "else_branch", "branches")


# What is raised where an op is differentiated outside its loop: at the ops where an iteration
# begins, and where the gradient reads what the op read or gave, which cannot be read from outside.
# In saying so TensorFlow 2.21 fails: an imported op has no traceback to print.
NO_CONTEXT = "AttributeError: 'NoneType' object has no attribute 'outer_context'"
NO_STATE = "AttributeError: 'NoneType' object has no attribute 'grad_state'"
NO_PIVOT = "AttributeError: 'NoneType' object has no attribute 'pivot'"
NO_PREDICATE = "AttributeError: 'WhileContext' object has no attribute 'pred'"
NEVER_VISITED = "AssertionError: gradients list should have been aggregated by now."
NOT_FROM_OUTSIDE = "TypeError: 'NoneType' object is not iterable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where tf.gradients raises: the op, the kind of cause, and what it says."""

    node: Node
    kind: str
    says: str

    @property
    def first(self) -> Refusal:
        """Return itself, as it is one cause and no function with several."""
        return self

    @property
    def raises(self) -> bool:
        """Return whether it is raised by anything but what our own rules carry."""
        return self.kind != CARRIED


class Raising:
    """What something raises, in TensorFlow's order: at ops, and inside functions that ops call."""

    raised: Sequence[Refusal | BackwardPass]

    @cached_property
    def first(self) -> Refusal | None:
        """Return what is raised first, at an op or inside. It is asked when all is known."""
        return next((cause.first for cause in self.raised if cause.first is not None), None)

    @cached_property
    def raises(self) -> bool:
        """Return whether anything is raised but by what our own rules carry."""
        return any(cause.raises for cause in self.raised)


@dataclass(frozen=True)
class OpGradientFlow(Raising):
    """What an op answers where a gradient comes to its outputs: the input slots it flows into.

    `nonzero_from` has, by slot, the outputs from which what flows is not always zero; default: from
    any of them.
    `is_whole`: the op calls a function that is differentiated as a whole. Such a one is asked
    though it is a source, and each of its outputs gets zeros where it gets nothing else.
    """

    slots: frozenset[int] = frozenset()
    raised: Sequence[Refusal | BackwardPass] = ()
    nonzero_from: Mapping[int, frozenset[int]] = field(default_factory=dict)
    is_whole: bool = False


@dataclass(eq=False)
class BackwardPass(Raising):
    """What one call of `tf.gradients` does in one body, from its targets back to its sources.

    It looks at the ops `between` its ends, which are those of `within` on a path to the targets.
    `got` are the tensors for which there is a gradient, `zeros` those of them for which it is
    always 0. `answers` has those of ops that were asked; `visited`, all.
    """

    wiring: Wiring
    within: Set[int]
    between: Sequence[int]
    got: set[Tensor]
    zeros: set[Tensor] = field(default_factory=set)
    visited: set[int] = field(default_factory=set)
    answers: dict[int, OpGradientFlow] = field(default_factory=dict)
    raised: list[Refusal | BackwardPass] = field(default_factory=list)

    def refusals(self, listed: set[int] | None = None) -> Iterator[Refusal]:
        """Yield what is raised here and inside; of a function once, not of one `listed`."""
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

    @property
    def live(self) -> Set[Tensor]:
        """Return the tensors for which there is a gradient that is not always 0."""
        return self.got - self.zeros if self.zeros else self.got

    @cached_property
    def arguments(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the places of the function's arguments that are among `got`, and among `live`."""
        got, live = (
            frozenset(-1 - index for index, _ in tensors if index < 0)
            for tensors in (self.got, self.live)
        )
        return got, live


def called_bodies(node: Node) -> list[str]:
    """Return the functions through which a tape follows the gradient of an op."""
    if node.op in node.body.library.signatures:
        return [node.op]
    keys = ("f",) if node.op in CALLS else ("body", *BRANCHES) if node.op in OP_BY_OP else ()
    return [name for key in keys for name in named_by(node, key)]


def ops_on_paths(wiring: Wiring, within: Set[int], targets: Iterable[Tensor]) -> list[int]:
    """Return the ops `within` on the path to the targets, in the order that TensorFlow has."""
    inputs, on_path = wiring.inputs, dict.fromkeys(i for i, _ in targets if i in within)
    todo = list(on_path)
    for index in todo:
        for producer, _ in inputs(index):
            if producer in within and producer not in on_path:
                on_path[producer] = None
                todo.append(producer)
    return todo


@dataclass(eq=False)
class GradientReplay:
    """The answers of the ops of a graph, whose functions are looked into once.

    `stored` are the v1 loops that have their contexts. `control_flow_v2` is TensorFlow 2's default.
    `tape`: functions are differentiated op by op, as a GradientTape does; `restored` are the keys
    of gradients that are in the file for it, with the input slots into which they flow, and those
    of them that always get zeros. Replays of one graph share `wirings`, which number the forms of
    ops.
    """

    graph: ModelGraph
    stored: StoredContexts = field(default_factory=StoredContexts)
    control_flow_v2: bool = True
    tape: bool = False
    restored: Mapping[str, tuple[frozenset[int], frozenset[int]]] = field(default_factory=dict)
    wirings: dict[str, Wiring] = field(default_factory=dict)  # of bodies, by label
    visited: int = 0  # ops, inputs and outputs, by all walks together
    _inside: dict[str, BackwardPass | None] = field(init=False, default_factory=dict)
    _asked: dict[str, dict[int, OpGradientFlow]] = field(init=False, default_factory=dict)
    _alike: dict[tuple[Form, tuple[str | None, ...]], OpGradientFlow] = field(
        init=False, default_factory=dict
    )
    _dependent: tuple[object, Set[int]] = field(init=False, default=(None, frozenset()))

    def wiring(self, body: Body) -> Wiring:
        """Return the wiring of a body, made once."""
        if body.label not in self.wirings:
            self.wirings[body.label] = Wiring(body)
        return self.wirings[body.label]

    def backward(
        self, body: Body, sources: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> BackwardPass:
        """Return how far the gradients of `targets` come on their way to `sources`."""
        wiring, ends = self.wiring(body), (body.label, *sources)
        if self._dependent[0] != ends:
            self._dependent = ends, wiring.depending_on(sources, by_gradients=True)
            self.visited += len(self._dependent[1])
        back = self.follow(wiring, sources, targets, self._dependent[1])
        self.visited += len(back.between)
        for tensors in wiring.inputs, wiring.tensors:
            self.visited += sum(map(len, map(tensors, back.between)))
        return back

    def follow(
        self, wiring: Wiring, sources: Sequence[Tensor], targets: Sequence[Tensor], within: Set[int]
    ) -> BackwardPass:
        """Follow gradients as `backward` does, through no other ops than these.

        Refusals are listed in TensorFlow's order; it stops at the first, and what lies beyond is
        what would come after it is fixed.
        """
        return _Walk(self, wiring, sources, targets, within).run()

    def ask(self, wiring: Wiring, index: int) -> OpGradientFlow:
        """Return what an op answers where a gradient comes to one of its outputs.

        Ops that have the same attrs and read the same dtypes answer alike: not those that call
        functions into which this looks, nor where something is raised, which names the op. A
        Session does not look into a call, unless it is given a handle.
        """
        asked = self._asked.setdefault(wiring.body.label, {})
        answer = asked.get(index)
        if answer is not None:
            return answer
        form = wiring.form
        dtypes = tuple([form(giver).dtypes.get(output) for giver, output in wiring.inputs(index)])
        key = form(index), dtypes
        answer = self._alike.get(key)
        if answer is None:
            node = Node(wiring.body, index)
            answer = self._answer(wiring, node)
            is_looked_into = node.op in OP_BY_OP or self.tape or RESOURCE in dtypes
            is_call = node.op in wiring.body.library.signatures or node.op in CALLS | OP_BY_OP
            if answer.first is None and not (is_looked_into and is_call):
                self._alike[key] = answer
        asked[index] = answer
        return answer

    def _answer(self, wiring: Wiring, node: Node) -> OpGradientFlow:
        key = override_key(node)
        if self.tape and key is not None and key in self.restored:
            slots, zeros = self.restored[key]
            return OpGradientFlow(slots, nonzero_from=dict.fromkeys(zeros, frozenset()))
        if key is not None and is_registered(key):
            return self._by_type(wiring, node, key)
        if node.op in wiring.body.library.signatures or node.op in CALLS:
            return self._call(wiring, node)
        if key is not None:
            kind = "custom_gradient" if key.startswith(CUSTOM) else "key"
            return _refused(node, kind, _lookup_error(node))
        return self._by_type(wiring, node, node.op)

    def _by_type(self, wiring: Wiring, node: Node, op: str) -> OpGradientFlow:
        if op in OP_BY_OP and op == node.op:
            return self._body_by_body(wiring, node)
        known = opdefs.lookup(op)
        if known is None or known.gradient == "missing":
            return _refused(node, "missing", _lookup_error(node))
        raised = flow.refused(node, op)
        if raised:
            return _refused(node, "prevent" if op == "PreventGradient" else "refuses", raised)
        if known.gradient == "none" or (op == "Cast" and not wiring.trainable((node.index, 0))):
            return OpGradientFlow()
        if op in TENSOR_ARRAYS and self.control_flow_v2:
            return _refused(node, "tensor_array", "AssertionError")
        dtypes = [wiring.dtype(tensor) for tensor in wiring.inputs(node.index)]
        flows = [flow.into(op, slot, len(dtypes), dtype) for slot, dtype in enumerate(dtypes)]
        slots = frozenset(slot for slot, kind in enumerate(flows) if kind != "none")
        if not flow.may_be_zero(op):
            return OpGradientFlow(slots)
        return OpGradientFlow(slots, nonzero_from=_nonzero_from(wiring, node, op, slots))

    def _call(self, wiring: Wiring, node: Node) -> OpGradientFlow:
        """Follow a call: SymbolicGradient gives inputs at least zeros; a tape looks inside."""
        everywhere = frozenset(range(len(wiring.inputs(node.index))))
        if not self.tape:
            tables = any(holds_no_number(wiring, tensor) for tensor in wiring.inputs(node.index))
            raised = (Refusal(node, "handle", NO_HANDLE_DATA),) if tables else ()
            return OpGradientFlow(everywhere, raised, is_whole=True)
        if is_carrier(node):
            says = "what the tape gives raises NotFoundError or LookupError"
            zeros = dict.fromkeys(self._zeros_of(node), frozenset[int]())
            return OpGradientFlow(everywhere, (Refusal(node, CARRIED, says),), zeros)
        inside = next(map(self.inside, called_bodies(node)), None)
        if inside is None:
            return OpGradientFlow(everywhere)
        raised_inside = (inside,) if inside.raised else ()
        return OpGradientFlow(inside.arguments[0], raised_inside, self._nonzero_through([inside]))

    def _zeros_of(self, carrier: Node) -> set[int]:
        """Return the inputs of a carrier to which its gradient function gives nothing but zeros."""
        gradient = self.graph.functions.get(carrier.body.library.gradients[carrier.op])
        if gradient is None:
            return set()
        wiring, count = self.wiring(gradient), len(carrier.outputs or ())
        upstream = [(index, 0) for index in list(wiring.arguments.values())[-count:]]
        dependent = wiring.depending_on(upstream, by_gradients=True)
        return {slot for slot, (index, _) in enumerate(wiring.returned) if index not in dependent}

    def _body_by_body(self, wiring: Wiring, node: Node) -> OpGradientFlow:
        """Return what bodies of a loop or branch answer. Tables carry no gradient round a loop."""
        read, bodies = wiring.inputs(node.index), list(map(self.inside, called_bodies(node)))
        floats = {slot for slot, tensor in enumerate(read) if wiring.trainable(tensor)}
        inside = [back for back in dict.fromkeys(bodies) if back is not None]
        raised = tuple(back for back in inside if back.raised)
        if node.op in LOOPS or not all(bodies):
            tables = {slot for slot in floats if holds_no_number(wiring, read[slot])}
            return OpGradientFlow(frozenset(floats - tables), raised)
        # Their arguments are the inputs behind the first, which decides.
        slots = {place + 1 for back in inside for place in back.arguments[0]}
        outputs = {place + 1: live for place, live in self._nonzero_through(inside).items()}
        return OpGradientFlow(frozenset(floats & slots), raised, outputs)

    def _nonzero_through(self, bodies: Sequence[BackwardPass]) -> Mapping[int, frozenset[int]]:
        """Return for each argument the outputs of functions from which more than zero may flow.

        Of very large functions of very many outputs: all outputs, where any will do.
        """
        live: dict[int, set[int]] = {}
        for inside in bodies:
            wiring, (slots, any_live) = inside.wiring, inside.arguments
            returned = [place for place, t in enumerate(wiring.returned) if wiring.trainable(t)]
            is_small = len(returned) * len(inside.between) <= MOST_OPS_BY_OUTPUT
            for slot in slots:
                live.setdefault(slot, set())
            for place in returned:
                alone = any_live
                if len(returned) > 1 and is_small:
                    alone = self._through(wiring.body, [place]).arguments[1]
                for slot in alone:
                    live.setdefault(slot, set()).add(place)
        return {slot: frozenset(outputs) for slot, outputs in live.items()}

    def inside(self, name: str) -> BackwardPass | None:
        """Return a function's pass from all outputs to all arguments; None: it is not there.

        A function that calls itself counts as one that lets everything through.
        """
        if name not in self._inside:
            for label in self._innermost_first(name):
                body = self.graph.functions.get(label)
                self._inside[label] = None if body is None else self._through(body)
        return self._inside[name]

    def _innermost_first(self, name: str) -> Iterator[str]:
        """Yield a function behind those that it calls, nested as deeply as they may be."""
        todo = [(name, False)]
        while todo:
            label, has_been_entered = todo.pop()
            if has_been_entered:
                yield label
            elif label not in self._inside:
                self._inside[label] = None
                body = self.graph.functions.get(label)
                called = () if body is None else calls(body)
                todo += [(label, True), *((callee, False) for _, callee in called)]

    def _through(self, body: Body, places: Sequence[int] | None = None) -> BackwardPass:
        """Return a function from its outputs, all or those at these places, to its arguments."""
        wiring = self.wiring(body)
        outputs = wiring.returned if places is None else [wiring.returned[p] for p in places]
        arguments = [(index, 0) for index in wiring.arguments.values()]
        targets, sources = (list(filter(wiring.trainable, ts)) for ts in (outputs, arguments))
        back = self.backward(body, sources, targets)
        _ = back.first, back.raises  # now that those of the functions that it calls are known
        return back


def _nonzero_from(
    wiring: Wiring, node: Node, op: str, slots: frozenset[int]
) -> Mapping[int, frozenset[int]]:
    """Return for each slot the outputs from which a gradient that may not be zero comes to it."""
    count, outputs = len(wiring.inputs(node.index)), wiring.form(node.index).outputs
    names_by_slot = {slot: flow.outputs_of(op, slot, count) or frozenset() for slot in slots}
    if op != node.op:  # its outputs have other names
        everywhere = frozenset(range(max(len(outputs), 1)))
        return {slot: everywhere if names else frozenset() for slot, names in names_by_slot.items()}
    places = {
        names: frozenset(place for place, arg in enumerate(outputs) if arg.name in names)
        for names in set(names_by_slot.values())
    }
    return {slot: places[names] for slot, names in names_by_slot.items()}


def _refused(node: Node, kind: str, says: str) -> OpGradientFlow:
    return OpGradientFlow(raised=(Refusal(node, kind, says),))


def _lookup_error(node: Node) -> str:
    return f"LookupError: No gradient defined for operation '{node.name}' (op type: {node.op})"


class _Walk:
    """One call of `tf.gradients` in one body, with the ops `within` between the two ends.

    Of v1 loops, those that are `stored` have their contexts; in a function they are rebuilt.
    `pending` is how often each op is still to be read, `waiting` how many Exits of each loop are,
    `sources` are the ops that give the sources, and `first` are the targets that nothing on the
    path reads. Without loops, or their Exits, `has_loops` is False.
    """

    def __init__(
        self,
        replay: GradientReplay,
        wiring: Wiring,
        sources: Sequence[Tensor],
        targets: Sequence[Tensor],
        within: Set[int],
    ) -> None:
        self.sources = {index for index, _ in sources}
        on_path = ops_on_paths(wiring, within, targets)
        self.wiring, self.ops = wiring, wiring.body.heads.ops
        self.ask, self.control_flow_v2 = replay.ask, replay.control_flow_v2
        self.stored = stored = replay.stored if wiring.body.is_main else StoredContexts()
        self.exits = [index for index in on_path if index >= 0 and self.ops[index] in EXITS]
        self.has_loops = bool(self.exits or stored.in_loops)
        self.back = BackwardPass(wiring, within, on_path, set(targets))
        bare = [index for index in self.exits if self.loop(index) is None]
        if wiring.body.is_main and bare:
            self.back.raised.append(Refusal(Node(wiring.body, bare[0]), "loop", NO_CONTEXT))
        by_name = wiring.body.by_name
        loops = dict.fromkeys(loop for index in self.exits if (loop := self.loop(index)))
        self.exits_of = {
            loop: [by_name[name] for name in loop.exits if name in by_name] for loop in loops
        }
        self.loop_of_exit = {
            index: loop for loop, loop_exits in self.exits_of.items() for index in loop_exits
        }
        self.pending = dict.fromkeys([*on_path, *self.loop_of_exit], 0)
        for index in self.pending:
            for producer, _ in wiring.inputs(index):
                if producer in self.pending:
                    self.pending[producer] += 1
        self.first = dict.fromkeys(i for i, _ in targets if self.pending.get(i) == 0)
        self.waiting = {
            loop: sum(self.pending[index] > 0 for index in loop_exits)
            for loop, loop_exits in self.exits_of.items()
        }

    def run(self) -> BackwardPass:
        """Visit each op when all that read it were visited: of loops, as TensorFlow does there."""
        wiring, pending, visited = self.wiring, self.pending, self.back.visited
        inputs, tensors, got = wiring.inputs, wiring.tensors, self.back.got
        has_loops, is_loop_variable = self.has_loops, self._is_loop_variable
        ends = {  # sources that have no other source before them: TensorFlow does not ask those
            index
            for index in self.sources
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
        for index in self.sources:  # in a loop, one that is the target waits for itself
            if index in pending and index not in visited and not got.isdisjoint(tensors(index)):
                refusal = Refusal(Node(wiring.body, index), "loop_inside", NEVER_VISITED)
                self.back.raised.append(refusal)
        return self.back

    def _ready(self, index: int) -> Sequence[int]:
        """Return the ops to visit after all readers of this one: Exits wait for one another."""
        loop = self.loop_of_exit.get(index)
        if loop is None:
            return [index]
        self.waiting[loop] -= 1
        return () if self.waiting[loop] else self._ready_exits(loop)

    def _ready_exits(self, loop: StoredLoop) -> list[int]:
        got, exits = self.back.got, self.exits_of[loop]
        used = [index for index in exits if (index, 0) in got]
        if used:
            self._fill_with_zeros((index, 0) for index in exits)
        return [index for index in dict.fromkeys([*used, *exits]) if index not in self.first]

    def _visit(self, index: int) -> None:
        """Ask an op that got a gradient for those of its inputs, unless TensorFlow does not."""
        back, wiring = self.back, self.wiring
        if self.has_loops and self._is_left_out(index):
            return
        answer = back.answers[index] = self.ask(wiring, index)
        if answer.raised:
            back.raised += answer.raised
        if self.has_loops and answer.slots and answer.first is None:
            says = self._raised_outside_loop(index)
            if says:
                back.raised.append(Refusal(Node(wiring.body, index), "loop_inside", says))
        if answer.is_whole or (index in self.sources and not self._is_loop_variable(index)):
            self._fill_with_zeros(wiring.tensors(index))
        if back.zeros or answer.nonzero_from:
            self._flow(index)
        else:
            inputs = wiring.inputs(index)
            back.got.update([inputs[slot] for slot in answer.slots if slot < len(inputs)])

    def _fill_with_zeros(self, outputs: Iterable[Tensor]) -> None:
        """Give zeros to the outputs to which no gradient came."""
        got = self.back.got
        zeros = {t for t in outputs if t not in got and self.wiring.trainable(t)}
        self.back.zeros |= zeros
        got |= zeros

    def _flow(self, index: int) -> None:
        """Let the gradients of an op's outputs flow on, those that are always zero as such.

        What is not zero flows round a loop in the iterations before, too: through ops that were
        visited before.
        """
        got, zeros, answers = self.back.got, self.back.zeros, self.back.answers
        todo = [index]
        for index in todo:
            answer, inputs = answers[index], self.wiring.inputs(index)
            nonzero = {t[1] for t in self.wiring.tensors(index) if t in got and t not in zeros}
            for slot in answer.slots:
                if slot >= len(inputs):
                    continue
                read, is_known = inputs[slot], inputs[slot] in got
                got.add(read)
                if nonzero.isdisjoint(answer.nonzero_from.get(slot, nonzero)):
                    if not is_known:
                        zeros.add(read)
                elif not is_known or read in zeros:
                    zeros.discard(read)
                    if read[0] in answers:
                        todo.append(read[0])

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
        return (index, 0) not in self.back.got and self._is_loop_variable(index)

    def _raised_outside_loop(self, index: int) -> str:
        """Return what is raised at an op of a loop without an Exit between the ends."""
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
        """Return whether an output of an op that is in no branch gets zeros."""
        if self.wiring.body.heads.names[index] in self.stored.in_branches:
            return False
        outputs = ((index, place) for place in range(len(self.wiring.form(index).outputs)))
        return any(t not in self.back.got and self.wiring.trainable(t) for t in outputs)
