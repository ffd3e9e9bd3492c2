"""The original of a patched model, or the model without one of its rules, from what it tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.unsafe import unsafe_op
from graphpatch.errors import GraphpatchError, ModelError, PatchError, did_you_mean
from graphpatch.formats import Model
from graphpatch.formats.before import as_before, is_original, opened_again, refuse_exported
from graphpatch.formats.load import model_from
from graphpatch.formats.model_like import HasModel, ModelLike
from graphpatch.graph import provenance
from graphpatch.graph.check import check_graph
from graphpatch.graph.edit import write_origin
from graphpatch.graph.graph import Graph, TakenBack
from graphpatch.graph.heads import Progress
from graphpatch.graph.provenance import origin, origin_node
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
    """Take back all that rules did to a model, or what the rules of one name did.

    The model that came in is left as it was. Without any rule left the result is what the model was
    before the first, byte for byte; a text file is the same message. Forward nothing changes;
    backward what the rules gave is gone.

    Args:
        model: What `load` takes.
        rule: The name of the rules to take off. Default: all.
        progress: Called with what is done, how much of it, and of how much.
        allow_changed: A note, not an error, where others changed the model, so that its original
            cannot be given back.

    Raises:
        PatchError: No rule was applied, or another builds on what is to be taken off.
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
        before = list(dict.fromkeys(name for graph in loaded.graphs for name in _rules_in(graph)))
        _check_is_there(before, rule)
        refuse_exported(loaded)
        reverted = opened_again(loaded)  # which knows what was read of the nodes
        undone = [one for graph in reverted.graphs for one in _revert(graph, rule)]
        left = {name for graph in reverted.graphs for name in _rules_in(graph)}
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
    before: Sequence[str],
    left: Set[str],
    undone: Sequence[UndoneBody],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "rules": [name for name in before if name not in left],
        "left": [name for name in before if name in left],
        "ops": {
            "restored": sum(len(one.nodes) for one in undone),
            "dropped": sum(len(one.dropped) for one in undone),
        },
        "nodes": {"before": model.node_count, "after": reverted.node_count},
        "notes": list(dict.fromkeys(notes)),
    }


def _rules_in(graph: Graph) -> list[str]:
    return list(dict.fromkeys(edit.rule for edit in provenance.all_entries(graph)))


def _check_is_there(there: Sequence[str], rule: str | None) -> None:
    if not there:
        raise PatchError("no rule was applied to it: there is nothing to revert")
    if rule is not None and rule not in there:
        near = did_you_mean(rule, there) or f"; there are: {', '.join(map(repr, there))}"
        raise PatchError(f"no rule {rule!r} was applied to it{near}")


def _revert(graph: Graph, rule: str | None) -> list[UndoneBody]:
    record = origin(graph)
    undone = undo(graph, lambda edit: rule is None or edit.rule == rule)
    functions = drop_unused(graph)
    is_whole = not _rules_in(graph)
    if record and not is_whole:
        _keep_origin(graph, record)
    main = undone[0]
    graph.undone = TakenBack(frozenset(main.gone), main.back, functions, record, is_whole)
    graph.keeps_library = is_whole and "library" in record
    return undone


def _keep_origin(graph: Graph, record: dict[str, Any]) -> None:
    """Write down again what the model was: the node that told may be gone."""
    ids = {edit.id for edit in provenance.all_entries(graph)}
    kept = {key: patch for key, patch in record.get("rules", {}).items() if key in ids}
    touched = (node for body in graph.bodies for node in provenance.touched(body))
    node = origin_node(graph) or next(touched)
    write_origin(node.body, node.index, {**record, "rules": kept})


def _unsafe(graph: Graph, undone: Sequence[UndoneBody]) -> Iterator[str]:
    """That ops are back which do more than compute."""
    for one in undone:
        names = [node.name for node in one.nodes.values() if node.op != node.node.op]
        body = graph.body_if_there(one.body.label) if names else None
        for node in (body.node(name) for name in names) if body is not None else ():
            if (found := unsafe_op(node)) is not None:
                yield f"{found}, as it did in the function that took its place"


def _notes(model: Model, allow_changed: bool) -> Iterator[str]:
    """What keeps a model from being its original byte for byte, or from being known to be."""
    if any(model.is_text or _origin(graph).get("text") for graph in model.graphs):
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


def _origin(graph: Graph) -> dict[str, Any]:
    return dict(graph.undone.origin) if graph.undone is not None else {}


def _sizes_in_words(model: Model) -> str:
    before = next((_origin(one)["size"] for one in model.graphs if "size" in _origin(one)), None)
    now = size(model.pieces())
    return f"the original had {now if before is None else before} bytes, this has {now}"
