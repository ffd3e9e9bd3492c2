"""Matching from Python: what rules, or a match alone, mean in a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.matching import RuleMatches, match_only, match_rules
from graphpatch.analysis.places import Place
from graphpatch.analysis.saved_rules import as_rules_file
from graphpatch.application import RulesLike, rules_of
from graphpatch.errors import MatchError
from graphpatch.formats import Model
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.graph import Progress
from graphpatch.match.spec import Pattern
from graphpatch.rules import Rule, rules_from
from graphpatch.table import html_table, plural

OF_A_RULE = {"match", "patch"}


@dataclass(frozen=True, slots=True, repr=False)
class Matches:
    """What rules match in a model. Each sees what those before it did; the model is not changed.

    It iterates over the matches of all rules, each a `Place` with its captures and with the
    tensors that go in (`x0`, `x1`, ...) and come out. `found` has them by rule.

    Example:
        >>> found = graphpatch.matches({"op": "Relu"}, "model.pb")
        >>> [place.op for place in found]
        ['block1/relu', 'block2/relu']
    """

    model: Model
    rules: tuple[Rule, ...]
    found: tuple[RuleMatches, ...]

    @property
    def ok(self) -> bool:
        """Return whether `apply` would take every rule."""
        return not any(of_rule.error for of_rule in self.found)

    @property
    def errors(self) -> list[str]:
        """Return what `apply` would say of the rules that it would refuse."""
        return [of_rule.error for of_rule in self.found if of_rule.error]

    def document(self) -> dict[str, Any]:
        """Return what `match --json` prints."""
        return {"model": self.model.path, "rules": [of_rule.document() for of_rule in self.found]}

    def rules_file(self) -> dict[str, Any]:
        """A rules file with one rule for each match, to be edited: what `match --save` writes.

        Raises:
            MatchError: There are no matches, or there is a match alone, without a patch.
            RulesError: One of these rules is not valid.
            PatchError: The rules cannot be applied.
            ModelError: The model is broken.

        Example:
            >>> found = graphpatch.matches("rules.json", "model.pb")
            >>> [rule["name"] for rule in found.rules_file()["rules"]]
            ['guided: block1/relu', 'guided: block2/relu']
        """
        if not self.rules:
            raise MatchError(
                "a match alone makes no rules file, as it has no patch; give rules with a patch"
            )
        return as_rules_file(self.rules, self.model)

    def __iter__(self) -> Iterator[Place]:
        return (place for of_rule in self.found for place in of_rule.places)

    def __len__(self) -> int:
        return sum(len(of_rule.places) for of_rule in self.found)

    def __repr__(self) -> str:
        wrong = f", {plural(len(self.errors), 'error')}" if self.errors else ""
        return f"<Matches: {self.model.path}, {plural(len(self), 'match')}{wrong}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                of_rule.rule,
                f"{place.type} {place.op}",
                _types_in_words(place.captures),
                _types_in_words(place.inputs),
            )
            for of_rule in self.found
            for place in of_rule.places
        ]
        return html_table(repr(self)[1:-1], ("rule", "op", "captures", "inputs"), rows)


def _types_in_words(named: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is {op}" for name, op in named.items())


def matches(
    rules: RulesLike | Pattern | Mapping[str, Any],
    model: ModelLike,
    *,
    explain: bool = False,
    progress: Progress | None = None,
) -> Matches:
    """Find what rules match in a model, each on the result of those before. Nothing is changed.

    Args:
        rules: What `apply` takes; or a match alone, without a patch: a dict with the keys of
            `match` in a rules file, or a `pattern`.
        model: What `load` takes.
        explain: Tell how near each rule came, also where it matches.
        progress: Called with what is done, how much of it, and of how much.

    A rule that matches too little is not an error here: `errors` has it.

    Raises:
        RulesError: A rule or match is not valid.
        MatchError: A key names a tensor that the model does not have.
        ModelError: The model cannot be read or is broken.
        PatchError: The model carries the rules already.
        TypeError: `rules` or `model` is of another type.

    Example:
        >>> found = graphpatch.matches({"pattern": "c:Conv2D -> b:BiasAdd"}, "model.pb")
        >>> [(one.captures["c"], one.inputs["x0"]) for one in found]
        [('block1/conv', 'x:0'), ('block2/conv', 'block1/relu:0')]
    """
    alone = _bare_match(rules)
    read: Sequence[Rule] = () if alone is not None else rules_of(rules)  # type: ignore[arg-type]
    loaded = model_from("model", model, progress)
    if alone is not None:
        match = rules_from([{"match": alone, "patch": {"stop_gradient": True}}])[0].match
        return Matches(loaded, (), (match_only(match, loaded, explain, with_places=True),))
    return Matches(loaded, tuple(read), tuple(match_rules(read, loaded, explain, True)))


def _bare_match(rules: object) -> Mapping[str, Any] | None:
    """Return what is a match without a rule around it; None for rules."""
    if isinstance(rules, Pattern):
        return {"pattern": rules}
    is_rule = isinstance(rules, Mapping) and bool({"rules", *OF_A_RULE} & rules.keys())
    return rules if isinstance(rules, Mapping) and not is_rule else None
