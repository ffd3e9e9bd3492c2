"""The original of a patched model, or the model without one of its rules, from what it tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from graphpatch.analysis.unsafe import unsafe_op
from graphpatch.analysis.which_rule import chosen_rules
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import Model
from graphpatch.formats.before import (
    as_before,
    is_original,
    opened_again,
    origins_before,
    refuse_exported,
)
from graphpatch.formats.load import model_from
from graphpatch.formats.model_like import HasModel, ModelLike
from graphpatch.graph import provenance
from graphpatch.graph.check import check_graph
from graphpatch.graph.edit import write_origin
from graphpatch.graph.edits import Author, Origin
from graphpatch.graph.heads import Progress
from graphpatch.graph.model_graph import ModelGraph, UndoneGraph
from graphpatch.graph.provenance import origin, origin_node
from graphpatch.graph.rule_labels import carried_rules, rule_labels
from graphpatch.graph.undo import UndoneBody, undo
from graphpatch.graph.undo_library import drop_unused
from graphpatch.graph.wire import size
from graphpatch.table import html_table, short


@dataclass(frozen=True, slots=True, repr=False)
class Reverted(HasModel):
    """A model of which edits were taken back, not yet written, and what was taken off.

    `save`, `graph_def`, `meta_graph_def` and `import_into` give the model out.

    Example:
        >>> graphpatch.revert("patched.pb").report["rules"]
        ['guided']
    """

    model: Model
    report: dict[str, Any]

    @property
    def ok(self) -> bool:
        """True: `revert` raises where the edits cannot be taken back."""
        return True

    def document(self) -> dict[str, Any]:
        """What `revert --dry-run --json` prints."""
        return {"model": self.model.path, "output": None, **self.report}

    def __repr__(self) -> str:
        off, left = (short(self.report[key]) or "none" for key in ("rules", "left"))
        return f"<Reverted: {self.model.path}; taken off: {off}; left: {left}>"

    def _repr_html_(self) -> str:
        rows = [(name, "taken off") for name in self.report["rules"]]
        rows += [(name, "left") for name in self.report["left"]]
        return html_table(f"{self.model.path}, reverted", ("rule", ""), rows)


def revert(
    model: ModelLike,
    rule: str | None = None,
    progress: Progress | None = None,
    allow_changed: bool = False,
) -> Reverted:
    """Take back all that rules did to a model, or what one of them did.

    The model that came in is left as it was. Without any rule left the result is what the model was
    before the first, byte for byte; a text file is the same message. Forward nothing changes;
    backward what the rules gave is gone.

    Args:
        model: What `load` takes.
        rule: The rule to take off: its name, or where several have one name its id, as the error
            lists it, or the first digits of that. Default: all.
        progress: Called with what is done, how much of it, and of how much.
        allow_changed: A note, not an error, where others changed the model, so that its original
            cannot be given back.

    Raises:
        PatchError: No rule was applied, none or several have that name, or another builds on what
            is to be taken off.
        ModelError: The model cannot be read, or was changed by others so that it would break, or so
            that its original cannot be given back.
        TypeError: `model` is not a model.

    Example:
        >>> graphpatch.revert("patched.pb").save("reverted.pb")
        >>> Path("reverted.pb").read_bytes() == Path("model.pb").read_bytes()
        True
    """
    loaded = model_from("model", model, progress)
    try:
        before = rule_labels(loaded.graphs)
        off = chosen_rules(loaded.graphs, before, rule)
        refuse_exported(loaded)
        reverted = opened_again(loaded)  # which knows what was read of the nodes
        undone = [one for graph in reverted.graphs for one in _revert(graph, off)]
        left = set(carried_rules(reverted.graphs))
        for graph in reverted.graphs:
            check_graph(graph)
        notes = [note for graph in reverted.graphs for note in _unsafe(graph, undone)]
        if not left:
            reverted = as_before(reverted)
            notes += _notes(reverted, allow_changed)
    except GraphpatchError as error:
        raise type(error)(f"{loaded.path}: {error}") from error
    return Reverted(reverted, _revert_report(loaded, reverted, before, left, undone, notes))


def _revert_report(
    model: Model,
    reverted: Model,
    before: Mapping[Author, str],
    left: Set[Author],
    undone: Sequence[UndoneBody],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "rules": [label for rule, label in before.items() if rule not in left],
        "left": [label for rule, label in before.items() if rule in left],
        "ops": {
            "restored": sum(len(one.nodes) for one in undone),
            "dropped": sum(len(one.dropped) for one in undone),
        },
        "nodes": {"before": model.node_count, "after": reverted.node_count},
        "notes": list(dict.fromkeys(notes)),
    }


def _revert(graph: ModelGraph, off: Set[Author]) -> list[UndoneBody]:
    was = origin(graph)
    undone = undo(graph, lambda edit: Author(edit.rule, edit.id) in off)
    functions = drop_unused(graph)
    is_whole = not carried_rules([graph])
    if was is not None and not is_whole:
        _keep_origin(graph, was)
    main = undone[0]
    graph.undone = UndoneGraph(
        frozenset(main.dropped_names), main.old_names, functions, was, is_whole
    )
    return undone


def _keep_origin(graph: ModelGraph, was: Origin) -> None:
    """Write down again what the model was: the node that told may be gone."""
    ids = {edit.id for edit in provenance.all_entries(graph)}
    kept = {key: patch for key, patch in was.rules.items() if key in ids}
    touched = (node for body in graph.bodies for node in provenance.touched(body))
    node = origin_node(graph) or next(touched)
    write_origin(node.body, node.index, structs.replace(was, rules=kept))


def _unsafe(graph: ModelGraph, undone: Sequence[UndoneBody]) -> Iterator[str]:
    """That ops are back which do more than compute."""
    for one in undone:
        names = [node.name for node in one.nodes.values() if node.op != node.node.op]
        body = graph.body_if_there(one.body.label) if names else None
        for node in (body.node(name) for name in names) if body is not None else ():
            if (found := unsafe_op(node)) is not None:
                yield f"{found}, as it did in the function that took its place"


def _notes(model: Model, allow_changed: bool) -> Iterator[str]:
    """What keeps a model from being its original byte for byte, or from being known to be."""
    if model.is_text or any(was.text for was in origins_before(model)):
        yield "the text holds the same message as the original, perhaps formatted in another way"
    same = is_original(model)
    if same is None:
        yield (
            "whether it is the original cannot be checked: the file has no checksum of it "
            "(graphpatch 0.1 and live graphs write none), or it was written as text since"
        )
    elif not same:
        said = (
            f"{_sizes_in_words(model)}, and its checksum differs: something other than graphpatch "
            f"changed the file after the first rule"
        )
        if not allow_changed:
            raise ModelError(
                f"the original cannot be restored: {said}; --allow-changed writes the model "
                f"without its rules anyway (in Python: allow_changed=True)"
            )
        yield f"this is not the original: {said}"


def _sizes_in_words(model: Model) -> str:
    now = size(model.pieces())
    before = next((was.size for was in origins_before(model) if was.size), now)
    return f"the original had {before} bytes, this has {now}"
