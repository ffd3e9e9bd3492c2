"""`taken`: whether an earlier rule patched an op."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphpatch.errors import MatchError, did_you_mean
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.match import glob
from graphpatch.match.condition import Condition, Test
from graphpatch.match.glob import texts
from graphpatch.match.spec import Match, inner


def taken(wanted: bool | str | Sequence[str]) -> Condition:
    """Some rule before patched the op, or one of these names did; `false`: none did.

    The op that has its name now, and those that a rule added, count as patched by it too. Rules of
    an earlier run, which the file tells of, count as well.
    """
    meant = glob.one_of(("**",) if isinstance(wanted, bool) else texts(wanted))

    def prepared(body: Body) -> Test:
        found = {
            node.index
            for node in provenance.touched(body)
            if any(map(meant, rules_that_patched(node)))
        }
        return lambda node: (node.index in found) is not (wanted is False)

    return prepared


def rules_that_patched(node: Node) -> Iterator[str]:
    """The rules that patched an op, by name; not those that only let it read another tensor."""
    return (author.rule for author in provenance.rules_that_patched(node))


def check_taken(match: Match, before: Collection[str]) -> None:
    """Raise MatchError where `taken` names a rule, and none of those before has that name.

    A glob may be meant for rules that are not there.
    """
    found = () if match.taken is None or isinstance(match.taken, bool) else texts(match.taken)
    for text in found:
        if not glob.is_glob(text) and text not in before:
            there = ", ".join(map(repr, before)) or "none"
            near = did_you_mean(text, before)
            raise MatchError(
                f"taken: no rule before this one is called {text!r}{near}; before it: {there}"
            )
    for one in inner(match):
        check_taken(one, before)


def takers_in_words(node: Node, wanted: object) -> str:
    """Which rules patched an op, in words."""
    rules = list(dict.fromkeys(rules_that_patched(node)))
    return (
        f"it was patched by rule {', '.join(map(repr, rules))}" if rules else "no rule patched it"
    )
