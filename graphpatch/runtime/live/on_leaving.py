"""Rules that ask for what is not there yet while an op is made: consumers, paths, patterns.

They are applied to the ops made in a context of `building` when it is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.match.select import MatchedOps, find
from graphpatch.rules import Rule
from graphpatch.runtime.live.hook import label_of, refuse_defun
from graphpatch.runtime.live.in_place import built_before, write_key
from graphpatch.runtime.model_of_graph import model_of
from graphpatch.step import RuleResult, check_expected, naming_rule, patch_matched


@dataclass(eq=False)
class CreatedOps:
    """The ops that were made in a context, by graph."""

    names: dict[int, set[str]] = field(default_factory=dict)
    graphs: dict[int, Any] = field(default_factory=dict)

    def add(self, op: Any) -> None:
        """Remember an op."""
        self.graphs[id(op.graph)] = op.graph
        self.names.setdefault(id(op.graph), set()).add(op.name)

    def of(self, graph: Any) -> set[str]:
        """The names of the ops that were made in a graph."""
        return self.names[id(graph)]


def apply_on_leaving(rules: Sequence[Rule], made: CreatedOps) -> list[RuleResult]:
    """Apply rules, whose patches are by key, to the ops that were made.

    Raises MatchError where one does not match as often as it expects; PatchError where one means
    ops in a function that was traced to its end, or ops whose gradients were built already.
    Nothing is changed then.
    """
    still_open = _open_graphs()
    models = [(graph, _model(graph)) for graph in made.graphs.values()]
    steps, changed = [], []
    for rule in rules:
        found = [(live, graph, _made_inside(find(graph, rule.match, rule.on), made.of(live)))
                 for live, graph in models]  # fmt: skip
        with naming_rule(rule):
            count = sum(one.count for _, _, one in found)
            check_expected(rule, [graph for _, graph in models], count)
            for live, _, one in found:
                _refuse_late(live, one, still_open)
            rule.patch.check([node for _, _, one in found for node in one.nodes])
        steps.append(patch_matched(rule, [(graph, one) for _, graph, one in found]))
        changed += [(live, node) for live, _, one in found for node in one.nodes]
    for live, node in changed:
        with live._mutation_lock():  # no Session runs meanwhile
            write_key(node, live.get_operation_by_name(node.name))
    return steps


def _model(live: Any) -> ModelGraph:
    """A live graph as rules see it; that of a function by its name."""
    graph = model_of(live).copy().graphs[0]
    graph.main.label = label_of(live)
    return graph


def _made_inside(found: MatchedOps, names: set[str]) -> MatchedOps:
    """What was found, as far as its ops were made in the context."""

    def inside(nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if node.name in names and node.body.is_main]

    kept = [one for one in found.kept if len(inside(one.nodes)) == len(one.nodes)]
    return MatchedOps(inside(found.nodes), kept, found.dropped)


def _open_graphs() -> set[int]:
    """The function graphs that are being traced now, by id."""
    import tensorflow as tf

    found, graph = set[int](), None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        found.add(id(graph))
        graph = getattr(graph, "outer_graph", None)
    return found


def _refuse_late(live: Any, found: MatchedOps, still_open: set[int]) -> None:
    if not found.nodes:
        return
    first, names = found.nodes[0], {node.name for node in found.nodes}
    refuse_defun(live, first)
    if hasattr(live, "outer_graph") and id(live) not in still_open:
        raise PatchError(
            f"{first} is in function {label_of(live)}, which was traced to its end before the "
            f"context was left: there a rule can ask for op, name, attr or dtype alone, or "
            f"`building` can be called inside of the function"
        )
    if built_before(live, names):
        raise PatchError(
            f"the gradient of {first} was built inside of the context, before this rule could be "
            f"applied: build gradients after it is left"
        )
