"""The rules that a page marks: which there are, at which ops, and what each does in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphpatch.analysis.matches import Matches
from graphpatch.analysis.rule_words import patch_in_words, rules_at
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.record import labels
from graphpatch.names import OpKey

SELECTED = "selected"


@dataclass(eq=False)
class RuleMarks:
    """Rules by name, each as a rules file has it, and the rules at each op of each graph.

    `wrong` has what `apply` says of a rule that it would refuse, `steps` the ops that each rule
    matches, in the order of the rules. `is_applied`: the last model is what the rules made of it;
    `are_given`: of a dry run of rules; `is_taken_off`: the first is what was there before them.
    """

    written: dict[str, Any] = field(default_factory=dict)
    at: dict[int, dict[OpKey, tuple[str, ...]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    is_applied: bool = False
    are_given: bool = False
    is_taken_off: bool = False

    def of_body(self, graph: int, label: str) -> dict[str, tuple[str, ...]]:
        """Return the rules at the ops of a body, by name; asked once all are known."""
        return self._by_body.get((graph, label), {})

    @cached_property
    def _by_body(self) -> dict[tuple[int, str], dict[str, tuple[str, ...]]]:
        rules_by_op: dict[tuple[int, str], dict[str, tuple[str, ...]]] = {}
        for graph, places in self.at.items():
            for (body, op), rules in places.items():
                rules_by_op.setdefault((graph, body), {})[op] = rules
        return rules_by_op

    def document(self) -> list[dict[str, Any]]:
        """Return the rules as the page's document lists them."""
        counts = dict.fromkeys(self.written, 0)
        for places in self.at.values():
            for rules in places.values():
                for rule in rules:
                    counts[rule] = counts.get(rule, 0) + 1
        return [
            {
                "name": name,
                "words": patch_in_words((rule or {}).get("patch")) if rule else SELECTED,
                "rule": rule,
                "ops": counts[name],
                "error": self.wrong.get(name, ""),
            }
            for name, rule in self.written.items()
        ]


def of_patched(graphs: Sequence[ModelGraph]) -> RuleMarks:
    """Return the rules that a patched model tells of."""
    marks = RuleMarks(is_applied=True)
    names = labels(rule for graph in graphs for rule in graph.library.rules)
    for place, graph in enumerate(graphs):
        patches = provenance.patches(graph)
        for rule in graph.library.rules:
            written = {"name": names[rule], "patch": patches.get(rule.id, {})}
            marks.written.setdefault(names[rule], written)
        marks.at[place] = {op: tuple(at) for op, at in rules_at(graph, names).items()}
    return marks


def of_matches(matches: Matches) -> RuleMarks:
    """Return the rules that were matched, or what a match alone picks out."""
    written = {rule.author.rule: _rule_json(rule) for rule in matches.rules} or {SELECTED: None}
    marks = RuleMarks(written, are_given=True)
    labels = [graph.around.tags for graph in matches.model.graphs]
    for rule_matches in matches.found:
        name = rule_matches.rule if rule_matches.rule in written else SELECTED
        if rule_matches.error:
            marks.wrong[name] = "\n".join(filter(None, (rule_matches.error, rule_matches.misses)))
        for place in rule_matches.places:
            graph = labels.index(place.graph) if place.graph in labels else 0
            at = marks.at.setdefault(graph, {})
            for op in place.ops:
                key = (place.body, op)
                at[key] = tuple(dict.fromkeys([*at.get(key, ()), name]))
    return marks


def _rule_json(rule: Any) -> Any:
    import msgspec

    rule_document = msgspec.to_builtins(rule.written)
    return {"name": rule.author.rule, **{k: v for k, v in rule_document.items() if v is not None}}
