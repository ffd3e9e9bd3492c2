"""Random bodies, small enough for the reference: plain ones, and such as every key can be asked of.

Those have constants with values and shapes, lie in loops and branches or hold one, and carry what
earlier rules wrote down.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from graphpatch.graph.node import Body
from graphpatch.graph.provenance import PROVENANCE_ATTR
from graphpatch.protos import AttrValue, NodeDef
from tests import graphs
from tests.graphs import function, graphdef, node

# Op types: the least and most inputs that an op of each gets, and how functions spell its outputs.
TYPES: dict[str, tuple[int, int, list[str]]] = {
    "Const": (0, 0, ["output:0"]),
    "Relu": (1, 1, ["activations:0"]),
    "Identity": (1, 1, ["output:0"]),
    "Mul": (2, 2, ["z:0"]),
    "AddN": (1, 4, ["sum:0"]),
    "Unpack": (1, 1, ["output:0", "output:1"]),
}
PLACES = ("main", "function", "While", "If", "cond", "loop")
"""Where the drawn ops are; in `cond` and `loop` some of them are in one of v1."""

RULES = ("one", "two")
WRITTEN: list[tuple[dict[str, Any], str | None]] = [
    ({}, ""),
    ({}, ""),
    ({"shadow": 0}, ""),
    ({"rules": [], "inputs": [1]}, ""),  # which the rule did not patch
    ({"for": "n0"}, None),  # that was added
    ({"of": "n0"}, None),
    ({}, "n1"),
]
"""Records, with the name that the op had: none for one that was added, empty for its own."""

Shape = tuple[int, ...] | None


@dataclass
class Growing:
    """Ops so far, and what the next may read: the context and shape of each tensor."""

    place: str
    size: Shape = None
    nodes: list[NodeDef] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, tuple[str, Shape]] = field(default_factory=dict)

    @property
    def in_function(self) -> bool:
        return self.place in ("function", "While", "If")

    def near(self, context: str) -> list[str]:
        """The last tensors that an op in a context may read: its own, in a branch outer ones."""
        legal = (context,) if context == "loop" else (context, "")
        return [text for text, (one, _) in self.tensors.items() if one in legal][-5:]

    def add(self, made: NodeDef, context: str, shape: Shape, outputs: Sequence[str] = ()) -> None:
        self.nodes.append(made)
        self.where[made.name] = context
        for number, output in enumerate(outputs):
            main = f"{made.name}:{number}" if number else made.name
            text = f"{made.name}:{output}" if self.in_function else main
            self.tensors[text] = (context, shape)


@st.composite
def bodies(
    draw: st.DrawFn, places: Sequence[str] = ("main", "function"), told: bool = False
) -> Body:
    """A main graph, or the same ops in a function, whose argument `x` they read.

    `told`: constants have values, and ops what earlier rules wrote down on them.
    """
    size = draw(st.sampled_from([(), (2,), (2, 3)])) if told else None
    growing = Growing(draw(st.sampled_from(places)), size)
    _begin(growing)
    for index in range(draw(st.integers(3, 9))):
        _grow(draw, growing, f"n{index}", told)
    nodes = _ended(draw, growing)
    signed = [one for one in nodes if told and draw(st.integers(0, 3)) == 0]
    for one in signed:
        _sign(draw, one, one is signed[0])
    return _body(growing, nodes)


def _begin(growing: Growing) -> None:
    """What the first ops read: an argument, a Switch, or what a loop has."""
    if growing.in_function:
        growing.tensors["x"] = ("", None)
    if growing.place == "cond":
        growing.add(node("pred", "Placeholder", dtype="bool"), "", None)
    if growing.place in ("cond", "loop"):
        growing.add(constant("c", growing.size, [1.0]), "", growing.size, ["output:0"])
    if growing.place == "cond":
        growing.nodes.append(node("sw", "Switch", "c", "pred"))
        growing.tensors |= {"sw": ("0", growing.size), "sw:1": ("1", growing.size)}
    if growing.place == "loop":
        growing.tensors |= {"switch:1": ("loop", None), "exit": ("", None)}


def _grow(draw: st.DrawFn, growing: Growing, name: str, told: bool) -> None:
    context = draw(st.sampled_from(sorted({one for one, _ in growing.tensors.values()} or {""})))
    own = [text for text, (one, _) in growing.tensors.items() if one == context][-5:]
    legal = [op for op, (least, _, _) in TYPES.items() if (own if least else not context)]
    op = draw(st.sampled_from(legal))
    first = draw(st.sampled_from(own)) if TYPES[op][0] else ""
    shape = growing.tensors[first][1] if first else growing.size
    if op == "Unpack" and shape is not None and shape[:1] != (2,):
        op = "Relu"  # there are no two parts
    inputs = _inputs(draw, growing, context, op, first)
    after = [one.name for one in growing.nodes if growing.where.get(one.name) == context]
    if after and draw(st.integers(0, 5)) == 0:
        inputs.append(f"^{draw(st.sampled_from(after))}")
    data = [text for text in inputs if text[0] != "^"]
    attrs = {"AddN": {"N": len(data)}, "Unpack": {"num": 2}}.get(op, {})
    made = node(name, op, *inputs, **attrs)
    if op == "Const" and told:
        values = draw(st.lists(st.integers(-2, 2), min_size=1, max_size=2))
        made = constant(name, growing.size, values, inputs)
    growing.add(made, context, _shape(growing, op, data), TYPES[op][2])


def _inputs(draw: st.DrawFn, growing: Growing, context: str, op: str, first: str) -> list[str]:
    least, most, _ = TYPES[op]
    if not first or most == 1:
        return [first] if first else []
    shape = growing.tensors[first][1]
    near = [t for t in growing.near(context) if op == "Mul" or growing.tensors[t][1] == shape]
    # The last tensors may all be of other shapes.
    more = draw(st.lists(st.sampled_from(near or [first]), min_size=least - 1, max_size=most - 1))
    return list(draw(st.permutations([first, *more])))


def _shape(growing: Growing, op: str, data: Sequence[str]) -> Shape:
    """What TensorFlow would infer: of all shapes in one body each fits behind each longer one."""
    shapes = [growing.tensors[text][1] for text in data]
    if op == "Const" or not shapes:
        return growing.size
    if op == "Unpack":
        return None if shapes[0] is None else shapes[0][1:]
    return None if None in shapes else max((one for one in shapes if one is not None), key=len)


def constant(
    name: str, shape: Shape, values: Sequence[float], control: Sequence[str] = ()
) -> NodeDef:
    """A Const that begins with these values and goes on with the last; without a shape: empty."""
    made = node(name, "Const", *control, dtype="float32")
    if shape is not None:
        tensor = made.attr["value"].tensor
        tensor.dtype = graphs.FLOAT
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val[:] = values if shape else values[:1]
    return made


def _ended(draw: st.DrawFn, growing: Growing) -> list[NodeDef]:
    """All nodes, with those that end the branches, or make the loop."""
    own = [text for text, (context, _) in growing.tensors.items() if context == "loop"]
    if growing.place == "loop":
        inside = [one for one in growing.nodes if growing.where[one.name] == "loop"]
        outside = [one for one in growing.nodes if growing.where[one.name] != "loop"]
        return [*outside, *graphs.v1_loop("c", *inside, gives=draw(st.sampled_from(own)))]
    if growing.place == "cond":
        both = [
            draw(st.sampled_from([t for t, (c, _) in growing.tensors.items() if c == number]))
            for number in "01"
        ]
        return [*growing.nodes, node("join", "Merge", *both, N=2)]
    return growing.nodes


def _sign(draw: st.DrawFn, made: NodeDef, is_first: bool) -> None:
    """Write down what a rule did; the first op of all carries the record of the model."""
    record, name = draw(st.sampled_from(WRITTEN))
    record = {"rules": [draw(st.integers(0, len(RULES) - 1))], **record}
    if is_first:
        record["model"] = {"rules": [{"name": one, "id": one, "rule": {}} for one in RULES]}
    texts = [json.dumps(record).encode()]
    if name is not None:
        was = NodeDef.FromString(made.SerializeToString())
        was.name = name or made.name
        texts.append(was.SerializeToString(deterministic=True))
    made.attr[PROVENANCE_ATTR].list.s.extend(texts)


def _body(growing: Growing, nodes: Sequence[NodeDef]) -> Body:
    if not growing.in_function:
        return graphs.main(*nodes)
    inner = [function("f", ["x"], nodes, {"y": [*growing.tensors][-1]})]
    calls = []
    if growing.place != "function":
        keys = ("cond", "body") if growing.place == "While" else ("else_branch", "then_branch")
        inner.append(function("g", ["x"], [], {"y": "x"}))
        called = {key: AttrValue(func={"name": name}) for key, name in zip(keys, "gf", strict=True)}
        calls = [node("around", growing.place, "given", "given", **called)]
    opened = graphs.opened(graphdef(node("given", "Placeholder"), *calls, functions=inner))
    found = opened.functions["f"]
    found.__dict__["opened"] = opened  # kept as long as the body: callers are looked up in it
    return found
