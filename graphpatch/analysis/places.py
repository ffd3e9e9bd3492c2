"""Where a match is: its ops, the tensors that go in, and those that come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphpatch.graph.node import Body, Node
from graphpatch.match.pattern.overlaps import Binding, KeptMatch
from graphpatch.match.select import MatchedOps


@dataclass(frozen=True, slots=True)
class Place:
    """One match, of a pattern or of a single op.

    Attributes:
        body: `main`, or the name of the function.
        op: The name of the last op; of a single op, its name.
        type: The op type of that op.
        ops: The names of the ops that the patch goes to.
        captures: By the names of a pattern's ops, the names of the ops that they are.
        inputs: By `x0`, `x1`, ... the tensors that the match reads from outside, as formulas
            name them: of a single op its inputs.
        outputs: By `y0`, `y1`, ... the tensors of the match that are read outside, or that nothing
            reads: of a single op all its outputs.
        graph: The tags of its MetaGraphDef, where the model has several.

    Example:
        >>> place, other = graphpatch.matches({"op": "Relu"}, "model.pb")
        >>> place.type, place.inputs, place.outputs
        ('Relu', {'x0': 'block1/bias:0'}, {'y0': 'block1/relu:0'})
    """

    body: str
    op: str
    type: str
    ops: tuple[str, ...]
    captures: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    graph: str = ""

    def __repr__(self) -> str:
        function = "" if self.body == "main" else f" in function {self.body}"
        named = {**self.captures, **self.inputs}
        return f"<{self.type} {self.op!r}{function}: {_pairs_in_words(named) or 'reads nothing'}>"


def _pairs_in_words(named: Mapping[str, str], most: int = 8) -> str:
    pairs = [f"{key}={value}" for key, value in named.items()]
    return ", ".join(pairs[:most] + ["..."] * (len(pairs) > most))


def places_of_match(matched: MatchedOps, graph: str) -> Iterator[Place]:
    """Yield each match, in the file's order; `graph` are the tags of the graph that it is in."""
    if matched.kept:
        yield from (_of_pattern(match, graph) for match in matched.kept)
    else:
        yield from (_of_op(node, graph) for node in matched.nodes)


def _of_pattern(match: KeptMatch, graph: str) -> Place:
    binding: Binding = match.binding
    captures = binding.captures
    last, body = captures[binding.pattern.last], binding.body
    return Place(
        body.label,
        last.name,
        last.op,
        tuple(node.name for node in match.nodes),
        {name: node.name for name, node in captures.items()},
        _numbered_tensors("x", body, binding.inputs),
        _numbered_tensors("y", body, binding.outputs),
        graph,
    )


def _of_op(node: Node, graph: str) -> Place:
    made = [node.tensor(index) for index in range(len(node.outputs or ()))]
    return Place(
        node.body.label,
        node.name,
        node.op,
        (node.name,),
        {},
        _numbered_tensors("x", node.body, node.data_inputs),
        _numbered_tensors("y", node.body, made),
        graph,
    )


def _numbered_tensors(letter: str, body: Body, tensors: Iterable[str]) -> dict[str, str]:
    """Tensors by number; those of the main graph as TensorFlow spells them, `op:0`."""
    named = [text if ":" in text or not body.is_main else f"{text}:0" for text in tensors]
    return {f"{letter}{number}": text for number, text in enumerate(named)}
