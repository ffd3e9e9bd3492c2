"""What reports say of recipes: activations that they leave alone, what a model lacks for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import rules_that_patched
from graphpatch.graph.walk import data_uses
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.names import op_of
from graphpatch.recipes import RECIPE_ACTIVATIONS, RECIPES, SIGN, Recipe
from graphpatch.table import short

RELUS = ("Relu", "Relu6")
ABOVE_ZERO = frozenset({*RELUS, "Maximum", "ClipByValue", "Greater", "GreaterEqual"})
BELOW_ZERO = frozenset({"Abs", "Minimum", "Less", "LessEqual"})


def _recipe_of(rule: str) -> Recipe | None:
    """Return the recipe that a rule of this name is of."""
    return RECIPES.get(rule[1:].partition(":")[0]) if rule.startswith(SIGN) else None


def unmatched_activations(
    names: Iterable[str], graphs: Iterable[Graph], touched: Collection[tuple[str, str]]
) -> list[str]:
    """Return the activations that recipes about activations do not patch, as the report says it.

    `names` are those of rules, `touched` the body and name of ops that they matched.
    """
    if not any(recipe is not None and recipe.explains for recipe in map(_recipe_of, names)):
        return []
    by_kind: dict[str, list[str]] = {}
    halves = []
    for graph in graphs:
        inside = set[Node]()
        for kind, node in _activations(graph, inside):
            if (node.body.label, node.name) not in touched and not is_in_gradients(node):
                place = "" if node.body.is_main else f" in function {node.body.label}"
                by_kind.setdefault(kind, []).append(f"{node.name}{place}")
        halves += [
            f"{relu} and {node}, of the same tensor or its negative, are not seen as one "
            f"activation; where they are the halves of a leaky ReLU, patch that: a pattern that "
            f'ends in their sum, with "on": "match"'
            for relu, node in _halves(graph)
            if (relu.body.label, relu.name) in touched and relu not in inside
        ]
    alone = [f"left alone: {len(ops)} {kind}: {short(ops)}" for kind, ops in by_kind.items()]
    return alone + halves


def activations_of(graphs: Iterable[Graph]) -> Iterator[tuple[str, Node]]:
    """Yield the activations of a model by what they are called: single ops, and ends of patterns.

    An op inside the match of a pattern is not an activation of its own.
    """
    for graph in graphs:
        yield from _activations(graph, set())


def _activations(graph: Graph, inside: set[Node]) -> Iterator[tuple[str, Node]]:
    """Yield them of one graph; `inside` collects the ops of those of several ops."""
    from graphpatch.match.ready import NEEDED  # here: few rules ask for ready patterns

    types = {op_type for body in graph.bodies for op_type in body.by_type}
    several: list[tuple[str, Node]] = []
    for name, needed in NEEDED.items():
        for match in find(graph, Match(pattern=f"@{name}")).kept if needed & types else ():
            several.append((f"@{name}", match.last))
            inside.update(Node(match.binding.body, index) for index in match.binding.indices)
    for body in graph.bodies:
        for op_type in RECIPE_ACTIVATIONS:
            yield from ((op_type, node) for node in _of_type(body, op_type) if node not in inside)
    yield from several


def _of_type(body: Body, *op_types: str) -> list[Node]:
    return [Node(body, index) for op in op_types for index in body.by_type.get(op, ())]


def _halves(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield the ReLUs that may be half of an activation, each with what may be the other half.

    A ReLU of x with |x| or min(x, ...), one of -x with what rectifies x. Those whose outputs are
    concatenated are two activations, as in a CReLU.
    """
    for body in graph.bodies:
        for relu in _of_type(body, *RELUS):
            read = relu.data_inputs[0] if relu.data_inputs else ""
            negated = body.producer(read)
            sources = [(read, BELOW_ZERO)]
            if negated is not None and negated.op == "Neg":
                sources.append((negated.data_inputs[0], ABOVE_ZERO))
            halves = [
                Node(body, index)
                for text, op_types in reversed(sources)
                for index, _, _ in data_uses(body, op_of(text))
                if body.heads.ops[index] in op_types
            ]
            readers = (body.heads.ops[index] for index, _, _ in data_uses(body, relu.name))
            if halves and not is_in_gradients(relu) and not {"Concat", "ConcatV2"} & {*readers}:
                yield relu, halves[0]


def why_recipe_finds_nothing(rule: str, ops: Sequence[str], graphs: Iterable[Graph]) -> str:
    """Return why a recipe's rule, which is for these op types, finds nothing, and what to do.

    Nothing where that is not clear. Of a recipe about activations: which others the model has.
    """
    recipe, graphs = _recipe_of(rule), list(graphs)
    bodies = [body for graph in graphs for body in graph.bodies]
    if recipe is not None and recipe.needs is not None:
        types, says = recipe.needs
        needed = [node for body in bodies for node in _of_type(body, *sorted(types))]
        if needed and recipe.name == "freeze":
            scopes = list(dict.fromkeys(node.name.partition("/")[0] for node in needed))
            return f"nothing reads a variable of that name or scope; there are: {short(scopes)}"
        return "" if needed else says
    if recipe is None or not recipe.explains:
        return ""
    for body in bodies:
        for node in _of_type(body, *ops):
            for author in rules_that_patched(node):
                return (
                    f"rule {author.rule!r} has patched {node.op} ops of the model; apply this one "
                    f"to the original, which `graphpatch revert` gives"
                )
    counts = Counter(kind for kind, node in activations_of(graphs) if not is_in_gradients(node))
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines = [
        f"it patches {', '.join(ops)}, and leaky and parametric ReLUs of several ops",
        f"the model has none of these; its activations: {listed or 'none'}",
    ]
    for kind in counts:
        if kind.startswith(SIGN):
            lines.append(
                f"{kind} is a ready pattern of several ops: `graphpatch match MODEL --pattern "
                f"{kind}` lists them, and a rule can give each a gradient of x as one op: "
                f'{{"match": {{"pattern": "{kind}"}}, "patch": {{"override_gradient": '
                f'{{"formula": "where(dy > 0, ...)"}}, "on": "match"}}}}'
            )
    return "\n  ".join(lines)
