"""What reports say of recipes: activations that they leave alone, what a model lacks for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphpatch.control_flow.op_types import CONTROL_FLOW
from graphpatch.differentiation.flow import carries, is_linear, is_step, reads_shape_alone
from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import FED
from graphpatch.graph.provenance import rules_that_patched
from graphpatch.graph.walk import data_uses, downstream
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.names import op_of, parse
from graphpatch.recipes import RECIPE_ACTIVATIONS, RECIPES, SIGN, Recipe
from graphpatch.table import short

RELUS = ("Relu", "Relu6")
ABOVE_ZERO = frozenset({*RELUS, "Maximum", "ClipByValue", "Greater", "GreaterEqual"})
BELOW_ZERO = frozenset({"Abs", "Minimum", "Less", "LessEqual"})

MOVES = frozenset(
    "Identity Reshape Squeeze ExpandDims Transpose Concat ConcatV2 Pack Unpack Split SplitV Slice"
    " StridedSlice Pad PadV2 GatherV2 BiasAdd AvgPool Mean MaxPool".split()
)
"""Ops that share relevance among their inputs as their own gradients do."""


def _recipe_of(rule: str) -> Recipe | None:
    """Return the recipe that a rule of this name is of."""
    return RECIPES.get(rule[1:].partition(":")[0]) if rule.startswith(SIGN) else None


def unmatched_activations(
    names: Sequence[str], graphs: Sequence[Graph], touched: Collection[tuple[str, str]]
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
    asked = [rule for rule in names if (known := _recipe_of(rule)) and "of" in known.parameters]
    return [*alone, *halves, *(_without_rule(asked, graphs, touched) if asked else ())]


def _without_rule(
    rules: Sequence[str], graphs: Iterable[Graph], touched: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Yield a note on ops behind `of`, or what is fed, through which sums need not add up.

    Where no `of` is given, on those of several inputs that are computed from what is fed.
    """
    recipe = rules[-1][1:].partition(":")[0]
    of = next((rule.partition(" from ")[2] for rule in rules if " from " in rule), "")
    by_type: dict[str, list[str]] = {}
    for graph in graphs:
        shapes = {node.name: node.attr("shape") for node in _of_type(graph.main, *FED)}
        known = {name: attr.shape for name, attr in shapes.items() if attr is not None}
        scalars = {name for name, shape in known.items() if not (shape.unknown_rank or shape.dim)}
        ends = {op_of(of)} if of else shapes.keys() - scalars
        flows = _computed_from(graph.main, ends, floats=True)
        changes = _computed_from(graph.main, ends, floats=False)
        for node in (Node(graph.main, index) for index, mark in enumerate(flows) if mark):
            reads = map(graph.main.producer, node.data_inputs)
            varies = [op is not None and (changes[op.index] > 0 or op.name in ends) for op in reads]
            adds_up = node.op in MOVES
            if recipe == "deeplift":
                is_same = is_linear(node.op, varies, [not flag for flag in varies])
                is_single = sum(varies) < 2 and (not of or node.op == "Einsum")
                adds_up = is_single or (is_same and not is_step(node.op))
            is_meant = node.op in ("StopGradient", *CONTROL_FLOW, *RECIPE_ACTIVATIONS)
            if not adds_up and not is_meant and (node.body.label, node.name) not in touched:
                by_type.setdefault(node.op, []).append(node.name)
    if by_type:
        listed = ", ".join(f"{len(ops)} {kind} ({short(ops)})" for kind, ops in by_type.items())
        remedy = "" if of else "; @deeplift(of=INPUT) has rules for most such ops"
        yield f"no rule for {listed}: TensorFlow's gradient there need not add up{remedy}"


def _computed_from(body: Body, ends: Iterable[str], floats: bool) -> bytearray:
    """Mark the ops whose values depend on these, of which `floats`: by way of floats alone.

    Those that tf.gradients added are not among them.
    """

    def passes(index: int) -> bool:
        node = Node(body, index)
        gives = any(map(carries, node.outputs or ())) or not floats
        is_size = reads_shape_alone(node.op) or node.op == "TensorArraySizeV3"
        return gives and not is_size and not is_in_gradients(node)

    return downstream(body, map(parse, ends), through=passes)


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
