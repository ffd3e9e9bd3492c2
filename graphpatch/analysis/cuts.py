"""Is it a cut? Which path leads around it, and the smallest set of tensors that is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import networkx as nx

from graphpatch import names
from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation import flow
from graphpatch.errors import CutError, ModelError
from graphpatch.graph import op_types
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import downstream, outputs_there, readers_of, tensor_named, upstream
from graphpatch.match.misses import nearest_tensors
from graphpatch.opdefs import FlatArg
from graphpatch.shown import path_in_words, short

PATH_SHOWN = 12  # tensors of a path that are shown
COST_OF_TENSOR = 1 << 40  # what a tensor costs before its distance counts: fewer tensors come first
START = "^"  # before all tensors that the gradient is asked at; no tensor is named so

Cut = tuple[str, ...]


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

    @property
    def ends(self) -> str:
        """Return the two ends, in words."""
        return f"{', '.join(self.wrt)} and {self.loss}"

    @cached_property
    def inside(self) -> frozenset[int]:
        """Return the ops in v1 loops and branches."""
        return in_frames(self.body)

    def why_unfit(self, tensor: str) -> str:
        """Return why a tensor's value, or its gradient, cannot be handed from part to part."""
        name = names.parse(tensor)
        node = self.body.node(name.op)
        if node.index in self.inside:
            return f"it lies inside a v1 loop or branch ({node}), whose tensors cannot be fetched"
        flat = _outputs(node) or []
        if name.index < len(flat) and not flow.carries(flat[name.index]):
            return f"it {flow.why_not(flat[name.index])}"
        return ""

    def leads_past(self, cut: Collection[str], to: str) -> bool:
        """Return whether a path leads to a tensor that passes no tensor of the cut."""
        rest = nx.restricted_view(self.graph, [t for t in cut if t in self.graph], [])
        return to in rest and nx.has_path(rest, START, to)


def ordered_cuts(
    graph: Graph, loss: str, cuts: Iterable[Sequence[str]], wrt: Sequence[str]
) -> tuple[GradientPaths, list[Cut]]:
    """Return the cuts between `wrt` and `loss` with their tensors as `op:0`, in forward order.

    One is before another where it is a cut between `wrt` and that. Raises CutError where a name is
    not that of a tensor, a tensor is not on the path of the gradient, a path leads around a cut,
    or two cuts are the same or cross.
    """
    end = find_tensor(graph, loss)
    paths = gradient_paths(graph, end, list(dict.fromkeys(find_tensor(graph, t) for t in wrt)))
    resolved = [tuple(dict.fromkeys(find_tensor(graph, text) for text in cut)) for cut in cuts]
    if not resolved or not all(resolved):
        raise CutError("no tensor is named to cut at")
    for cut in resolved:
        _check_cut(paths, cut)
    ahead = {
        cut: [first for first in resolved if _comes_before(paths, first, cut)] for cut in resolved
    }
    if len(ahead) < len(resolved):
        raise CutError(f"{', '.join(resolved[0])}: two cuts are the same")
    ranked = sorted(resolved, key=lambda cut: len(ahead[cut]))
    for first, second in pairwise(ranked):
        if first not in ahead[second]:
            raise CutError(
                f"the cuts {', '.join(first)} and {', '.join(second)} cross: neither lies as a "
                f"whole before the other"
            )
    return paths, ranked


def _comes_before(paths: GradientPaths, first: Cut, second: Cut) -> bool:
    return set(first) != set(second) and all(
        tensor in first or not paths.leads_past(first, tensor) for tensor in second
    )


def _check_cut(paths: GradientPaths, cut: Cut) -> None:
    for tensor in cut:
        if tensor == paths.loss or tensor in paths.wrt:
            which = "the loss itself" if tensor == paths.loss else "what the gradient is asked at"
            raise CutError(f"{tensor} is {which}; a cut lies between {paths.ends}")
        if tensor not in paths.graph:
            raise CutError(_off_the_path(paths, tensor))
        if reason := paths.why_unfit(tensor):
            raise CutError(f"{tensor} cannot be cut at: {reason}{_proposal(paths, cut, [])}")
    around = path_round(paths, cut)
    if around:
        missing = smallest_cut(paths, cut, kept_tensors=cut)
        raise CutError(
            f"{', '.join(cut)} is not a cut between {paths.ends}: the gradient also flows "
            f"around it, through\n  {path_in_words(around, PATH_SHOWN)}"
            f"{_proposal(paths, cut, missing)}"
        )


def _proposal(paths: GradientPaths, cut: Cut, missing: Sequence[str]) -> str:
    smallest, whole = smallest_cut(paths, cut), [*cut, *missing]
    with_it = f"\n  a cut with it: {', '.join(whole)}" if missing else ""
    if not smallest:
        return f"{with_it}\n  there is no cut: single ops join {paths.ends}"
    if missing and len(smallest) >= len(whole):
        return with_it
    return f"{with_it}\n  the smallest cut, near it: {', '.join(smallest)}"


def _off_the_path(paths: GradientPaths, tensor: str) -> str:
    body, name = paths.body, names.parse(tensor)
    index = body.by_name[name.op]
    if not upstream(body, [names.parse(paths.loss)])[index]:
        return f"{tensor} is not upstream of {paths.loss}: the loss is not computed from it"
    if not downstream(body, map(names.parse, paths.wrt))[index]:
        reason = f"{tensor} does not depend on {', '.join(paths.wrt)}"
    elif why := paths.why_unfit(tensor):
        return f"{tensor} cannot be cut at: {why}"
    else:
        reason = f"no gradient flows through {tensor}"
    return f"{reason}: it is not on the way of the gradient between {paths.ends}"


