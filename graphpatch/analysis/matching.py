"""What rules would match: each rule on the result of the one before, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.analysis.places import Place, places_of_match
from graphpatch.application import check_all
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.graph.graph import ModelGraph
from graphpatch.match.misses import explain
from graphpatch.match.pattern.syntax import forms, type_notes
from graphpatch.match.select import MatchedOps, find
from graphpatch.match.spec import WHOLE, Match
from graphpatch.rules import Rule
from graphpatch.step import apply_rule, left_out_notes, listed_matches, ops_by_graph, patch_matched

EXPLAINED = 100  # rules that match nothing, for which the nearest names are looked for
NOT_EXPLAINED = f"\n  nearest names are listed for the first {EXPLAINED} rules that match nothing"


class RuleMatches(msgspec.Struct, frozen=True):
    """What one rule matches.

    `matches` are as `apply --json` lists them, `left_out` says which matches don't count, and
    `error` what `apply` would say. `misses` is why, and where it came near: where it was asked
    for, or nothing matched. `places` has each match with what goes in and comes out, where that
    was asked for, `notes` what a pattern may not mean as it was written.
    """

    rule: str
    matches: list[dict[str, Any]]
    left_out: list[str]
    error: str
    misses: str
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what `match --json` prints of a rule."""
        near = self.misses.split("\n") if self.misses else []
        document = {"name": self.rule, "matches": self.matches, "left_out": self.left_out}
        document |= {"notes": list(self.notes)} if self.notes else {}
        return {**document, "near": near, "error": self.error or None}


def match_rules(
    rules: Sequence[Rule], model: Model, why: bool = False, with_places: bool = False
) -> list[RuleMatches]:
    """Return what each rule matches, where those before it were applied as far as they can be.

    With `why`, also how near it came where it matches; with `with_places`, what goes into each
    match and comes out. Raises ModelError where the graph is
    broken, PatchError where the model carries the rules.
    """
    applied = _PatchedCopies(model)
    check_all(rules, applied.graphs)
    matched = list[RuleMatches]()
    missed = 0
    for rule in rules:
        matched.append(_as_matched(rule, applied, why, with_places, names=missed < EXPLAINED))
        missed += not matched[-1].matches
    return matched


def match_only(
    match: Match, model: Model, why: bool = False, with_places: bool = False
) -> RuleMatches:
    """Return what a match means, without a rule around it.

    Where a pattern leaves open which tensor is x0, x1, ..., the notes say so.
    """
    known = [find(graph, match) for graph in model.graphs]
    matched = _rule_document("", match, (), model.graphs, known, why, with_places)
    return replace(matched, notes=(*matched.notes, *_left_open(match, model.graphs)))


def _left_open(match: Match, graphs: Sequence[ModelGraph]) -> Iterator[str]:
    """That the pattern does not tell which of the tensors that a match reads is which."""
    if match.pattern is None or not any(form.tensors for form in forms(match.pattern)):
        return
    every = (undecided for graph in graphs for undecided in find(graph, match, (WHOLE,)).kept)
    undecided = next((first for first in every if first.orders), None)
    if undecided is not None:
        first, second = undecided.binding.inputs, undecided.orders[0]
        place = next(n for n, text in enumerate(first) if text != second[n])
        yield (
            f"the pattern leaves open which tensor is x{place}: in the match that ends in "
            f"{undecided.last} it could be {first[place]} or {second[place]}; where that matters, "
            "write "
            f"the input slot, as in x:_ -> m:{undecided.last.op}:0"
        )


class _PatchedCopies:
    """The graphs of a model as the rules so far leave them, where each was done wholly or not.

    They are changed in place, as a copy for each rule would make many rules slow. A rule that
    fails in the middle is taken back by doing again, on a copy from before, those since then.
    """

    def __init__(self, model: Model) -> None:
        self.before, self.since = model.graphs, list[Rule]()
        self.graphs = _copies(self.before)

    def take(self, rule: Rule, known: Sequence[MatchedOps]) -> str:
        """Apply a rule to what it matches, where it can be done; what `apply` says otherwise."""
        try:
            matched = ops_by_graph(
                rule, self.graphs, why=False, known=known
            )  # `_rule_document` tells why
        except GraphpatchError as error:  # nothing has been changed
            return str(error)
        try:
            patch_matched(rule, matched)
        except GraphpatchError as error:
            self._restore()
            return str(error)
        self.since.append(rule)
        return ""

    def _restore(self) -> None:
        self.graphs = _copies(self.before)
        for rule in self.since:
            apply_rule(rule, self.graphs)
        self.before, self.since = _copies(self.graphs), []


def _copies(graphs: Sequence[ModelGraph]) -> list[ModelGraph]:
    return [graph.copy() for graph in graphs]


def _as_matched(
    rule: Rule, applied: _PatchedCopies, why: bool, with_places: bool, names: bool
) -> RuleMatches:
    graphs = applied.graphs
    known = [find(graph, rule.match, rule.on) for graph in graphs]
    matched = _rule_document(
        rule.author.rule, rule.match, rule.on, graphs, known, why, with_places, names
    )
    return replace(matched, error=applied.take(rule, known).partition("\n")[0])


def _why_no_match(graphs: Sequence[ModelGraph], match: Match, names: bool) -> str:
    return explain(graphs, match, names) + ("" if names else NOT_EXPLAINED)


def _rule_document(
    rule: str,
    match: Match,
    on: Sequence[str],
    graphs: Sequence[ModelGraph],
    matched: Sequence[MatchedOps],
    why: bool,
    with_places: bool,
    names: bool = True,
) -> RuleMatches:
    tags = [graph.around.tags if len(graphs) > 1 else None for graph in graphs]
    tagged = list(zip(matched, tags, strict=True))
    listed = [
        entry for some, tag in tagged for entry in listed_matches(some, tag, whole=on == (WHOLE,))
    ]
    return RuleMatches(
        rule,
        listed,
        [text for some in matched for text in left_out_notes(rule, some)],
        "",
        _why_no_match(graphs, match, names) if why or not listed else "",
        tuple(entry for some, tag in tagged for entry in places_of_match(some, tag or ""))
        if with_places
        else (),
        tuple(type_notes(match.pattern)),
    )
