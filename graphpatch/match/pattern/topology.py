"""The graphs that networkx decides on: the links of a body, and a pattern as a graph.

The vertices of a body are numbers: ops by their index, and behind them, for each name of a tensor
in the pattern (`x:_`), every tensor that an op reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, combinations, repeat
from typing import Any

import msgspec
import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import MultiDiGraphMatcher

from graphpatch import names
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import in_order
from graphpatch.match.spec import Link, Pattern
from graphpatch.names import TensorName

Column = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Topology:
    """The links of a body, as columns and by op: which op or tensor, which reader, which slot."""

    def __init__(self, body: Body) -> None:
        self.body = body
        inputs, by_name = body.heads.inputs, body.by_name
        counts = np.fromiter(map(len, inputs), np.int64, len(inputs))
        self.texts = list(chain.from_iterable(inputs))
        # Most inputs are an op's output 0, spelled as its name: no call in Python for them.
        self.source = np.fromiter(
            map(by_name.get, self.texts, repeat(-1)), np.int64, len(self.texts)
        )
        self.control = np.zeros(len(self.texts), np.bool_)
        for place in np.flatnonzero(self.source < 0).tolist():
            self.source[place] = by_name.get(names.op_of(self.texts[place]), -1)
            self.control[place] = self.texts[place][:1] == "^"
        self.reader = np.repeat(np.arange(len(inputs)), counts)
        self.slot = np.arange(len(self.texts)) - np.repeat(np.cumsum(counts) - counts, counts)

    @cached_property
    def tensors(self) -> list[TensorName]:
        """Every tensor that an op reads, in the file's order of the ops that give them."""
        by_name = self.body.by_name
        every = {names.parse(text) for text in set(self.texts) if text[:1] != "^"}
        return sorted(
            every,
            key=lambda tensor: (by_name.get(tensor.op, -1), tensor.op, tensor.arg, tensor.index),
        )

    @cached_property
    def tensor_numbers(self) -> dict[TensorName, int]:
        """Return the place of each tensor among all."""
        return {tensor: number for number, tensor in enumerate(self.tensors)}

    @cached_property
    def tensor(self) -> Column:
        """Return the tensor of each link; -1 for a control input."""
        numbers = {
            text: -1 if text[:1] == "^" else self.tensor_numbers[names.parse(text)]
            for text in set(self.texts)
        }
        return np.fromiter(map(numbers.__getitem__, self.texts), np.int64, len(self.texts))

    @cached_property
    def order(self) -> list[int]:
        """Of each op a number greater than those of the ops that it reads.

        Ops on circles, and those behind them, all have the greatest number.
        """
        reads: list[set[int]] = [set() for _ in range(len(self.body))]
        data = ~self.control & (self.source >= 0)
        ends = self.source[data].tolist(), self.reader[data].tolist()
        for source, reader in zip(*ends, strict=True):
            reads[reader].add(source)
        order = [len(reads)] * len(reads)
        for number, index in enumerate(in_order(reads)):
            order[index] = number
        return order

    def tensor_of(self, vertex: int) -> TensorName:
        """Return the tensor that a vertex behind the ops stands for."""
        return self.tensors[(vertex - len(self.body)) % len(self.tensors)]

    def is_output(self, text: str, producer: int, output: int | None) -> bool:
        """Return whether an input reads this output of an op; None is any."""
        if output is None:
            return True
        try:
            return names.parse(text) == names.parse(Node(self.body, producer).tensor(output))
        except (IndexError, ModelError):
            return False

    def readers(self, vertex: int, link: Link) -> Iterator[int]:
        """Yield the ops that read an op or tensor by such a link."""
        heads, size = self.body.heads, len(self.body)
        tensor = self.tensor_of(vertex) if vertex >= size else None
        name = heads.names[vertex] if tensor is None else tensor.op
        for reader, slot in self.body.readers.get(name, ()):
            text = heads.inputs[reader][slot]
            if _is_such(text, slot, link) and (
                self.is_output(text, vertex, link.output)
                if tensor is None
                else names.parse(text) == tensor
            ):
                yield reader

    def read(self, reader: int, link: Link, offset: int | None = None) -> Iterator[int]:
        """Yield the ops that an op reads by such a link.

        With an `offset`, the tensors instead, by their numbers from there on.
        """
        by_name = self.body.by_name
        for slot, text in enumerate(self.body.heads.inputs[reader]):
            if not _is_such(text, slot, link):
                continue
            if offset is not None:
                yield offset + self.tensor_numbers[names.parse(text)]
            else:
                producer = by_name.get(text, by_name.get(names.op_of(text), -1))
                if producer >= 0 and self.is_output(text, producer, link.output):
                    yield producer


def _is_such(text: str, slot: int, link: Link) -> bool:
    return (text[:1] == "^") is link.control and link.input in (None, slot)


def reached(
    starts: Iterable[int],
    following: Callable[[int], Iterable[int]],
    passes: Callable[[int], bool],
) -> set[int]:
    """Return the ops that pass and that are reached through others that do."""
    marked: set[int] = set()
    stack = list(starts)
    while stack:
        index = stack.pop()
        if index not in marked and passes(index):
            marked.add(index)
            stack += following(index)
    return marked


