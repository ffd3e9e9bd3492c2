"""What reports say of recipes: activations that they leave alone, what a model lacks for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Node
from graphpatch.graph.walk import data_uses
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.names import op_of
from graphpatch.recipes import RECIPE_ACTIVATIONS, RECIPES, SIGN

if TYPE_CHECKING:
    from graphpatch.match.pattern.overlaps import KeptMatch


def unmatched_activations(
    names: Iterable[str], graphs: Iterable[Graph], touched: Collection[tuple[str, str]]
) -> list[str]:
    """Return the activations that recipes about activations do not patch, as the report says it.

    `names` are those of rules, `touched` the body and name of ops that they matched.
    """
    called = {name.removeprefix(SIGN).split(":")[0] for name in names if name.startswith(SIGN)}
    if not any(RECIPES[name].explains for name in called & RECIPES.keys()):
        return []
    by_kind: dict[str, list[str]] = {}
    halves = []
    for graph in graphs:
        several = list(_of_several_ops(graph))
        for kind, node in _activations(graph, several):
            if (node.body.label, node.name) not in touched and not is_in_gradients(node):
                place = "" if node.body.is_main else f" in function {node.body.label}"
                by_kind.setdefault(kind, []).append(f"{node.name}{place}")
        halves += [
            f"{relu} and {node}, of the same tensor or its negative, are not seen as one "
            f"activation; where they are the halves of a leaky ReLU, patch that: a pattern that "
            f'ends in their sum, with "on": "match"'
            for relu, node in _halves(graph, _inside(several))
            if (relu.body.label, relu.name) in touched
        ]
    alone = [f"left alone: {len(ops)} {kind}: {', '.join(ops)}" for kind, ops in by_kind.items()]
    return alone + halves


def activations_of(graphs: Iterable[Graph]) -> Iterator[tuple[str, Node]]:
    """Yield the activations of a model by what they are called: single ops, and ends of patterns.

    An op inside the match of a pattern is not an activation of its own.
    """
    for graph in graphs:
        yield from _activations(graph, list(_of_several_ops(graph)))


def _activations(
    graph: Graph, several: Sequence[tuple[str, KeptMatch]]
) -> Iterator[tuple[str, Node]]:
    inside = _inside(several)
    for body in graph.bodies:
        for op_type in RECIPE_ACTIVATIONS:
            single = (Node(body, index) for index in body.by_type.get(op_type, ()))
            yield from ((op_type, node) for node in single if node not in inside)
    yield from ((kind, match.last) for kind, match in several)


def _inside(several: Iterable[tuple[str, KeptMatch]]) -> set[Node]:
    return {
        Node(match.binding.body, index) for _, match in several for index in match.binding.indices
    }


_RELUS = ("Relu", "Relu6")
_ABOVE_ZERO = frozenset({*_RELUS, "Maximum", "ClipByValue", "Greater", "GreaterEqual"})
_BELOW_ZERO = frozenset({"Abs", "Minimum", "Less", "LessEqual"})


def _halves(graph: Graph, inside: Collection[Node]) -> Iterator[tuple[Node, Node]]:
    """The ReLUs that may be half of an activation, each with an op that may be the other half.

    A ReLU of x with |x| or min(x, ...), one of -x with what rectifies x. Those whose outputs are
    concatenated are two activations, as in a CReLU.
    """
    for body in graph.bodies:
        for node in (Node(body, index) for op in _RELUS for index in body.by_type.get(op, ())):
            if node in inside or is_in_gradients(node):
                continue
            halves = [
                reader
                for text, op_types in ((_negated(node), _ABOVE_ZERO), (_read(node), _BELOW_ZERO))
                for reader in (Node(body, index) for index, _, _ in data_uses(body, op_of(text)))
                if reader.op in op_types
            ]
            concatenated = any(
                Node(body, index).op in ("Concat", "ConcatV2")
                for index, _, _ in data_uses(body, node.name)
            )
            if halves and not concatenated:
                yield node, halves[0]


def _read(relu: Node) -> str:
    return next(iter(relu.data_inputs), "")


def _negated(relu: Node) -> str:
    """Return the tensor of whose negative a ReLU is, but for a constant that is added."""
    text = _read(relu)
    for _ in range(2):
        node = relu.body.producer(text) if text else None
        inputs = [] if node is None else node.data_inputs
        if node is None or node.op not in ("Neg", "Add", "AddV2", "Sub"):
            return ""
        producers = [relu.body.producer(producer) for producer in inputs]
        constant = [producer is not None and producer.op == "Const" for producer in producers]
        if node.op == "Neg" or (node.op == "Sub" and constant[0]):
            return inputs[-1]
        if sum(constant) != 1:
            return ""
        text = inputs[constant.index(False)]
    return ""


def _of_several_ops(graph: Graph) -> Iterator[tuple[str, KeptMatch]]:
    # Here, as it reads ready patterns, for which few rules ask.
    from graphpatch.match.ready import NEEDED

    types = {op_type for body in graph.bodies for op_type in body.by_type}
    for name in (name_or_match for name_or_match, needed in NEEDED.items() if needed & types):
        yield from (
            (f"@{name}", name_or_match)
            for name_or_match in find(graph, Match(pattern=f"@{name}")).kept
        )


def why_recipe_finds_nothing(rule: str, ops: Sequence[str], graphs: Iterable[Graph]) -> str:
    """Why a recipe's rule, which is for these op types, finds nothing, and what to do instead.

    Nothing where that is not clear. Of a recipe about activations: which others the model has.
    """
    recipe = RECIPES.get(rule.removeprefix(SIGN).split(":")[0]) if rule.startswith(SIGN) else None
    if recipe is None:
        return ""
    if recipe.needs is None:
        return _other_activations(ops, list(graphs)) if recipe.explains else ""
    types, says = recipe.needs
    return (
        ""
        if any(types & body.by_type.keys() for graph in graphs for body in graph.bodies)
        else says
    )


def _other_activations(ops: Sequence[str], graphs: Sequence[Graph]) -> str:
    activations = activations_of(graphs)
    counts = Counter(kind for kind, node in activations if not is_in_gradients(node))
    several = [kind for kind in counts if kind.startswith(SIGN)]
    lines = [f"it patches {', '.join(ops)}, and leaky and parametric ReLUs of several ops"]
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines.append(f"the model has none of these; its activations: {listed or 'none'}")
    for kind in several:
        lines.append(
            f"{kind} is a ready pattern of several ops: `graphpatch match MODEL --pattern {kind}` "
            f"lists them, and a rule can give each a gradient of x as one op: "
            f'{{"match": {{"pattern": "{kind}"}}, "patch": {{"override_gradient": '
            f'{{"formula": "where(dy > 0, ...)"}}, "on": "match"}}}}'
        )
    return "\n  ".join(lines)
