"""The ops of a graph that a match means, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from graphpatch import names
from graphpatch.differentiation.shapes import Sizes
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model, name_in_model
from graphpatch.match import glob
from graphpatch.match.conditions import Candidates, holds
from graphpatch.match.glob import texts
from graphpatch.match.nth import counted_in_order, picker
from graphpatch.match.spec import WHOLE, Match, every_match, tensors_named
from graphpatch.match.values import undecided

if TYPE_CHECKING:
    from graphpatch.match.pattern.overlaps import Binding, DroppedMatch, KeptMatch


def body_to_match(body: Body, match: Match) -> Body:
    """Return the body of which a match asks: as the model has it, unless it means what rules did.

    It does so with `taken`, and where it names ops that rules added.
    """
    model = as_model(body)
    parts = list(every_match(match))
    if model is body or any(part.taken not in (None, False) for part in parts):
        return body
    named = {name for part in parts for name in texts(part.name or ())}
    named |= {names.op_of(tensor) for tensor in tensors_named(match)}
    added = (_is_added(name, match, body, model) for name in named & body.by_name.keys())
    return body if any(added) else model


def _is_added(name: str, match: Match, body: Body, model: Body) -> bool:
    """Return whether a name is that of an op which a rule added: by itself, or with its op type."""
    if name not in model.by_name:
        return True
    is_type = glob.one_of(texts(match.op or "**"))
    return is_type(body.node(name).op) and not is_type(model.node(name).op)


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
        """Return how often it matched."""
        return len(self.kept) or len(self.nodes)

    def captures(self) -> dict[Node, dict[str, str]]:
        """Of each op that a pattern brought: the name of the op that each of its nodes is."""
        return {node: match.binding.captured_names for match in self.kept for node in match.nodes}

    def reads(self) -> dict[Node, dict[str, dict[str, str]]]:
        """Of each op that a pattern brought: the tensors that its match reads from outside.

        `inputs` are x0, x1, ... of a formula for the match as one op, `tensors` those that the
        pattern names.
        """
        return {
            node: {
                "inputs": {
                    f"x{place}": tensor for place, tensor in enumerate(match.binding.inputs)
                },
                "tensors": match.binding.tensors,
            }
            for match in self.kept
            for node in match.nodes
        }


def select(graph: Graph, match: Match) -> list[Node]:
    """Return the ops that a match means: bodies in the file's order, ops in their body's order.

    Of a pattern it is the last op, the one that none of its others reads. Functions that an
    earlier patch added carry gradients: what is in them is never meant.
    """
    return find(graph, match).nodes


def find(graph: Graph, match: Match, on: Sequence[str] = ()) -> MatchedOps:
    """Return the ops that a match means, in the order of `select`, and where a pattern holds.

    `on` names the ops of the pattern that are meant, or is `("match",)` for all of them as one.
    The other keys of the match must hold for each of the ops that `on` names, with "match" for
    the last op of the pattern.
    """
    if match.pattern is not None:
        return _find_pattern(graph, match, on)
    matched, wanted = MatchedOps(), holds(match)
    but_for_shape = holds(replace(match, shape=None, nth=None))
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        matched.nodes.extend(Node(body, index) for index in wanted(model).indices())
        if match.shape is not None:
            others = (Node(model, index) for index in but_for_shape(model).indices())
            matched.undecided.extend(undecided(model, others, match.shape))
    return matched


def _find_pattern(graph: Graph, match: Match, on: Sequence[str]) -> MatchedOps:
    from graphpatch.match.pattern.matcher import Finder
    from graphpatch.match.pattern.syntax import forms
    from graphpatch.match.pattern.topology import Topology

    matched = MatchedOps()
    finders = [Finder(form) for form in forms(match.pattern or ())]
    meant = holds(replace(match, pattern=None, nth=None))

    def searched(body: Body) -> tuple[list[KeptMatch], list[DroppedMatch]]:
        topology_of = cache(Topology)
        every = [finder.matches(body, topology_of) for finder in finders]
        return _that_count(body, match, every, meant, on)

    whole = tuple(on) == (WHOLE,)
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        # Ops that count as one are to be beside each other now, whatever they were before.
        counting, dropped = searched(body if whole else model)
        if whole and model is not body:
            dropped += _separated_by_rules(counting, searched(model)[0])
        counting = [
            replace(counted, nodes=tuple(Node(body, node.index) for node in counted.nodes))
            for counted in counting
        ]
        matched.kept.extend(counting)
        matched.dropped.extend(dropped)
        nodes = {node for counted in counting for node in counted.nodes}
        matched.nodes.extend(sorted(nodes, key=lambda node: node.index))
    return matched


def _separated_by_rules(
    counting: Sequence[KeptMatch], before: Sequence[KeptMatch]
) -> list[DroppedMatch]:
    """Return the matches of the model that are none any more, as rules put ops between theirs."""
    from graphpatch.match.pattern.overlaps import DroppedMatch

    last_ops = {counted.binding.last for counted in counting}
    reason = "its ops are not beside each other any more, since rules before patched them"
    return [
        DroppedMatch(counted.binding, reason)
        for counted in before
        if counted.binding.last not in last_ops
    ]


def _matching_bodies(graph: Graph, match: Match) -> Iterator[Body]:
    wanted = texts(match.body) if match.body is not None else ("**",)
    for body in graph.bodies:
        if not body.is_ours and any(
            glob.matches_glob(label_glob, body.label) for label_glob in wanted
        ):
            yield body


def _that_count(
    body: Body,
    match: Match,
    every: list[list[Binding]],
    meant: Callable[[Body], Candidates],
    on: Sequence[str],
) -> tuple[list[KeptMatch], list[DroppedMatch]]:
    from graphpatch.match.pattern.overlaps import resolve

    bindings_that_pass = [binding for bindings in every for binding in bindings]
    candidates = meant(body)
    if candidates.tests:
        bindings_that_pass = [
            binding
            for binding in bindings_that_pass
            if all(map(candidates.passes, _ops_to_check(binding, on)))
        ]
    counting, dropped = resolve(bindings_that_pass, on)
    return (counting if match.nth is None else _nth_matches(body, counting, match.nth)), dropped


def _ops_to_check(binding: Binding, on: Sequence[str]) -> Sequence[int]:
    """Return the ops of a match of which the other keys of the match are asked."""
    return (binding.last,) if not on or tuple(on) == (WHOLE,) else binding.of(on)


def _nth_matches(body: Body, counting: list[KeptMatch], wanted: Any) -> list[KeptMatch]:
    """Those of the matches that `nth` means, counted by their last ops, in the file's order."""
    by_last: dict[int, list[KeptMatch]] = {}
    for counted in counting:
        by_last.setdefault(counted.binding.last, []).append(counted)
    order = counted_in_order(wanted, body, by_last)
    meant = picker(wanted)([counted for index in order for counted in by_last[index]])
    return [counted for counted in counting if any(counted is meant_match for meant_match in meant)]


def match_of_ops(nodes: Iterable[Node]) -> dict[str, Any]:
    """Return a match by body and name; each op once, in their order."""
    by_body: dict[str, dict[str, None]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, {})[name_in_model(node)] = None
    places = [
        {"body": body, "name": next(iter(names)) if len(names) == 1 else list(names)}
        for body, names in by_body.items()
    ]
    return places[0] if len(places) == 1 else {"any": places}
