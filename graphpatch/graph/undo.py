"""Edits taken back, as they are written down: a graph as it was before some rules, or all.

Only for a graph as a file holds it: `edit` has not changed it since. Each edit tells what it found,
so no order between nodes needs to be known, and each node gets back the bytes that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.errors import ModelError, PatchError
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.dropping import drop_nodes
from graphpatch.graph.edits import Added, Edit, InputSet, Returned
from graphpatch.graph.graph import Graph
from graphpatch.graph.inputs import give_output
from graphpatch.graph.provenance import origin, returned
from graphpatch.graph.undo_node import IsWanted, UndoneNode, refuse_dependent, undo_node
from graphpatch.opdefs import tensor_index


@dataclass
class UndoneBody:
    """What was taken back of a body: nodes by index."""

    body: Body
    dropped: dict[int, Edit] = field(default_factory=dict)
    nodes: dict[int, UndoneNode] = field(default_factory=dict)
    marked: list[int] = field(default_factory=list)  # those that still carry provenance
    clones: list[Node] = field(default_factory=list)  # among these, what rules cloned
    rules: set[str] = field(default_factory=set)  # those of edits that were taken back

    @property
    def dropped_names(self) -> set[str]:
        """The names of the ops that were dropped."""
        return {self.body.heads.names[index] for index in self.dropped}

    @property
    def old_names(self) -> dict[str, str]:
        """The older names that ops have again, by the newer ones."""
        found = self.nodes.values()
        return {one.node.name: one.name for one in found if one.node.name != one.name}


def undo(graph: Graph, wanted: IsWanted) -> list[UndoneBody]:
    """Take the edits that are wanted back in all bodies of a graph; the main one is told first.

    Functions that edits added stay. Raises PatchError where an edit that is not wanted rests on
    one that is, ModelError where ops that somebody else added do.
    """
    undone = [_undo_body(body, wanted) for body in graph.bodies if not body.is_ours]
    _refuse_copied(undone)
    _refuse_old_clones(graph, undone)
    for one in undone:
        for node in one.nodes.values():
            _check_enclosed(graph, node)
    for one in undone:
        body = one.body
        if one.dropped or one.nodes:
            body = drop_nodes(graph, body, one.dropped, one.nodes, one.marked)
        _check_reads(one, body)
    return undone


def _undo_body(body: Body, wanted: IsWanted) -> UndoneBody:
    undone = UndoneBody(body)
    outputs = [edit for _, edit in returned(body)]
    for node in provenance.touched(body):
        edits = provenance.entries(node)
        if edits and isinstance(edits[0], Added) and wanted(edits[0]):
            others = (one for one in edits if not wanted(one))
            refuse_dependent(next(others, None), node, edits[0].rule)
            undone.dropped[node.index] = edits[0]
            undone.rules.add(edits[0].rule)
            continue
        undone.clones += [node] if provenance.clone_of(node) else []
        taken = [edit.rule for edit in edits if wanted(edit)]
        undone.rules.update(taken)
        done = undo_node(node, edits, wanted) if taken else None
        if done is not None:
            undone.nodes[node.index] = done
        if done is None or done.entries:
            undone.marked.append(node.index)
    for place in reversed(range(len(outputs))):
        if wanted(outputs[place]):
            _undo_output(body, outputs, place)
    return undone


def _refuse_copied(undone: Sequence[UndoneBody]) -> None:
    """Raise PatchError where a clone that stays has edits of a rule that are taken back."""
    taken = {rule for one in undone for rule in one.rules}
    for node in [node for one in undone for node in one.clones]:
        clone = provenance.added(node)
        # Of its own name is another rule, whose edits `copies` does not tell of.
        for rule in (*clone.copies, clone.rule) if clone is not None else ():
            refuse_dependent(clone if rule in taken else None, node, rule)


def _refuse_old_clones(graph: Graph, undone: Sequence[UndoneBody]) -> None:
    """Raise PatchError where clones stay, and what they copied was not written down."""
    clones = [node for one in undone for node in one.clones]
    if clones and any(one.dropped or one.nodes for one in undone) and origin(graph) is None:
        by, of = provenance.entries(clones[0])[0].rule, provenance.clone_of(clones[0])
        raise PatchError(
            f"rule {by!r} cloned {of!r} (see {clones[0]}), and graphpatch 0.1, which wrote the "
            f"file, did not write down which rules had changed {of!r} before; take all rules off, "
            f"and apply again those that are to stay"
        )


def _check_enclosed(graph: Graph, undone: UndoneNode) -> None:
    """Raise ModelError where an op is to be of a type that the function in its place lacks."""
    node, types, todo = undone.node, set[str](), [undone.node.op]
    while todo:
        name = todo.pop()
        if name == undone.op:
            return
        if name not in types:
            types.add(name)
            todo += graph.functions[name].heads.ops if name in graph.functions else ()
    raise ModelError(
        f"{node} is said to have been of op type {undone.op}, which the function in its place "
        f"does not run; it is not put back"
    )


def _undo_output(body: Body, outputs: list[Returned], place: int) -> None:
    """Let an output of the function be what it was; `outputs` are these edits, oldest first."""
    edit = outputs.pop(place)
    if edit.output not in body.ret:
        raise ModelError(f"function {body.label} has no output {edit.output!r} to give back")
    other = next((one for one in outputs[place:] if one.output == edit.output), None)
    if other is not None:
        raise PatchError(
            f"rule {other.rule!r} builds on what rule {edit.rule!r} did (see output "
            f"{edit.output!r} of function {body.label}); take that one off first"
        )
    give_output(body, edit.output, edit.was)


def _check_reads(undone: UndoneBody, body: Body) -> None:
    """Raise where a node reads what is not there any more."""
    lost = undone.dropped_names | undone.old_names.keys()
    lost |= {one.name for one in undone.nodes.values() if one.op != one.node.op}
    for index, inputs in enumerate(body.heads.inputs if lost else ()):
        for text in inputs:
            op = names.op_of(text)
            if op in lost and not _is_there(body, op, text):
                raise _missing(undone, Node(body, index), text)
    for text in body.ret.values():
        if names.op_of(text) in lost and not _is_there(body, names.op_of(text), text):
            raise ModelError(f"function {body.label} returns {text!r}, which a rule added")


def _is_there(body: Body, op: str, text: str) -> bool:
    if op not in body.by_name:
        return False
    if body.is_main or text.startswith("^"):
        return True
    tensor, flat = names.parse(text), body.node(op).outputs
    return flat is None or tensor_index(flat, tensor.arg, tensor.index) is not None


def _missing(undone: UndoneBody, reader: Node, text: str) -> ModelError | PatchError:
    """The error for a node that reads what a rule added: by a rule, or by somebody else."""
    edits = provenance.entries(reader)
    by = next((one.rule for one in reversed(edits) if isinstance(one, InputSet | Added)), None)
    if by is None:
        return ModelError(f"{reader} reads {text!r}, which a rule added; it was changed since")
    rules = {edit.rule for edit in undone.dropped.values()}
    rules |= {one.rule for node in undone.nodes.values() for one in provenance.entries(node.node)}
    taken = ", ".join(map(repr, sorted(rules - {by})))
    return PatchError(
        f"rule {by!r} builds on what rule {taken} did ({reader} reads {text!r}); "
        f"take that one off first"
    )
