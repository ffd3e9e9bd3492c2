"""The ops of a graph that a match means, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from graphpatch import names
from graphpatch.differentiation.shapes import Sizes
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model, name_in_model
from graphpatch.match import glob
from graphpatch.match.conditions import holds
from graphpatch.match.glob import texts
from graphpatch.match.keys import shape_test
from graphpatch.match.nth import counted_in_order, picker
from graphpatch.match.spec import WHOLE, Match, every_match, tensors_named

if TYPE_CHECKING:
    from graphpatch.match.pattern.overlaps import Binding


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

    Where the match has a pattern, `kept` has its matches that count, and `dropped` those that
    don't. `undecided` tells of the ops that all but `shape` means,
    and whose shape is not known well enough to say whether they match.
    """

    nodes: list[Node] = msgspec.field(default_factory=list)
    kept: list[Binding] = msgspec.field(default_factory=list)
    dropped: list[Binding] = msgspec.field(default_factory=list)
    undecided: list[tuple[Node, Sizes]] = msgspec.field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how often it matched."""
        return len(self.kept) or len(self.nodes)


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
    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        matched.nodes.extend(Node(body, index) for index in wanted(model).indices())
        if match.shape is not None:
            test = shape_test(match.shape)
            but_for_shape = holds(replace(match, shape=None, nth=None))(model).indices()
            answers = [(Node(model, index), *test(Node(model, index))) for index in but_for_shape]
            matched.undecided.extend((node, sizes) for node, sizes, has in answers if has is None)
    return matched


def _find_pattern(graph: Graph, match: Match, on: Sequence[str]) -> MatchedOps:
    from graphpatch.match.pattern.matcher import matches_of
    from graphpatch.match.pattern.overlaps import resolve

    matched, is_whole = MatchedOps(), tuple(on) == (WHOLE,)
    matches = matches_of(match.pattern or ())
    others = holds(replace(match, pattern=None, nth=None))

    def searched(body: Body, now: Body) -> tuple[list[Binding], list[Binding]]:
        bindings, candidates, named = matches(body), others(body), () if is_whole else on
        if candidates.tests:
            bindings = [each for each in bindings if all(map(candidates.passes, each.of(named)))]
        kept, dropped = resolve(bindings, on, now)
        return kept if match.nth is None else _nth_matches(body, kept, match.nth), dropped

    for body in _matching_bodies(graph, match):
        model = body_to_match(body, match)
        # Ops that count as one are to be beside each other now, whatever they were before.
        kept, dropped = searched(body if is_whole else model, body)
        if is_whole and model is not body:
            last_ops = {each.last for each in kept}
            reason = "its ops are not beside each other any more, since rules before patched them"
            before = [each for each in searched(model, body)[0] if each.last not in last_ops]
            dropped += [replace(each, reason=reason) for each in before]
        matched.kept.extend(kept)
        matched.dropped.extend(dropped)
        indices = {node.index for each in kept for node in each.patched}
        matched.nodes.extend(Node(body, index) for index in sorted(indices))
    return matched


def _matching_bodies(graph: Graph, match: Match) -> Iterator[Body]:
    is_meant = glob.one_of(("**",) if match.body is None else texts(match.body))
    return (body for body in graph.bodies if not body.is_ours and is_meant(body.label))


def _nth_matches(body: Body, kept: list[Binding], wanted: Any) -> list[Binding]:
    """Return those of the matches that `nth` means, counted by their last ops; in file order."""
    counted = counted_in_order(wanted, body, {match.last for match in kept})
    number = {op: place for place, op in enumerate(counted)}
    ordered = sorted(kept, key=lambda match: number[match.last])
    meant = set(map(id, picker(wanted)(ordered)))
    return [match for match in kept if id(match) in meant]


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
