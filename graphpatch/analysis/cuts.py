"""Is it a cut? Which path leads around it, and the smallest set of tensors that is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import networkx as nx

from graphpatch import names
from graphpatch.analysis.gradient_paths import START, GradientPaths, find_tensor, gradient_paths
from graphpatch.control_flow import op_types
from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation import flow
from graphpatch.errors import CutError, ModelError
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body
from graphpatch.graph.walk import downstream, upstream
from graphpatch.table import path_in_words

PATH_SHOWN = 12  # tensors of a path that are shown
COST_OF_TENSOR = 1 << 40  # what a tensor costs before its distance counts: fewer tensors come first

Cut = tuple[str, ...]


def ordered_cuts(
    graph: Graph, loss: str, cuts: Iterable[Sequence[str]], wrt: Sequence[str]
) -> tuple[GradientPaths, list[Cut]]:
    """The cuts between `wrt` and `loss` with their tensors as `op:0`, in forward order.

    Raises CutError where a name is not that of a tensor, a tensor is not on the path of the
    gradient, a path leads around a cut, or two cuts cross.
    """
    end = find_tensor(graph, loss)
    found = gradient_paths(
        graph, end, list(dict.fromkeys(find_tensor(graph, text) for text in wrt))
    )
    resolved = [tuple(dict.fromkeys(find_tensor(graph, text) for text in cut)) for cut in cuts]
    if not resolved or not all(resolved):
        raise CutError("no tensor is named to cut at")
    for cut in resolved:
        _check_cut(found, cut)
    return found, _cuts_in_order(found, resolved)


def path_round(found: GradientPaths, cut: Collection[str]) -> list[str]:
    """The tensors of a shortest path from `wrt` to the loss that passes no tensor of the cut."""
    rest = found.graph.copy()
    rest.remove_nodes_from(cut)
    if found.loss not in rest or not nx.has_path(rest, START, found.loss):
        return []
    return list(nx.bidirectional_shortest_path(rest, START, found.loss))[1:]


def smallest_cut(
    found: GradientPaths, near: Collection[str] = (), kept: Collection[str] = ()
) -> list[str]:
    """The smallest set of tensors that is a cut, the nearest to `near` where there are several.

    Those in `kept` are cut already and not named, nor is what lies before or behind one of them.
    Nothing where there is no cut: a path passes one op alone, or tensors at which none can be.
    """
    rest = found.graph.copy()
    rest.remove_nodes_from(kept)
    if found.loss not in rest or not nx.has_path(rest, START, found.loss):
        return []
    fixed = _tensors_without_cut(found).union(
        *(nx.ancestors(found.graph, one) | nx.descendants(found.graph, one) for one in kept)
    )
    split = _as_edges(rest, fixed, _distances(found, near))
    try:
        _, (before, _) = nx.minimum_cut(split, (START, 1), (found.loss, 0))
    except nx.NetworkXUnbounded:
        return []
    return sorted(name for name, side in before if side == 0 and (name, 1) not in before)


def _as_edges(
    graph: nx.DiGraph[str], fixed: Collection[str], far: dict[str, int]
) -> nx.DiGraph[tuple[str, int]]:
    """Each tensor as an edge from (tensor, 0) to (tensor, 1) that costs what cutting it costs."""
    split: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
    for name in graph:
        cost = {} if name in fixed else {"capacity": COST_OF_TENSOR + far.get(name, len(graph))}
        split.add_edge((name, 0), (name, 1), **cost)
    split.add_edges_from(((one, 1), (other, 0)) for one, other in graph.edges)
    return split


def _tensors_without_cut(found: GradientPaths) -> set[str]:
    """The tensors at which no cut is proposed."""
    inside = in_frames(found.body)
    return {START, found.loss, *found.wrt} | {
        name for name in found.graph if name != START and _unfit(found.body, name, inside)
    }


def _unfit(body: Body, tensor: str, inside: Collection[int]) -> str:
    """Why a tensor's value, or its gradient, cannot be handed from one part to the next."""
    name = names.parse(tensor)
    node = body.node(name.op)
    if node.index in inside:
        return f"it lies inside a v1 loop or branch ({node}), whose tensors cannot be fetched"
    try:
        flat = node.outputs or []
    except ModelError:
        flat = []
    if name.index < len(flat) and not flow.carries(flat[name.index]):
        return f"it {flow.why_not(flat[name.index])}"
    return ""


