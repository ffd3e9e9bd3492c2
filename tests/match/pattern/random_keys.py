"""What the keys of a match may ask of an op: mostly what the reference says that it is."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from hypothesis import strategies as st

from graphpatch.graph.node import Body, Node
from graphpatch.match.spec import Compared, Inside, Near, OneOf, Shape
from tests.match.pattern import reference_facts as facts

Asked = st.SearchStrategy[dict[str, Any]] | None


def shapes(body: Body, index: int) -> Asked:
    found = facts.shape(body, index)
    if found is None:
        return None
    sizes = st.tuples(
        *(st.sampled_from([n, n, -1, None, Compared(least=n), Compared(above=n)]) for n in found)
    )
    count = prod(found)
    asked = st.one_of(
        sizes,
        st.builds(Shape, sizes=sizes, rank=st.just(len(found))),
        st.sampled_from(
            [
                Shape(rank=len(found)),
                Shape(rank=Compared(below=len(found) + 1)),
                *[Shape(elements=count)] * 2,
                Shape(elements=Compared(least=count, other=count + 1)),
                Shape(elements=Compared(above=count)),
            ]
        ),
    )
    return st.builds(lambda one: {"shape": one}, asked)


def insides(body: Body, index: int) -> Asked:
    found = facts.around(body, index)
    if not found:
        return None
    kind, names, number = found[0]
    asked: list[Any] = [
        *[kind] * 3,
        "loop",
        Inside(**{kind: sorted(names)[0]}),
        Inside(**{kind: (sorted(names)[-1][:1] + "*", "other")}),
        Inside(**{kind: "other"}),
    ]
    if number is not None:
        asked += [
            Inside(when=bool(number)),
            Inside(branch="*", when=bool(number)),
            Inside(when=False),
        ]
    return st.builds(lambda one: {"inside": one}, st.sampled_from(asked))


def takens(body: Body, index: int) -> Asked:
    rules = facts.rules_at(body, index, "rules", "inputs")
    asked: list[Any] = [True, True, rules[0], (rules[0], "x"), "two"] if rules else [False]
    return st.builds(lambda one: {"taken": one}, st.sampled_from(asked))


def attrs(body: Body, index: int) -> Asked:
    for key in ("N", "num"):
        found = Node(body, index).attr(key)
        if found is not None:
            n = found.i
            asked = [n, OneOf(least=n), OneOf(above=n - 1, most=n), OneOf(other=n + 1)]
            asked.append(OneOf(below=n))
            return st.builds(lambda one, key=key: {"attr": {key: one}}, st.sampled_from(asked))
    return None


def constants(body: Body, index: int) -> Asked:
    found = facts.values(body, index)
    if not found:
        return None
    low, high = min(found), max(found)
    asked = [
        low,
        Near(least=low),
        Near(above=low - 0.5, most=high),
        Near(below=high + 1, other=high + 2),
        Near(other=low),
    ]
    return st.builds(lambda one: {"value": one}, st.sampled_from(asked))


ASKED: tuple[Callable[[Body, int], Asked], ...] = (
    *(shapes, shapes, insides, insides, takens),
    *[attrs] * 2,  # which few ops have
    *[constants] * 4,
)
