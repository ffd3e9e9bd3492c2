"""The ops of a graph that a match means, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from graphpatch.differentiation.shapes import Sizes
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import name_to_match
from graphpatch.match import glob
from graphpatch.match.body_to_match import body_to_match
from graphpatch.match.condition import Condition, everything
from graphpatch.match.conditions import conditions, holds
from graphpatch.match.glob import texts
from graphpatch.match.nth import order_of_counting, picker
from graphpatch.match.pattern.candidates import candidates
from graphpatch.match.shape import undecided
from graphpatch.match.spec import WHOLE, Match

if TYPE_CHECKING:
    from graphpatch.match.pattern.binding import Binding
    from graphpatch.match.pattern.overlaps import DroppedMatch, KeptMatch


class MatchedOps(msgspec.Struct, frozen=True):
    """What a match means in a graph: the ops that a patch goes to, each once.

    Where the match has a pattern, `kept` has its matches that count, with the ops that each
    brings, and `dropped` those that don't. `undecided` tells of the ops that all but `shape` means,
    and whose shape is not known well enough to say whether they match.
    """

    nodes: list[Node] = msgspec.field(default_factory=list)
    kept: list[KeptMatch] = msgspec.field(default_factory=list)
    dropped: list[DroppedMatch] = msgspec.field(default_factory=list)
    undecided: list[tuple[Node, Sizes]] = msgspec.field(default_factory=list)

    @property
    def count(self) -> int:
        """How often it matched."""
        return len(self.kept) or len(self.nodes)

    def captures(self) -> dict[Node, dict[str, str]]:
        """Of each op that a pattern brought: the name of the op that each of its nodes is."""
        return {node: one.binding.captured_names for one in self.kept for node in one.nodes}

    def reads(self) -> dict[Node, dict[str, dict[str, str]]]:
        """Of each op that a pattern brought: the tensors that its match reads from outside.

        `inputs` are x0, x1, ... of a formula for the match as one op, `tensors` those that the
        pattern names.
        """
        return {
            node: {
                "inputs": {f"x{place}": one for place, one in enumerate(kept.binding.inputs)},
                "tensors": kept.binding.tensors,
            }
            for kept in self.kept
            for node in kept.nodes
        }


def select(graph: Graph, match: Match) -> list[Node]:
    """The ops that a match means: bodies in the file's order, ops in their body's order.

    Of a pattern it is the last op, the one that none of its others reads. Functions that an
    earlier patch added carry gradients: what is in them is never meant.
    """
    return find(graph, match).nodes


def find(graph: Graph, match: Match, on: Sequence[str] = ()) -> MatchedOps:
    """The ops that a match means, in the order of `select`, and where a pattern holds.

    `on` names the ops of the pattern that are meant, or is `("match",)` for all of them as one.
    The other keys of the match must hold for each of the ops that `on` names, with "match" for
    the last op of the pattern.
    """
    if match.pattern is not None:
        return _find_pattern(graph, match, on)
    found, wanted = MatchedOps(), conditions(match)
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        indices = candidates(model, match, wanted).indices()
        found.nodes.extend(Node(body, index) for index in indices)
        if match.shape is not None:
            found.undecided.extend(_of_unknown_shape(model, match, wanted))
    return found


def _of_unknown_shape(
    body: Body, match: Match, wanted: Mapping[str, Condition]
) -> Iterator[tuple[Node, Sizes]]:
    """The ops that are meant but for their shape, which may be the one that is asked for."""
    others = {key: one for key, one in wanted.items() if key not in ("shape", "nth")}
    indices = candidates(body, replace(match, shape=None, nth=None), others).indices()
    return undecided(body, (Node(body, index) for index in indices), match.shape or ())


def _find_pattern(graph: Graph, match: Match, on: Sequence[str]) -> MatchedOps:
    from graphpatch.match.pattern.matcher import Finder
    from graphpatch.match.pattern.topology import Topology
    from graphpatch.match.pattern_forms import forms

    found = MatchedOps()
    finders = [Finder(form, conditions) for form in forms(match.pattern or ())]
    meant = holds(replace(match, pattern=None, nth=None))

    def searched(body: Body) -> tuple[list[KeptMatch], list[DroppedMatch]]:
        topology_of = cache(Topology)
        every = [finder.matches(body, topology_of) for finder in finders]
        return _that_count(body, match, every, meant, on)

    whole = tuple(on) == (WHOLE,)
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        # Ops that count as one are to be beside each other now, whatever they were before.
        kept, dropped = searched(body if whole else model)
        if whole and model is not body:
            dropped += _separated_by_rules(kept, searched(model)[0])
        kept = [
            replace(one, nodes=tuple(Node(body, node.index) for node in one.nodes)) for one in kept
        ]
        found.kept.extend(kept)
        found.dropped.extend(dropped)
        nodes = {node for one in kept for node in one.nodes}
        found.nodes.extend(sorted(nodes, key=lambda node: node.index))
    return found


def _separated_by_rules(
    kept: Sequence[KeptMatch], before: Sequence[KeptMatch]
) -> list[DroppedMatch]:
    """The matches of the model that are none any more, as rules put ops between theirs."""
    from graphpatch.match.pattern.overlaps import DroppedMatch

    there = {one.binding.last for one in kept}
    reason = "its ops are not beside each other any more, since rules before patched them"
    return [DroppedMatch(one.binding, reason) for one in before if one.binding.last not in there]


def _matching_bodies(graph: Graph, match: Match) -> Iterator[Body]:
    wanted = texts(match.body) if match.body is not None else ("**",)
    for body in graph.bodies:
        if not body.is_ours and any(glob.matches_glob(one, body.label) for one in wanted):
            yield body


def _that_count(
    body: Body, match: Match, every: list[list[Binding]], meant: Condition, on: Sequence[str]
) -> tuple[list[KeptMatch], list[DroppedMatch]]:
    from graphpatch.match.pattern.overlaps import resolve

    found = [one for bindings in every for one in bindings]
    test = meant(body)
    if test is not everything:
        found = [
            one for one in found if all(test(Node(body, index)) for index in _ops_to_check(one, on))
        ]
    kept, dropped = resolve(found, on)
    return (kept if match.nth is None else _nth_matches(body, kept, match.nth)), dropped


def _ops_to_check(binding: Binding, on: Sequence[str]) -> Sequence[int]:
    """The ops of a match of which the other keys of the match are asked."""
    return (binding.last,) if not on or tuple(on) == (WHOLE,) else binding.of(on)


def _nth_matches(body: Body, kept: list[KeptMatch], wanted: Any) -> list[KeptMatch]:
    """Those of the matches that `nth` means, counted by their last ops, in the file's order."""
    by_last: dict[int, list[KeptMatch]] = {}
    for one in kept:
        by_last.setdefault(one.binding.last, []).append(one)
    order = order_of_counting(wanted)(body, by_last)
    meant = picker(wanted)([one for index in order for one in by_last[index]])
    return [one for one in kept if any(one is other for other in meant)]


def match_of_ops(nodes: Iterable[Node]) -> dict[str, Any]:
    """A match by body and name; each op once, in their order."""
    by_body: dict[str, dict[str, None]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, {})[name_to_match(node)] = None
    places = [
        {"body": body, "name": next(iter(names)) if len(names) == 1 else list(names)}
        for body, names in by_body.items()
    ]
    return places[0] if len(places) == 1 else {"any": places}
