"""What each tensor of a graph is computed of, as numbers: equal numbers mean the same value.

An op is its type, its attrs and the numbers of what it reads. Ops that give on what they read, bit
for bit, have the numbers of that: whatever a rule puts into a graph to carry a gradient is seen
through, however it is made. Nothing here believes what a file tells of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.control_flow.op_types import ENTERS, NEXTS
from graphpatch.errors import ModelError
from graphpatch.graph import topology
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_functions
from graphpatch.graph.graph import Graph
from graphpatch.graph.op_types import CALLS, FED, GIVES_ON
from graphpatch.graph.topology import first_producers
from graphpatch.graph.wire import piece_bytes

ValueNumber = tuple[int, int]  # the number of an op, and which of its outputs

SELECTS = frozenset({"Select", "SelectV2"})
DEPTH = 16  # of calls of functions that the original does not have


@dataclass
class ValueNumbers:
    """The numbers of all that was met, in both graphs."""

    known: dict[Hashable, int] = field(default_factory=dict)

    def of(self, key: Hashable) -> int:
        """The number of what is described so."""
        return self.known.setdefault(key, len(self.known))


@dataclass(eq=False)
class Numbering:
    """The numbers of one graph.

    `alike` are ops, by body and name, whose NodeDefs are the same bytes in both graphs;
    `originals` the functions of the original, each of which is compared with the one of its name:
    calls of others are looked into.
    """

    graph: Graph
    numbers: ValueNumbers
    alike: Mapping[str, Collection[str]]
    originals: Collection[str]
    # A function that a rule added is called for each of its ops, and looked into each time.
    orders: dict[Body, list[int]] = field(default_factory=dict)
    attrs: dict[Node, Hashable] = field(default_factory=dict)

    def body(
        self, body: Body, arguments: Mapping[str, ValueNumber], known: KnownOps, depth: int = 0
    ) -> dict[str, list[ValueNumber]]:
        """What each op of a body gives; `known` settles what ops are called and count as."""
        found: dict[str, list[ValueNumber]] = {name: [value] for name, value in arguments.items()}
        if body not in self.orders:
            self.orders[body] = list(ops_in_order(body))
        for index in self.orders[body]:
            node = Node(body, index)
            values = self._values(node, found, known, depth)
            found[node.name] = known.settle(node, values)
        return found

    def _values(
        self, node: Node, found: Mapping[str, list[ValueNumber]], known: KnownOps, depth: int
    ) -> list[ValueNumber]:
        taken = [tensor_of(node.body, found, text) for text in node.data_inputs]
        given = self._given_on(node, taken, depth)
        if given is not None:
            return given
        controls = (text[1:] for text in node.inputs if text[:1] == "^")
        waits = frozenset([value for op in controls for value in found.get(op, ())[:1]])
        if node.op in NEXTS:  # the way back of a loop, which is compared by itself
            taken, waits = [], frozenset()
        key = (known.name(node), node.op, self._attrs(node), tuple(taken), waits)
        number = self.numbers.of(key)
        return [(number, output) for output in range(_output_count(node))]

    def _given_on(
        self, node: Node, taken: list[ValueNumber], depth: int
    ) -> list[ValueNumber] | None:
        """What an op gives that gives on what it reads; None for other ops."""
        if node.op in GIVES_ON and taken:
            return taken[:1]
        if node.op == "IdentityN":
            return taken
        if node.op in SELECTS and len(taken) == 3 and is_true(node.body, node.data_inputs[0]):
            return [taken[1]]
        function = function_of(node)
        if function and function not in self.originals and depth < DEPTH:
            return self._called(node, function, taken, depth)
        return None

    def _called(
        self, node: Node, function: str, taken: Sequence[ValueNumber], depth: int
    ) -> list[ValueNumber] | None:
        """What a call of a function gives that the original does not have."""
        body = self.graph.functions.get(function)
        if body is None or body.signature is None or len(body.arguments) != len(taken):
            return None
        arguments = dict(zip(body.arguments, taken, strict=True))
        known = KnownOps(
            lambda inner: node.name if _is_alone(inner) else f"{node.name}/{inner.name}"
        )
        found = self.body(body, arguments, known, depth + 1)
        results = [body.ret.get(arg.name, "") for arg in body.signature.output_arg]
        return [tensor_of(body, found, text) for text in results]

    def _attrs(self, node: Node) -> Hashable:
        """The attrs that say what an op computes; functions by their names."""
        place = label_in_both(node.body)
        if node.name in self.alike.get(place, ()):
            return place, node.name
        if node not in self.attrs:
            spans = sorted(node.attr_spans().items())
            told = ((key, piece_bytes(span)) for key, span in spans if not key.startswith("_"))
            self.attrs[node] = tuple(told)
        return self.attrs[node]


@dataclass(eq=False)
class KnownOps:
    """What ops are known by that are more than what they compute, and what they count as."""

    name_of: Callable[[Node], str] = lambda node: node.name
    settled: Callable[[Node, list[ValueNumber]], list[ValueNumber]] = lambda node, values: values

    def name(self, node: Node) -> str:
        """The name of an op that keeps a state, is fed, or begins the next turn of a loop."""
        return self.name_of(node) if has_name(node) else ""

    def settle(self, node: Node, values: list[ValueNumber]) -> list[ValueNumber]:
        """The values that count as those of the op."""
        return self.settled(node, values)


def label_in_both(body: Body) -> str:
    """What tells a body from others in both graphs: a function may be called as the main one is."""
    return "" if body.is_main else body.label


def has_name(node: Node) -> bool:
    """Whether an op is more than what it computes of its inputs."""
    known = node.opdef
    stateful = known is None or known.stateful
    return stateful or node.op in NEXTS or node.op in FED


def _is_alone(node: Node) -> bool:
    return sum(has_name(other) for other in node.body) == 1


def tensor_of(body: Body, found: Mapping[str, Sequence[ValueNumber]], text: str) -> ValueNumber:
    """The tensor that an input, or an output of a function, names."""
    if ":" not in text and (values := found.get(text)):  # nearly all are spelled so
        return values[0]
    tensor = names.parse(text)
    values = found.get(tensor.op, ())
    place = tensor.index
    if tensor.arg and tensor.op in body.by_name:
        flat = _output_names(body.node(tensor.op))
        there = [n for n, arg in enumerate(flat) if arg == (tensor.arg, tensor.index)]
        place = there[0] if there else len(values)
    return values[place] if place < len(values) else (-1, place)


def _output_names(node: Node) -> list[tuple[str, int]]:
    try:
        return [(arg.name, arg.index) for arg in node.outputs or ()]
    except ModelError:
        return []


def _output_count(node: Node) -> int:
    try:
        return max(1, len(node.outputs or ()))
    except ModelError:
        return 1


def function_of(node: Node) -> str:
    """The function that an op calls once, with its own inputs; nothing for other ops."""
    if node.op in node.body.library.signatures:
        return node.op
    if node.op in CALLS:
        return next(iter(called_functions(node)), "")
    return ""


def is_true(body: Body, text: str) -> bool:
    """Whether a tensor is true throughout, whatever the graph is fed."""
    behind = first_producers(body.producer(text))
    node = next((one for one in behind if one.op not in GIVES_ON | ENTERS), None)
    if node is None:
        return False
    if node.op == "OnesLike":
        return True
    value = node.attr("value") if node.op == "Const" else None
    if value is None or (not value.tensor.bool_val and not value.tensor.tensor_content):
        return False
    return all(value.tensor.bool_val) and b"\0" not in value.tensor.tensor_content


def ops_in_order(body: Body) -> Iterable[int]:
    """The ops, each behind those it reads and waits for; the way back of a loop does not count."""
    heads, there = body.heads, body.by_name
    reads = [
        [there[op] for text in inputs if (op := names.op_of(text)) in there and kind not in NEXTS]
        for kind, inputs in zip(heads.ops, heads.inputs, strict=True)
    ]
    return topology.in_order(reads)
