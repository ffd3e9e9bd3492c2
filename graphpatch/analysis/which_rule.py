"""Which of the rules that a model carries is meant: by its name, or by its id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from graphpatch.analysis.rule_words import patch_in_words, rules_at
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.record import Author
from graphpatch.table import IN_LIST, short

LEAST_ID = 4  # digits by which a rule may be named


def chosen_rules(
    graphs: Sequence[Graph], labels: Mapping[Author, str], wanted: str | None
) -> Set[Author]:
    """Of the rules that graphs carry the one that is meant; all where none is named.

    Raises PatchError where there is none, or where the name is that of several.
    """
    if not labels:
        raise PatchError("no rule was applied to it: there is nothing to revert")
    if wanted is None:
        return labels.keys()
    chosen = [rule for rule in labels if wanted in (rule.rule, labels[rule])]
    if not chosen and len(wanted) >= LEAST_ID:
        chosen = [rule for rule in labels if rule.id.startswith(wanted)]
    if not chosen:
        names = list(labels.values())
        near = did_you_mean(wanted, names) or f"; there are: {', '.join(map(repr, names))}"
        raise PatchError(f"no rule {wanted!r} was applied to it{near}")
    if len(chosen) > 1:
        of_one_name = len({rule.rule for rule in chosen}) == 1
        which = "id" if of_one_name else "name"
        listed = "\n".join(_rule_lines(graphs, labels, chosen[:IN_LIST]))
        raise PatchError(f"{wanted!r} is each of {len(chosen)} rules; give the {which}:\n{listed}")
    return set(chosen)


def _rule_lines(
    graphs: Sequence[Graph], labels: Mapping[Author, str], rules: Sequence[Author]
) -> Iterator[str]:
    """Yield what tells rules apart: the id, the name, the patch, the ops."""
    at = [(op, words) for graph in graphs for (_, op), words in rules_at(graph, labels).items()]
    patches = {key: patch for graph in graphs for key, patch in provenance.patches(graph).items()}
    for rule in rules:
        ops = list(dict.fromkeys(op for op, words in at if labels[rule] in words))
        where = f" at {short(ops)}" if ops else ""
        yield f"  {rule.id}  {rule.rule!r}: {patch_in_words(patches.get(rule.id))}{where}"