Swap = Mapping[str, str]
"""A way in which a pattern can be laid on itself: which node comes to lie on which."""


class PatternTopology:
    """A pattern in which nothing is optional: its ops and then its tensors, by number.

    `before` are pairs of nodes that could be swapped, of which the first is bound to what stands
    first in the file, so that each match is there once (J. A. Grochow and M. Kellis, 2007). Eight
    of twelve equal inputs are 495 matches; in every order they are 20 million.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.names = (*pattern.present, *pattern.tensors)
        self.op_count = len(pattern.present)
        number = {name: place for place, name in enumerate(self.names)}
        self.edges = [
            (number[edge.source], number[edge.target], edge.link)
            for edge in pattern.edges
            if edge.source in number and edge.target in number
        ]
        swaps = swaps_of(pattern)
        self.swaps = list(swaps.values())
        self.before = [(number[first], number[second]) for first, second in swaps]
        self.runs = [edge for edge in pattern.edges if edge.link.repeat]
        self.between: dict[tuple[int, int], list[int]] = {}
        for place, (source, target, _) in enumerate(self.edges):
            self.between.setdefault((source, target), []).append(1 << place)
        # What equal neighbourhoods are decided to hold, for all bodies.
        self.decided: dict[Any, list[tuple[int, ...]]] = {}

    @property
    def is_plain(self) -> bool:
        """Return whether the edges are all that a match must keep to."""
        pattern = self.pattern
        return not (pattern.tensors or pattern.absent or self.runs or pattern.closed is not False)

    def images(self, wanted: frozenset[str]) -> set[frozenset[str]]:
        """Return the sets of names on which these can come to lie by swaps; their own is one."""
        images, stack = {wanted}, [wanted]
        for nodes in stack:
            every = {frozenset(map(swap.__getitem__, nodes)) for swap in self.swaps} - images
            images |= every
            stack += every
        return images


def swaps_of(pattern: Pattern) -> dict[tuple[str, str], Swap]:
    """Return how all nodes of a pattern move where two of them are swapped, by these two.

    Every way in which the pattern can be laid on itself is made of some of the swaps. Ops come
    first: where all of them stay, the tensors that could still be swapped have no op of their own,
    and one order of them is as good as another.
    """
    kinds, swaps = _kinds(pattern), dict[tuple[str, str], Swap]()
    edges = Counter((edge.source, edge.target, str(edge.link)) for edge in pattern.edges)
    stays = dict[str, str]()
    for name, twin in combinations((*pattern.present, *pattern.tensors), 2):
        stays.setdefault(name, f"{name} stays")
        if kinds[name] != kinds[twin]:
            continue
        twins = {**{node: node for node in kinds}, name: twin, twin: name}
        swap: Swap | None = twins
        if edges != Counter(
            {(twins[a], twins[b], link): n for (a, b, link), n in edges.items()}
        ):  # others must move too: networkx says which
            fixed = {**kinds, **{node: text for node, text in stays.items() if node != name}}
            unmoved, laid = (_as_graph(pattern, {**fixed, node: "moves"}) for node in (name, twin))
            matcher = MultiDiGraphMatcher(unmoved, laid, _is_alike, _is_linked_alike)
            swap = next(matcher.isomorphisms_iter(), None)
        if swap is not None:
            swaps[name, twin] = swap
    return swaps


def _kinds(pattern: Pattern) -> dict[str, str]:
    """Return what tells a node from others: itself, and the kinds around it, over and over.

    What can be swapped has equal kinds (B. Weisfeiler and A. Leman, 1968).
    """
    closed = pattern.closed if isinstance(pattern.closed, tuple) else ()
    kinds = dict.fromkeys(pattern.tensors, "tensor")
    for name, match in pattern.nodes.items():
        marks = [name in pattern.absent, name in closed, name in pattern.optional]
        kinds[name] = msgspec.json.encode([match, marks], order="deterministic").decode()
    for _ in range(len(kinds)):
        around = {name: [kind] for name, kind in kinds.items()}
        for edge in pattern.edges:
            around[edge.source].append(f">{edge.link}{kinds[edge.target]}")
            around[edge.target].append(f"<{edge.link}{kinds[edge.source]}")
        words = {name: str([texts[0], *sorted(texts[1:])]) for name, texts in around.items()}
        numbers = {text: str(number) for number, text in enumerate(sorted(set(words.values())))}
        kinds = {name: numbers[text] for name, text in words.items()}
    return kinds


def _as_graph(pattern: Pattern, kinds: Mapping[str, str]) -> nx.MultiDiGraph[str]:
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from((name, {"kind": kind}) for name, kind in kinds.items())
    graph.add_edges_from((edge.source, edge.target, {"link": edge.link}) for edge in pattern.edges)
    return graph


def _is_alike(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    return first["kind"] == second["kind"]


def _is_linked_alike(first: Mapping[int, Any], second: Mapping[int, Any]) -> bool:
    every = [sorted(str(edge["link"]) for edge in edges.values()) for edges in (first, second)]
    return every[0] == every[1]
