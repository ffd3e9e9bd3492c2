"""Is it a cut? Which path leads around it, and the smallest set of tensors that is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from graphpatch import names
from graphpatch.control_flow import op_types
from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation import flow
from graphpatch.errors import CutError, ModelError, did_you_mean
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import downstream, readers_of, tensor_named, upstream
from graphpatch.table import path_in_words, short

PATH_SHOWN = 12  # tensors of a path that are shown
COST_OF_TENSOR = 1 << 40  # what a tensor costs before its distance counts: fewer tensors come first

Cut = tuple[str, ...]


def ordered_cuts(
    graph: Graph, loss: str, cuts: Iterable[Sequence[str]], wrt: Sequence[str]
) -> tuple[GradientPaths, list[Cut]]:
    """Return the cuts between `wrt` and `loss` with their tensors as `op:0`, in forward order.

    Raises CutError where a name is not that of a tensor, a tensor is not on the path of the
    gradient, a path leads around a cut, or two cuts cross.
    """
    end = find_tensor(graph, loss)
    paths = gradient_paths(
        graph, end, list(dict.fromkeys(find_tensor(graph, text) for text in wrt))
    )
    resolved = [tuple(dict.fromkeys(find_tensor(graph, text) for text in cut)) for cut in cuts]
    if not resolved or not all(resolved):
        raise CutError("no tensor is named to cut at")
    for cut in resolved:
        _check_cut(paths, cut)
    return paths, _cuts_in_order(paths, resolved)


def path_round(paths: GradientPaths, cut: Collection[str]) -> list[str]:
    """The tensors of a shortest path from `wrt` to the loss that passes no tensor of the cut."""
    rest = paths.graph.copy()
    rest.remove_nodes_from(cut)
    if paths.loss not in rest or not nx.has_path(rest, START, paths.loss):
        return []
    return list(nx.bidirectional_shortest_path(rest, START, paths.loss))[1:]


def smallest_cut(
    paths: GradientPaths, near: Collection[str] = (), kept_tensors: Collection[str] = ()
) -> list[str]:
    """The smallest set of tensors that is a cut, the nearest to `near` where there are several.

    Those in `kept` are cut already and not named, nor is what lies before or behind one of them.
    Nothing where there is no cut: a path passes one op alone, or tensors at which none can be.
    """
    rest = paths.graph.copy()
    rest.remove_nodes_from(kept_tensors)
    if paths.loss not in rest or not nx.has_path(rest, START, paths.loss):
        return []
    fixed = _tensors_without_cut(paths).union(
        *(
            nx.ancestors(paths.graph, tensor) | nx.descendants(paths.graph, tensor)
            for tensor in kept_tensors
        )
    )
    split = _as_edges(rest, fixed, _distances(paths, near))
    try:
        _, (before, _) = nx.minimum_cut(split, (START, 1), (paths.loss, 0))
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
    split.add_edges_from(((source, 1), (target, 0)) for source, target in graph.edges)
    return split


def _tensors_without_cut(paths: GradientPaths) -> set[str]:
    """Return the tensors at which no cut is proposed."""
    inside = in_frames(paths.body)
    return {START, paths.loss, *paths.wrt} | {
        name for name in paths.graph if name != START and _unfit(paths.body, name, inside)
    }


def _unfit(body: Body, tensor: str, inside: Collection[int]) -> str:
    """Return why a tensor's value, or its gradient, cannot be handed from one part to the next."""
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
    """Return the ops of a v1 loop or branch, from its Enters and Switches to before its end."""
    switches = (body.by_type.get(op, ()) for op in op_types.ALL_SWITCHES)
    return inside_control_flow(body).union(*switches)


def _distances(paths: GradientPaths, near: Collection[str]) -> dict[str, int]:
    sources = [name for name in near if name in paths.graph]
    if not sources:
        return {}
    either = paths.graph.to_undirected(as_view=True)
    found_far = nx.multi_source_dijkstra_path_length(either, set(sources), weight=None)
    return {name: int(hops) for name, hops in found_far.items()}


