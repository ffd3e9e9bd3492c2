"""The rules that a page marks: at which ops they are, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from graphpatch.analysis.matches import Matches
from graphpatch.analysis.rule_words import patch_in_words, rules_at
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.record import labels
from graphpatch.recipes import is_recipe

SELECTED = "selected"


@dataclass(eq=False)
class RuleMarks:
    """Rules by name, each as a rules file has it, and the rules at ops by graph, body and op.

    `wrong` has what `apply` says of a rule that it would refuse. `is_applied`: the last model is
    what the rules made of it.
    """

    written: dict[str, Any] = field(default_factory=dict)
    at: dict[tuple[int, str], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    is_applied: bool = False

    def mark(self, graph: int, body: str, op: str, rules: Sequence[str]) -> None:
        """Mark an op with rules, behind those that it has."""
        ops = self.at.setdefault((graph, body), {})
        ops[op] = tuple(dict.fromkeys([*ops.get(op, ()), *rules]))

    def without_idle(self) -> RuleMarks:
        """Leave out rules of recipes that are at no op, where a rule is at any; return the rest."""
        counts = self._counts()
        idle = (name for name in self.written if is_recipe(name) and not counts[name])
        for name in set(idle).difference(self.wrong) if counts else ():
            del self.written[name]
        return self

    def _counts(self) -> Counter[str]:
        """Return at how many ops each rule is."""
        return Counter(rule for ops in self.at.values() for at in ops.values() for rule in at)

    def document(self) -> list[dict[str, Any]]:
        """Return the rules as the page's document lists them."""
        counts = self._counts()
        return [
            {
                "name": name,
                "words": patch_in_words(rule.get("patch")) if rule else SELECTED,
                "rule": rule,
                "ops": counts[name],
                "error": self.wrong.get(name, ""),
            }
            for name, rule in self.written.items()
        ]


def marks_of_patched(graphs: Sequence[ModelGraph]) -> RuleMarks:
    """Return the rules that a patched model tells of."""
    marks = RuleMarks(is_applied=True)
    names = labels(rule for graph in graphs for rule in graph.library.rules)
    for number, graph in enumerate(graphs):
        patches = provenance.patches(graph)
        for rule in graph.library.rules:
            written = {"name": names[rule], "patch": patches.get(rule.id, {})}
            marks.written.setdefault(names[rule], written)
        for (body, op), rules in rules_at(graph, names).items():
            marks.mark(number, body, op, [*rules])
    return marks.without_idle()


def marks_of_matches(matches: Matches) -> RuleMarks:
    """Return the rules that were matched, or what a match alone picks out."""
    marks = RuleMarks()
    for rule in matches.rules:
        written = {"name": "", **msgspec.to_builtins(rule.written)} | {"name": rule.author.rule}
        marks.written[rule.author.rule] = {k: v for k, v in written.items() if v is not None}
    marks.written = marks.written or {SELECTED: None}
    tags = [graph.around.tags for graph in matches.model.graphs]
    for rule_matches in matches.found:
        name = rule_matches.rule if rule_matches.rule in marks.written else SELECTED
        if rule_matches.error:
            marks.wrong[name] = "\n".join(filter(None, (rule_matches.error, *rule_matches.near)))
        for place in rule_matches.places:
            graph = tags.index(place.graph) if place.graph in tags else 0
            for op in place.ops:
                marks.mark(graph, place.body, op, (name,))
    return marks.without_idle()