def path_round(paths: GradientPaths, cut: Collection[str]) -> list[str]:
    """Return the tensors of a shortest path from `wrt` to the loss around the cut."""
    rest = paths.graph.copy()
    rest.remove_nodes_from(cut)
    if not paths.leads_past(cut, paths.loss):
        return []
    return list(nx.bidirectional_shortest_path(rest, START, paths.loss))[1:]


def smallest_cut(
    paths: GradientPaths, near: Collection[str] = (), kept_tensors: Collection[str] = ()
) -> list[str]:
    """Return the smallest set of tensors that is a cut; of several, the nearest to `near`.

    Those in `kept_tensors` are cut already and not named, nor is what lies before or behind one of
    them. Nothing where there is no cut: a path passes one op alone, or tensors at which none can
    be.
    """
    graph = paths.graph
    if not paths.leads_past(kept_tensors, paths.loss):
        return []
    fixed = {START, paths.loss, *paths.wrt}
    fixed |= {tensor for tensor in graph if tensor != START and paths.why_unfit(tensor)}
    for tensor in kept_tensors:
        fixed |= nx.ancestors(graph, tensor) | nx.descendants(graph, tensor)
    sources, hops = {tensor for tensor in near if tensor in graph}, dict[str, float]()
    if sources:
        either = graph.to_undirected(as_view=True)
        hops = nx.multi_source_dijkstra_path_length(either, sources, weight=None)
    # Each tensor is an edge from (tensor, 0) to (tensor, 1), which costs what cutting it costs.
    split: nx.DiGraph[tuple[str, int]] = nx.DiGraph()
    for tensor in graph:
        far = int(hops.get(tensor, len(graph)))
        cost = {} if tensor in fixed else {"capacity": COST_OF_TENSOR + far}
        if tensor not in kept_tensors:
            split.add_edge((tensor, 0), (tensor, 1), **cost)
    split.add_edges_from(((source, 1), (target, 0)) for source, target in graph.edges)
    try:
        _, (before, _) = nx.minimum_cut(split, (START, 1), (paths.loss, 0))
    except nx.NetworkXUnbounded:
        return []
    cut = {tensor for tensor, side in before if side == 0 and (tensor, 1) not in before}
    return sorted(cut - set(kept_tensors))


def in_frames(body: Body) -> frozenset[int]:
    """Return the ops of a v1 loop or branch, from its Enters and Switches to before its end."""
    switches = (body.by_type.get(op, ()) for op in op_types.ALL_SWITCHES)
    return inside_control_flow(body).union(*switches)


def find_tensor(graph: Graph, text: str) -> str:
    """Return the tensor of the main graph that is meant, as `op:0`; or raise CutError."""
    tensor = tensor_named(graph.main, text)
    if tensor is not None:
        return tensor.full
    op = names.parse(text)
    outputs = "" if op.control else outputs_there([graph.main], text)
    if outputs:
        raise CutError(f"there is no tensor {text!r}: {outputs}")
    inside = [label for label, body in graph.functions.items() if op.op in body.by_name]
    if inside:
        raise CutError(
            f"{text!r} is a tensor of function {inside[0]}; a gradient is taken in parts at "
            f"tensors of the main graph"
        )
    near = nearest_tensors(text, graph.main.heads.names)
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
        node, index = body.node(names.op_of(tensor)), names.parse(tensor).index
        if not before[node.index]:
            raise CutError(f"{tensor} is not upstream of {loss}: the loss is not computed from it")
        if index not in _differentiable_outputs(node):
            flat = node.outputs or []
            dtype = flat[index].dtype if index < len(flat) else None
            dtype = dtype or "of an unknown dtype"
            raise CutError(f"{tensor} is {dtype}, which carries no gradient")
        edges.add_edge(START, tensor)
    waiting = list(wrt)
    while waiting:
        tensor = waiting.pop()
        for index, slot in readers_of(body, names.parse(tensor)):
            for output in _outputs_after(Node(body, index), slot) if before[index] else ():
                onward = f"{body.heads.names[index]}:{output}"
                waiting += [onward] if onward not in edges else []
                edges.add_edge(tensor, onward)
    ending = nx.ancestors(edges, loss) | {loss} if loss in edges else set()
    for tensor in wrt:
        if tensor not in ending:
            reached = nx.descendants(edges, tensor) | {tensor}
            ops = [
                str(Node(body, index))
                for onward in sorted(reached)
                for index, slot in readers_of(body, names.parse(onward))
                if before[index] and not _outputs_after(Node(body, index), slot)
            ]
            raise CutError(
                f"no gradient flows from {loss} back to {tensor}: none passes "
                f"{short(list(dict.fromkeys(ops)))}"
            )
    return GradientPaths(body, loss, tuple(wrt), edges.subgraph(ending).copy())


def _outputs(node: Node) -> Sequence[FlatArg] | None:
    try:
        return node.outputs
    except ModelError:  # its attrs do not tell them
        return None


def _differentiable_outputs(node: Node) -> list[int]:
    flat = _outputs(node)
    if flat is None:
        uses = node.body.readers.get(node.name, ())
        read = [names.parse(node.body.heads.inputs[index][slot]) for index, slot in uses]
        return sorted({tensor.index for tensor in read if not tensor.control})
    return [place for place, arg in enumerate(flat) if flow.is_asked_for(arg)]


def _outputs_after(node: Node, slot: int) -> list[int]:
    """Return the outputs from which a gradient comes to this slot."""
    return [] if flow.is_none(node, slot) else _differentiable_outputs(node)