def _check_cut(paths: GradientPaths, cut: Cut) -> None:
    for tensor in cut:
        if tensor == paths.loss or tensor in paths.wrt:
            which = "the loss itself" if tensor == paths.loss else "what the gradient is asked at"
            raise CutError(f"{tensor} is {which}; a cut lies between {_ends_told(paths)}")
        if tensor not in paths.graph:
            raise CutError(_off_the_way(paths, tensor))
        reason = _unfit(paths.body, tensor, in_frames(paths.body))
        if reason:
            raise CutError(f"{tensor} cannot be cut at: {reason}{_proposal(paths, cut, [])}")
    round_it = path_round(paths, cut)
    if round_it:
        missing = smallest_cut(paths, cut, kept_tensors=cut)
        raise CutError(
            f"{', '.join(cut)} is not a cut between {_ends_told(paths)}: the gradient also flows "
            f"around it, through\n  {path_in_words(round_it, PATH_SHOWN)}"
            f"{_proposal(paths, cut, missing)}"
        )


def _proposal(paths: GradientPaths, cut: Cut, missing: Sequence[str]) -> str:
    smallest = smallest_cut(paths, cut)
    whole = [*cut, *missing]
    said = f"\n  a cut with it: {', '.join(whole)}" if missing else ""
    if not smallest:
        return f"{said}\n  there is no cut: single ops join {_ends_told(paths)}"
    if missing and len(smallest) >= len(whole):
        return said
    return f"{said}\n  the smallest cut, near it: {', '.join(smallest)}"


def _off_the_way(paths: GradientPaths, tensor: str) -> str:
    body, name = paths.body, names.parse(tensor)
    node = body.node(name.op)
    if not upstream(body, [names.parse(paths.loss)])[node.index]:
        return f"{tensor} is not upstream of {paths.loss}: the loss is not computed from it"
    wrt = [names.parse(name_wrt) for name_wrt in paths.wrt]
    if not downstream(body, wrt)[node.index]:
        return f"{tensor} does not depend on {', '.join(paths.wrt)}: {_not_between(paths)}"
    reason = _unfit(body, tensor, ())
    if reason:
        return f"{tensor} cannot be cut at: {reason}"
    return f"no gradient flows through {tensor}: {_not_between(paths)}"


def _not_between(paths: GradientPaths) -> str:
    return f"it is not on the way of the gradient between {_ends_told(paths)}"


def _ends_told(paths: GradientPaths) -> str:
    return f"{', '.join(paths.wrt)} and {paths.loss}"


def _cuts_in_order(paths: GradientPaths, cuts: list[Cut]) -> list[Cut]:
    """The cuts in forward order; CutError where two are the same, or neither is before the other.

    One is before another where it is a cut between `wrt` and that.
    """
    ahead = {cut: [second for second in cuts if _comes_before(paths, second, cut)] for cut in cuts}
    if len(ahead) < len(cuts):
        raise CutError(f"{', '.join(cuts[0])}: two cuts are the same")
    ranked = sorted(cuts, key=lambda cut: len(ahead[cut]))
    for first, second in pairwise(ranked):
        if first not in ahead[second]:
            raise CutError(
                f"the cuts {', '.join(first)} and {', '.join(second)} cross: neither lies as a "
                "whole "
                f"before the other"
            )
    return ranked


def _comes_before(paths: GradientPaths, first: Cut, second: Cut) -> bool:
    if set(first) == set(second):
        return False
    rest = paths.graph.copy()
    rest.remove_nodes_from(first)
    return all(tensor in first or not nx.has_path(rest, START, tensor) for tensor in second)


START = "^"  # before all tensors that the gradient is asked at; no tensor is named so


@dataclass(frozen=True, eq=False)
class GradientPaths:
    """The tensors between `wrt` and `loss` over differentiable edges, written `op:0`.

    An edge leads from a tensor that an op reads to one that it gives; `START` comes before all of
    `wrt`.
    """

    body: Body
    loss: str
    wrt: tuple[str, ...]
    graph: nx.DiGraph[str] = field(repr=False)


