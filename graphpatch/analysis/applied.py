"""Whether a model has rules applied: what they wrote down on the ops says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.again import damage
from graphpatch.formats import Model
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.check import check_graph as refuse_broken
from graphpatch.match.select import find
from graphpatch.rules import Rule, RulesLike, by_recipe, rules_of
from graphpatch.shown import html_table


@dataclass(frozen=True, slots=True, repr=False)
class Check:
    """Whether a model has rules applied. `missing` has the others, with the reason.

    `rules` has the names of the rules that were asked about, `model` the path of the model.

    Example:
        >>> graphpatch.check("rules.json", "model.pb").missing
        {'guided': 'has not been applied'}
    """

    model: str
    rules: tuple[str, ...]
    missing: dict[str, str]

    @property
    def ok(self) -> bool:
        """Return whether all of the rules are applied."""
        return not self.missing

    @property
    def error(self) -> str:
        """Return which rules are not applied and why, in a line; nothing where all are."""
        reasons = "; ".join(f"rule {name!r} {why}" for name, why in self.missing.items())
        return f"{self.model}: {reasons}" if reasons else ""

    def document(self) -> dict[str, Any]:
        """Return what `check --json` prints of a model, without the seconds that it took."""
        listed = [{"name": name, "applied": name not in self.missing} for name in self.rules]
        document = {"model": self.model, "applied": self.ok, "rules": listed}
        return document if self.ok else {**document, "error": self.error}

    def __repr__(self) -> str:
        return f"<Check: {self.error or f'{self.model}: applied'}>"

    def _repr_html_(self) -> str:
        rows = [(name, self.missing.get(name, "applied")) for name in self.rules]
        return html_table(self.model, ("rule", ""), rows)


def check(rules: RulesLike, model: ModelLike) -> Check:
    """Check whether rules have been applied to a model, by what they wrote down in it.

    Forward and backward nothing is computed, and nothing is changed.

    Args:
        rules: What `apply` takes.
        model: What `load` takes.

    Raises:
        RulesError: A rule is not valid.
        ModelError: The model cannot be read or is broken.
        TypeError: `rules` or `model` is of another type.

    When not to use it: to find out whether the gradients are right; `verify` runs them.

    Example:
        >>> graphpatch.check("rules.json", "patched.pb").ok
        True
    """
    read, loaded = rules_of(rules), model_from("model", model)
    names = tuple(rule.author.rule for rule in read)
    return Check(loaded.path, names, missing_rules(read, loaded))


def missing_rules(rules: Sequence[Rule], model: Model) -> dict[str, str]:
    """Return the rules that have not been applied to the model, by name, each with the reason.

    A rule that may match nothing leaves no trace where it did; it counts as applied where no op
    that rules have left alone is one for it. Raises ModelError where the graph is broken.
    """
    for graph in model.graphs:
        refuse_broken(graph)
    bodies = [body for graph in model.graphs for body in graph.bodies]
    touched = {(body.label, index) for body in bodies for index in body.touched()}
    ids = {rule.id for graph in model.graphs for rule in graph.library.rules}
    missing, fault = {}, damage(model) if touched else ""
    for rule in rules:
        name = rule.author.rule
        if rule.author.id in ids or (fault and not ids):
            if fault:
                missing[name] = f"is not in it as it was applied: {fault}"
        elif rule.expect.min > 0:
            missing[name] = "has not been applied"
        else:
            nodes = (n for graph in model.graphs for n in find(graph, rule.match, rule.on).nodes)
            unpatched = [node for node in nodes if (node.body.label, node.index) not in touched]
            if unpatched:
                missing[name] = f"has not been applied, and {unpatched[0]} is an op for it"
    # As `apply` has it, of the rules of a recipe one must match, whatever each of them allows.
    for of_recipe in by_recipe(rules):
        if not any(rule.author.id in ids or rule.author.rule in missing for rule in of_recipe):
            missing[of_recipe[-1].author.rule] = "has not been applied"
    return missing