def in_frames(body: Body) -> frozenset[int]:
    """The ops of a v1 loop or branch, from its Enters and Switches to before its end."""
    switches = (body.by_type.get(op, ()) for op in op_types.ALL_SWITCHES)
    return inside_control_flow(body).union(*switches)


def _distances(found: GradientPaths, near: Collection[str]) -> dict[str, int]:
    sources = [name for name in near if name in found.graph]
    if not sources:
        return {}
    either = found.graph.to_undirected(as_view=True)
    found_far = nx.multi_source_dijkstra_path_length(either, set(sources), weight=None)
    return {name: int(hops) for name, hops in found_far.items()}


def _check_cut(found: GradientPaths, cut: Cut) -> None:
    for tensor in cut:
        if tensor == found.loss or tensor in found.wrt:
            which = "the loss itself" if tensor == found.loss else "what the gradient is asked at"
            raise CutError(f"{tensor} is {which}; a cut lies between {_ends_told(found)}")
        if tensor not in found.graph:
            raise CutError(_off_the_way(found, tensor))
        reason = _unfit(found.body, tensor, in_frames(found.body))
        if reason:
            raise CutError(f"{tensor} cannot be cut at: {reason}{_proposal(found, cut, [])}")
    round_it = path_round(found, cut)
    if round_it:
        missing = smallest_cut(found, cut, kept=cut)
        raise CutError(
            f"{', '.join(cut)} is not a cut between {_ends_told(found)}: the gradient also flows "
            f"around it, through\n  {path_in_words(round_it, PATH_SHOWN)}"
            f"{_proposal(found, cut, missing)}"
        )


def _proposal(found: GradientPaths, cut: Cut, missing: Sequence[str]) -> str:
    smallest = smallest_cut(found, cut)
    whole = [*cut, *missing]
    said = f"\n  a cut with it: {', '.join(whole)}" if missing else ""
    if not smallest:
        return f"{said}\n  there is no cut: single ops join {_ends_told(found)}"
    if missing and len(smallest) >= len(whole):
        return said
    return f"{said}\n  the smallest cut, near it: {', '.join(smallest)}"


def _off_the_way(found: GradientPaths, tensor: str) -> str:
    body, name = found.body, names.parse(tensor)
    node = body.node(name.op)
    if not upstream(body, [names.parse(found.loss)])[node.index]:
        return f"{tensor} is not upstream of {found.loss}: the loss is not computed from it"
    wrt = [names.parse(one) for one in found.wrt]
    if not downstream(body, wrt)[node.index]:
        return f"{tensor} does not depend on {', '.join(found.wrt)}: {_not_between(found)}"
    reason = _unfit(body, tensor, ())
    if reason:
        return f"{tensor} cannot be cut at: {reason}"
    return f"no gradient flows through {tensor}: {_not_between(found)}"


def _not_between(found: GradientPaths) -> str:
    return f"it is not on the way of the gradient between {_ends_told(found)}"


def _ends_told(found: GradientPaths) -> str:
    return f"{', '.join(found.wrt)} and {found.loss}"


def _cuts_in_order(found: GradientPaths, cuts: list[Cut]) -> list[Cut]:
    """The cuts in forward order; CutError where two are the same, or neither is before the other.

    One is before another where it is a cut between `wrt` and that.
    """
    ahead = {cut: [other for other in cuts if _comes_before(found, other, cut)] for cut in cuts}
    if len(ahead) < len(cuts):
        raise CutError(f"{', '.join(cuts[0])}: two cuts are the same")
    ranked = sorted(cuts, key=lambda cut: len(ahead[cut]))
    for one, other in pairwise(ranked):
        if one not in ahead[other]:
            raise CutError(
                f"the cuts {', '.join(one)} and {', '.join(other)} cross: neither lies as a whole "
                f"before the other"
            )
    return ranked


def _comes_before(found: GradientPaths, one: Cut, other: Cut) -> bool:
    if set(one) == set(other):
        return False
    rest = found.graph.copy()
    rest.remove_nodes_from(one)
    return all(tensor in one or not nx.has_path(rest, START, tensor) for tensor in other)