def find_tensor(graph: Graph, text: str) -> str:
    """The tensor of the main graph that is meant, as `op:0`; CutError where there is none."""
    tensor = tensor_named(graph.main, text)
    if tensor is not None:
        return tensor.full
    op = names.parse(text)
    index = graph.main.by_name.get(op.op)
    if index is not None and not op.control:
        count = len(Node(graph.main, index).outputs or ())
        raise CutError(f"there is no tensor {text!r}: {op.op!r} has {count} outputs")
    inside = [label for label, body in graph.functions.items() if op.op in body.by_name]
    if inside:
        raise CutError(
            f"{text!r} is a tensor of function {inside[0]}; a gradient is taken in parts at "
            f"tensors of the main graph"
        )
    near = did_you_mean(op.op, graph.main.heads.names)
    raise CutError(f"there is no tensor {text!r} in the main graph{near}")


def gradient_paths(graph: Graph, loss: str, wrt: Sequence[str]) -> GradientPaths:
    """Return the paths from `loss` back to `wrt`.

    Raises CutError for one of `wrt` from which the loss does not depend, or to which nothing
    flows back, and says where it ends.
    """
    body = graph.main
    before = upstream(body, [names.parse(loss)])
    edges: nx.DiGraph[str] = nx.DiGraph()
    for tensor in wrt:
        _refuse_unconnected(body, tensor, loss, before)
        edges.add_edge(START, tensor)
    waiting = list(wrt)
    visited = set(wrt)
    while waiting:
        tensor = waiting.pop()
        for index, slot in readers_of(body, names.parse(tensor)):
            for output in _outputs_after(Node(body, index), slot) if before[index] else ():
                onward = f"{body.heads.names[index]}:{output}"
                edges.add_edge(tensor, onward)
                if onward not in visited:
                    visited.add(onward)
                    waiting.append(onward)
    ending = nx.ancestors(edges, loss) | {loss} if loss in edges else set()
    for tensor in wrt:
        if tensor not in ending:
            raise CutError(_blocked(body, tensor, loss, before, edges))
    return GradientPaths(body, loss, tuple(wrt), edges.subgraph(ending).copy())


def _refuse_unconnected(body: Body, tensor: str, loss: str, before: bytearray) -> None:
    if not before[body.by_name[names.op_of(tensor)]]:
        raise CutError(f"{tensor} is not upstream of {loss}: the loss is not computed from it")
    name = names.parse(tensor)
    node = body.node(name.op)
    if name.index not in _differentiable_outputs(node):
        flat = node.outputs or []
        dtype = flat[name.index].dtype if name.index < len(flat) else None
        raise CutError(f"{tensor} is {dtype or 'of an unknown dtype'}, which carries no gradient")


def _differentiable_outputs(node: Node) -> list[int]:
    try:
        flat = node.outputs
    except ModelError:
        flat = None
    if flat is None:
        uses = node.body.readers.get(node.name, ())
        read = [names.parse(node.body.heads.inputs[index][slot]) for index, slot in uses]
        return sorted({tensor.index for tensor in read if not tensor.control})
    return [place for place, arg in enumerate(flat) if flow.is_asked_for(arg)]


def _blocked(body: Body, tensor: str, loss: str, before: bytearray, edges: nx.DiGraph[str]) -> str:
    """Return why no gradient comes from the loss to a tensor: the ops at which it ends."""
    reached = nx.descendants(edges, tensor) | {tensor}
    ops = [
        str(Node(body, index))
        for reached_tensor in sorted(reached)
        for index, slot in readers_of(body, names.parse(reached_tensor))
        if before[index] and not _outputs_after(Node(body, index), slot)
    ]
    where = short(list(dict.fromkeys(ops)))
    return f"no gradient flows from {loss} back to {tensor}: none passes {where}"


def _outputs_after(node: Node, slot: int) -> list[int]:
    """Return the outputs from which a gradient comes to this slot."""
    return [] if flow.is_none(node, slot) else _differentiable_outputs(node)
