"""Random patterns of a random body, small enough for the reference."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from graphpatch.errors import PatternError
from graphpatch.graph.node import Body
from graphpatch.match.pattern.syntax import check_pattern
from graphpatch.match.spec import Edge, Link, Match, Pattern
from graphpatch.names import op_of
from tests.match.pattern.random_bodies import TYPES

WANTED: list[Any] = [*TYPES, "*", ("Relu", "Identity"), "*N"]


@st.composite
def patterns(draw: st.DrawFn, body: Body) -> Pattern:
    """Some ops of a body with links between them, generalised; then marked at random.

    So most have a match, before optional, absent and closed are drawn, which ask for others.
    """
    ops = draw(grown(body))
    names = {index: f"p{place}" for place, index in enumerate(sorted(ops))}
    nodes = {
        name: Match(op=draw(types(body.heads.ops[index]))) for index, name in sorted(names.items())
    }
    edges, tensors = [], []
    for index in sorted(ops):
        for slot, text in enumerate(body.heads.inputs[index]):
            producer = body.by_name.get(op_of(text))
            if producer in names:
                if draw(st.integers(0, 7)):
                    edges.append(Edge(names[producer], names[index], draw(links(body, text, slot))))
            elif draw(st.integers(0, 3)) == 0 and not text.startswith("^"):
                tensor = f"t{draw(st.integers(0, 1))}"
                tensors.append(tensor)
                edges.append(Edge(tensor, names[index], draw(slots(slot))))
    for name in names.values():
        if draw(st.integers(0, 7)) == 0:
            nodes["gone"] = Match(op=draw(st.sampled_from(WANTED)))
            ends = draw(st.permutations([name, "gone"]))
            edges.append(Edge(ends[0], ends[1], Link()))
    draw(st.randoms(use_true_random=False)).shuffle(edges)
    optional = [name for name in names.values() if draw(st.integers(0, 4)) == 0]
    pattern = Pattern(
        nodes=nodes,
        edges=tuple(edges),
        tensors=tuple(dict.fromkeys(tensors)),
        optional=tuple(optional),
        absent=("gone",) if "gone" in nodes else (),
        closed=draw(st.sampled_from([False, False, False, True, ("p0",)])),
    )
    try:
        check_pattern(pattern)
    except PatternError:
        assume(False)
    return pattern


@st.composite
def grown(draw: st.DrawFn, body: Body) -> set[int]:
    """A few ops of a body, each linked with one before."""
    ops = {draw(st.integers(0, len(body) - 1))}
    for _ in range(draw(st.integers(1, 4))):
        near = {
            other
            for reader, inputs in enumerate(body.heads.inputs)
            for producer in (body.by_name.get(op_of(text)) for text in inputs)
            for one, other in ((reader, producer), (producer, reader))
            if one in ops and other is not None and other not in ops
        }
        if near:
            ops.add(draw(st.sampled_from(sorted(near))))
    return ops


def types(op: str) -> st.SearchStrategy[Any]:
    """What an op of this type may be asked to be."""
    return st.sampled_from([op, op, op, None, "*", (op, "Relu"), ("Mul", op), op[:1] + "*"])


def slots(slot: int) -> st.SearchStrategy[Link]:
    return st.sampled_from([Link(), Link(), Link(input=slot), Link(repeat=True)])


@st.composite
def links(draw: st.DrawFn, body: Body, text: str, slot: int) -> Link:
    """A link that this input is, mostly."""
    if text.startswith("^"):
        return Link(control=True)
    found = draw(slots(slot))
    output = draw(st.sampled_from([None, None, None, int(text.rpartition(":")[2] == "1")]))
    return Link(input=found.input, output=output, repeat=found.repeat)
