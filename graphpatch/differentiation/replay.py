"""What one op answers when TensorFlow asks for its gradient: where it flows, or what is raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from graphpatch import opdefs
from graphpatch.control_flow.stored import StoredContexts
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import (
    CARRIED,
    CUSTOM,
    is_carrier,
    is_registered,
    override_key,
)
from graphpatch.differentiation.gradient_reach import (
    GradientReach,
    OpGradientFlow,
    Refusal,
    differentiate,
)
from graphpatch.differentiation.wiring import Form, Tensor, Wiring, holds_no_number
from graphpatch.graph.functions import calls, named_by
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import CALLS, LOOPS

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


def called_bodies(node: Node) -> list[str]:
    """Return the functions through which a tape follows the gradient of an op."""
    if node.op in node.body.library.signatures:
        return [node.op]
    keys = ("f",) if node.op in CALLS else ("body", *BRANCHES) if node.op in OP_BY_OP else ()
    return [name for key in keys for name in named_by(node, key)]


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
    _inside: dict[str, GradientReach | None] = field(init=False, default_factory=dict)
    _asked: dict[str, dict[int, OpGradientFlow]] = field(init=False, default_factory=dict)
    _alike: dict[tuple[Form, tuple[str | None, ...]], OpGradientFlow] = field(
        init=False, default_factory=dict
    )
    _reached: tuple[object, Set[int]] = field(init=False, default=(None, frozenset()))

    def wiring(self, body: Body) -> Wiring:
        """Return the wiring of a body, made once."""
        if body.label not in self.wirings:
            self.wirings[body.label] = Wiring(body)
        return self.wirings[body.label]

    def backward(
        self, body: Body, sources: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> GradientReach:
        """Return how far the gradients of `targets` come on their way to `sources`."""
        stored, wiring = self.stored if body.is_main else None, self.wiring(body)
        known, within = (body.label, *sources), self._reached[1]
        if self._reached[0] != known:
            within = wiring.depending_on(sources, by_gradients=True)
            self._reached = known, within
            self.visited += len(within)
        reach = differentiate(
            wiring, sources, targets, self.ask, stored, self.control_flow_v2, within
        )
        self.visited += len(reach.between)
        self.visited += sum(map(len, map(wiring.inputs, reach.between)))
        self.visited += sum(map(len, map(wiring.tensors, reach.between)))
        return reach

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
            return OpGradientFlow(slots, reach=dict.fromkeys(zeros, frozenset()))
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
        return OpGradientFlow(slots, reach=_outputs_that_reach(wiring, node, op, slots))

    def _call(self, wiring: Wiring, node: Node) -> OpGradientFlow:
        """SymbolicGradient gives a tensor for each input, be it zeros; a tape looks inside."""
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
        return OpGradientFlow(inside.arguments[0], raised_inside, self._reach_through([inside]))

    def _zeros_of(self, carrier: Node) -> set[int]:
        """Return the inputs of a carrier to which its gradient function gives nothing but zeros."""
        gradient = self.graph.functions.get(carrier.body.library.gradients[carrier.op])
        if gradient is None:
            return set()
        wiring, count = self.wiring(gradient), len(carrier.outputs or ())
        upstream = [(index, 0) for index in list(wiring.arguments.values())[-count:]]
        reached = wiring.depending_on(upstream, by_gradients=True)
        return {slot for slot, (index, _) in enumerate(wiring.returned) if index not in reached}

    def _body_by_body(self, wiring: Wiring, node: Node) -> OpGradientFlow:
        """Of a loop or branch: what its bodies answer. Tables carry no gradient round a loop."""
        read, bodies = wiring.inputs(node.index), list(map(self.inside, called_bodies(node)))
        floats = {slot for slot, tensor in enumerate(read) if wiring.trainable(tensor)}
        inside = [reach for reach in dict.fromkeys(bodies) if reach is not None]
        raised = tuple(reach for reach in inside if reach.raised)
        if node.op in LOOPS or not all(bodies):
            tables = {slot for slot in floats if holds_no_number(wiring, read[slot])}
            return OpGradientFlow(frozenset(floats - tables), raised)
        # Their arguments are the inputs behind the first, which decides.
        slots = {place + 1 for reach in inside for place in reach.arguments[0]}
        outputs = {place + 1: live for place, live in self._reach_through(inside).items()}
        return OpGradientFlow(frozenset(floats & slots), raised, outputs)

    def _reach_through(self, bodies: Sequence[GradientReach]) -> Mapping[int, frozenset[int]]:
        """For each argument, the outputs of functions from which what flows is not always zero.

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

    def inside(self, name: str) -> GradientReach | None:
        """A function, from all that it gives to all that it takes; None for one that is not there.

        A function that calls itself counts as one that lets everything through.
        """
        if name not in self._inside:
            for label in self._innermost_first(name):
                body = self.graph.functions.get(label)
                self._inside[label] = None if body is None else self._through(body)
        return self._inside[name]

    def _innermost_first(self, name: str) -> Iterator[str]:
        """A function behind those that it calls, which may be nested more deeply than Python's."""
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

    def _through(self, body: Body, places: Sequence[int] | None = None) -> GradientReach:
        """Return a function from its outputs, all or those at these places, to its arguments."""
        wiring = self.wiring(body)
        outputs = wiring.returned if places is None else [wiring.returned[p] for p in places]
        arguments = [(index, 0) for index in wiring.arguments.values()]
        targets, sources = (list(filter(wiring.trainable, ts)) for ts in (outputs, arguments))
        reach = self.backward(body, sources, targets)
        _ = reach.first, reach.raises  # now that those of the functions that it calls are known
        return reach


def _outputs_that_reach(
    wiring: Wiring, node: Node, op: str, slots: frozenset[int]
) -> Mapping[int, frozenset[int]]:
    """For each slot, the outputs from which a gradient comes to it that is not always zero."""
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
