"""The matches that a match is made of: alternatives, neighbours, where ways may lead, patterns."""

from __future__ import annotations

from graphpatch.match.spec import Between, Match, Pattern, Walk


def inner(match: Match) -> list[Match]:
    """The matches that stand in a match itself, not those that stand in these."""
    found = [*(match.any or ()), *(match.all or ()), match.not_ or Match()]
    for walk in (match.upstream_of, match.downstream_of, match.between):
        if isinstance(walk, Walk | Between):
            found += [walk.within or Match(), walk.stop_at or Match()]
    for neighbours in (match.inputs, match.consumers):
        found += (neighbours or {}).values()
    for form in match.pattern if isinstance(match.pattern, tuple) else (match.pattern,):
        found += form.nodes.values() if isinstance(form, Pattern) else ()
    return [one for one in found if one != Match()]
