"""`inputs` and `consumers`: what the ops before and behind an op must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from graphpatch import names
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import tensor_named
from graphpatch.match.condition import Condition, Test
from graphpatch.match.paths import Holds
from graphpatch.match.spec import Match
from graphpatch.names import TensorName

# An op, or None for what is not an op: the argument of a function, an input that names nothing.
Neighbour = Node | None
Quantifier = Callable[[Iterable[bool]], bool]

QUANTIFIERS: dict[str, Quantifier] = {
    "any": any,
    "all": all,
    "none": lambda found: not any(found),
}


def inputs(wanted: Mapping[str, Match], control: bool, holds: Holds) -> Condition:
    """Input number k is given by such an op; or any, all, none of the inputs are.

    The argument of a function is not an op, and does not count. With `control`, any, all and none
    count the ops that run before, too.
    """
    every = partial(_inputs, control=control)
    return _on_neighbours(wanted, "inputs", _giver, every, holds)


def consumers(wanted: Mapping[str, Match], control: bool, holds: Holds) -> Condition:
    """Some op that reads output number k is such an op; or any, all, none of the readers are.

    `all` holds where nothing reads the op. With `control`, any, all and none count the ops that
    run after it, too.
    """
    every = partial(_consumers, control=control)
    return _on_neighbours(wanted, "consumers", _readers_of, every, holds)


def _on_neighbours(
    wanted: Mapping[str, Match],
    key: str,
    numbered: Callable[[Node, int], Iterable[Neighbour]],
    every: Callable[[Node], Iterable[Neighbour]],
    holds: Holds,
) -> Condition:
    for word in wanted:
        if word not in QUANTIFIERS and not (word.isascii() and word.isdigit() and len(word) < 10):
            legal = f"; legal: 0, 1, ..., {', '.join(QUANTIFIERS)}"
            near = did_you_mean(word, QUANTIFIERS) or legal
            raise RulesError(f"{key}: {word!r} does not say which{near}")

    conditions = {word: holds(match) for word, match in wanted.items()}

    def prepared(body: Body) -> Test:
        tests = {word: condition(body) for word, condition in conditions.items()}

        def is_met(node: Node) -> bool:
            for word, test in tests.items():
                found = every(node) if word in QUANTIFIERS else numbered(node, int(word))
                quantifier = QUANTIFIERS.get(word, any)
                if not quantifier(one is not None and test(one) for one in found):
                    return False
            return True

        return is_met

    return prepared


def _giver(node: Node, slot: int) -> list[Neighbour]:
    read = node.data_inputs
    return [node.body.producer(read[slot])] if slot < len(read) else []


def _inputs(node: Node, control: bool) -> list[Neighbour]:
    read = node.inputs if control else node.data_inputs
    return [node.body.producer(text) for text in read]


def _readers_of(node: Node, output: int) -> Iterator[Neighbour]:
    wanted = tensor_named(node.body, str(TensorName(node.name, output)))
    for reader, text in _readers_and_texts(node):
        if wanted is not None and names.parse(text) == wanted:
            yield reader


def _consumers(node: Node, control: bool) -> Iterator[Neighbour]:
    return (
        reader for reader, text in _readers_and_texts(node) if control or not text.startswith("^")
    )


def _readers_and_texts(node: Node) -> Iterator[tuple[Node, str]]:
    body = node.body
    for index, slot in body.readers.get(node.name, ()):
        yield Node(body, index), body.heads.inputs[index][slot]
