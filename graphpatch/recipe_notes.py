"""What reports say of recipes: activations that they leave alone, what a model lacks for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphpatch.differentiation.flow import carries, is_linear, is_step, reads_shape_alone
from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ALL_VARIABLES, CONTROL_FLOW, FED
from graphpatch.graph.provenance import rules_that_patched
from graphpatch.graph.walk import data_uses, downstream
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.names import op_of, parse
from graphpatch.recipes import RECIPE_ACTIVATIONS, is_recipe, recipe_of
from graphpatch.shown import short

# What makes each element of the same element of what it reads: by a line with a kink, or without.
KINKED = (
    *("Relu", "Relu6", "Abs", "Maximum", "Minimum", "ClipByValue", "Select", "SelectV2"),
    *("Greater", "GreaterEqual", "Less", "LessEqual"),
)
STRAIGHT = ("Identity", "Neg", "Mul", "RealDiv", "Div", "Sub", "Add", "AddV2", "AddN", "Cast")
BY_ELEMENT = frozenset({*KINKED, *STRAIGHT})
PARAMETERS = frozenset({"Const", "OnesLike", "ReadVariableOp", "ZerosLike", *ALL_VARIABLES})
NO_PATTERN = "of several ops that no pattern knows"
MOST_PARTS = 30
"""Ops of an activation that are looked at."""

MOVES = frozenset(
    "Identity Reshape Squeeze ExpandDims Transpose Concat ConcatV2 Pack Unpack Split SplitV Slice"
    " StridedSlice Pad PadV2 GatherV2 BiasAdd AvgPool Mean MaxPool Tile DepthToSpace SpaceToDepth"
    " SpaceToBatchND BatchToSpaceND".split()
)
"""Ops that share relevance among their inputs as their own gradients do."""


def unmatched_activations(
    names: Sequence[str], graphs: Sequence[Graph], touched: Collection[tuple[str, str]]
) -> list[str]:
    """Return the activations that recipes about activations do not patch, as the report says it.

    `names` are those of rules, `touched` the body and name of ops that they matched.
    """
    if not any(recipe is not None and recipe.explains for recipe in map(recipe_of, names)):
        return []
    by_kind: dict[str, list[str]] = {}
    halves = []
    for graph in graphs:
        activations, inside = _activations(graph)
        for kind, node in activations:
            if (node.body.label, node.name) not in touched and not is_in_gradients(node):
                by_kind.setdefault(kind, []).append(_placed(node))
        for end, kinks in _joined(graph, inside).items():
            patched = [kink for kink in kinks if (kink.body.label, kink.name) in touched]
            if not patched:
                by_kind.setdefault(NO_PATTERN, []).append(_placed(end))
                continue
            parts = short([str(kink) for kink in patched])
            halves.append(
                f"{parts} and what else {end} is of are not seen as one activation; where they are "
                f"the parts of a leaky ReLU, patch that: a pattern that ends in {end.op}, with "
                f'"on": "match"'
            )
    alone = [f"left alone: {len(ops)} {kind}: {short(ops)}" for kind, ops in by_kind.items()]
    asked = [rule for rule in names if (known := recipe_of(rule)) and "of" in known.parameters]
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
        flows, changes = (_computed_from(graph.main, ends, flag) for flag in (True, False))
        for node in (Node(graph.main, index) for index, mark in enumerate(flows) if mark):
            reads = map(graph.main.producer, node.data_inputs)
            varies = [op is not None and (changes[op.index] > 0 or op.name in ends) for op in reads]
            adds_up = node.op in MOVES or node.op.startswith("TensorArray")
            if recipe == "deeplift":
                is_same = is_linear(node.op, varies, [not flag for flag in varies])
                training = node.attr("is_training")
                is_fixed = node.op == "Einsum" or (training is not None and not training.b)
                is_single = sum(varies) < 2 and (is_fixed or not of)
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
        yield from _activations(graph)[0]


def _activations(graph: Graph) -> tuple[list[tuple[str, Node]], set[Node]]:
    """Return them of one graph, and the ops of those of several ops."""
    from graphpatch.match.ready import NEEDED  # here: few rules ask for ready patterns

    types = {op_type for body in graph.bodies for op_type in body.by_type}
    several, inside = list[tuple[str, Node]](), set[Node]()
    for name, needed in NEEDED.items():
        for match in find(graph, Match(pattern=f"@{name}")).counted if needed & types else ():
            several.append((f"@{name}", match.last_op))
            inside.update(match.nodes)
    nodes = (node for body in graph.bodies for node in _of_type(body, *RECIPE_ACTIVATIONS))
    return [*((node.op, node) for node in nodes if node not in inside), *several], inside


def _of_type(body: Body, *op_types: str) -> list[Node]:
    return [Node(body, index) for op in op_types for index in body.by_type.get(op, ())]


def _placed(node: Node) -> str:
    return node.name if node.body.is_main else f"{node.name} in function {node.body.label}"


def _joined(graph: Graph, inside: set[Node]) -> dict[Node, list[Node]]:
    """Return ops that join parts of an activation of the same tensors, each with those with a kink.

    Parts that are concatenated are two activations, as in a CReLU.
    """
    joined: dict[Node, list[Node]] = {}
    for body in graph.bodies:
        for kink in _of_type(body, *KINKED):
            end = None if kink in inside or is_in_gradients(kink) else _joins(kink)
            if end is not None and end not in inside and any(map(carries, end.outputs or ())):
                joined.setdefault(end, []).append(kink)
    return joined


def _joins(kink: Node) -> Node | None:
    """Return the first op that joins an op with what reads the same tensors beside it."""
    body, own = kink.body, _sources(kink.body, kink.data_inputs)
    if own and sum(_sources(body, [text]) == own for text in kink.data_inputs) > 1:
        return kink  # as max(x, x / 5)
    todo, behind = [kink], {kink.index}
    while own and todo and len(behind) < MOST_PARTS:
        for index, _, _ in data_uses(body, todo.pop(0).name):
            node = Node(body, index)
            if index not in behind and node.op in BY_ELEMENT:
                if _sources(body, node.data_inputs, behind) == own:
                    return node
                behind.add(index)
                todo.append(node)
    return None


def _sources(body: Body, read: Iterable[str], without: Collection[int] = ()) -> set[str]:
    """Return the tensors of which these are made by element, without these ops and parameters."""
    todo, known, sources = list(read), set[str](), set[str]()
    while todo:
        text = todo.pop()
        producer = body.producer(text)
        if text in known or (producer is not None and producer.index in without):
            continue
        known.add(text)
        if producer is not None and producer.op in BY_ELEMENT and len(known) < MOST_PARTS:
            todo += producer.data_inputs
        elif producer is None or producer.op not in PARAMETERS:
            sources.add(text)
    return sources


def why_recipe_finds_nothing(rule: str, ops: Sequence[str], graphs: Iterable[Graph]) -> str:
    """Return why a recipe's rule, which is for these op types, finds nothing, and what to do.

    Nothing where that is not clear. Of a recipe about activations: which others the model has.
    """
    recipe, graphs = recipe_of(rule), list(graphs)
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
    counts = Counter[str]()
    for graph in graphs:
        activations, inside = _activations(graph)
        counts.update(kind for kind, node in activations if not is_in_gradients(node))
        counts[NO_PATTERN] += len(_joined(graph, inside))
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    patched = ", ".join([*ops, "leaky and parametric ReLUs of several ops"])
    lines = [
        f"it patches {patched}",
        f"the model has none of these; its activations: {listed or 'none'}",
    ]
    for kind in filter(is_recipe, counts):  # a ready pattern has the same sign
        lines.append(
            f"{kind} is a ready pattern of several ops: `graphpatch match MODEL --pattern {kind}` "
            f'lists them, and a rule with it and "on": "match" gives each a gradient of its own'
        )
    return "\n  ".join(lines)
