"""The original of a patched model, or the model without one of its rules, from what it tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.rule_words import patch_in_words, rules_at
from graphpatch.analysis.unsafe import unsafe_op
from graphpatch.errors import GraphpatchError, ModelError, PatchError, did_you_mean
from graphpatch.formats import Model
from graphpatch.formats.before import (
    as_before,
    is_original,
    opened_again,
    records_before,
    refuse_exported,
)
from graphpatch.formats.load import HasModel, ModelLike, model_from
from graphpatch.graph import provenance
from graphpatch.graph.check import check_graph
from graphpatch.graph.graph import Graph, Progress, UndoneGraph, read_record
from graphpatch.graph.record import AppliedRule, Author, labels
from graphpatch.graph.undo import undo
from graphpatch.graph.wire import size
from graphpatch.shown import IN_LIST, html_table, short

LOST_RECORD = (
    "the record of its rules is gone, with the op that carried it: something other than graphpatch "
    "changed the file after the first rule; patch the original again"
)
ALL_OFF = "take all rules off, and apply again those that are to stay"
LEAST_ID = 4  # digits by which a rule may be named


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
        """Return True: `revert` raises where the edits cannot be taken back."""
        return True

    def document(self) -> dict[str, Any]:
        """Return what `revert --dry-run --json` prints."""
        return {"model": self.model.path, "output": None, **self.report}

    def __repr__(self) -> str:
        off, remaining = (short(self.report[key]) or "none" for key in ("rules", "left"))
        return f"<Reverted: {self.model.path}; taken off: {off}; left: {remaining}>"

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

    To take one rule off, all are taken off, and the others applied again. The model that came in is
    left as it was. Without any rule left the result is what the model was before the first, byte
    for byte; a text file is the same message. Forward nothing changes;
    backward what the rules gave is gone.

    Args:
        model: What `load` takes.
        rule: The rule to take off: its name, or where several have one name its id, as the error
            lists it, or the first digits of that. `@NAME`: all rules of a recipe. Default: all.
        progress: Called with what is done, how much of it, and of how much.
        allow_changed: A note, not an error, where others changed the model, so that its original
            cannot be given back.

    Raises:
        PatchError: No rule was applied, none or several have that name, or the others do not apply
            without it.
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
        records = [record for graph in loaded.graphs if (record := read_record(graph)) is not None]
        applied = {rule.author: rule for record in records for rule in record.rules}
        bodies = [body for graph in loaded.graphs for body in graph.bodies]
        if not applied and any(body.touched() for body in bodies):
            raise ModelError(LOST_RECORD)
        names = labels(applied)
        off = chosen_rules(loaded.graphs, names, rule)
        refuse_exported(loaded)
        taken = opened_again(loaded)  # which knows what was read of the nodes
        undone = taken_off(taken)
        # Ops are back that do more than compute.
        does = [unsafe_op(node) for part in undone for node in part.uncovered]
        notes = [f"{text}, as it did in the function that took its place" for text in does if text]
        others = [applied[author] for author in applied if author not in off]
        original = as_before(taken)
        notes += _notes(original, allow_changed)
        reverted = _with_others(others, taken, progress) if others else original
        patched_ops = _patched_ops(reverted) if others else (0, 0)
    except GraphpatchError as error:
        raise type(error)(f"{loaded.path}: {error}") from error
    report = {
        "rules": [label for author, label in names.items() if author in off],
        "left": [label for author, label in names.items() if author not in off],
        "ops": {
            "restored": sum(part.nodes_restored for part in undone) - patched_ops[0],
            "dropped": sum(part.nodes_dropped for part in undone) - patched_ops[1],
        },
        "nodes": {"before": loaded.node_count, "after": reverted.node_count},
        "notes": list(dict.fromkeys(notes)),
    }
    return Reverted(reverted, report)


def taken_off(model: Model) -> list[UndoneGraph]:
    """Take all rules off a model as a file holds it, which is changed."""
    for graph in model.graphs:
        if read_record(graph) is not None:
            graph.undone = undo(graph)
    return [graph.undone for graph in model.graphs if graph.undone is not None]


def _with_others(
    others: Sequence[AppliedRule], original: Model, progress: Progress | None
) -> Model:
    """Return the original with these rules. Raises PatchError where they do not apply alone."""
    from graphpatch.application import apply_rules  # here: to take all off, no rule is read
    from graphpatch.rules import rules_from

    is_live = any(record.live for record in records_before(original))
    lost = [applied.name for applied in others if applied.is_python or is_live]
    if lost:
        raise PatchError(
            f"the rules that are to stay are applied again, and the file alone cannot apply "
            f"{', '.join(map(repr, lost))}: its gradient is in Python, or the model was a live "
            f"graph; {ALL_OFF}"
        )
    try:
        rules = rules_from([applied.rule for applied in others])
        return apply_rules(rules, original, progress, None).model
    except GraphpatchError as error:
        raise PatchError(
            f"without that rule the others do not apply: {error}; {ALL_OFF}"
        ) from error


def _patched_ops(model: Model) -> tuple[int, int]:
    """Count the ops of a model that rules changed, and those that they added."""
    bodies = (body for graph in model.graphs for body in graph.bodies if not body.is_ours)
    are_added = [record.is_added for body in bodies for record in body.touched().values()]
    return are_added.count(False), are_added.count(True)


def _notes(model: Model, allow_changed: bool) -> Iterator[str]:
    """Yield what keeps a model from being its original byte for byte, or from being known to be."""
    records, same = records_before(model), is_original(model)
    if model.is_text or any(record.text for record in records):
        yield "the text holds the same message as the original, perhaps formatted in another way"
    for graph in () if same else model.graphs:
        check_graph(graph)
    if same is None:
        yield (
            "whether it is the original cannot be checked: the file has no checksum of it "
            "(live graphs write none), or it was written as text since"
        )
    if same is False:
        now = size(model.pieces())
        before = next((record.size for record in records if record.size), now)
        says = (
            f"the original had {before} bytes, this has {now}, and its checksum differs: something "
            f"other than graphpatch changed the file after the first rule"
        )
        if not allow_changed:
            raise ModelError(
                f"the original cannot be restored: {says}; --allow-changed writes the model "
                f"without its rules anyway (in Python: allow_changed=True)"
            )
        yield f"this is not the original: {says}"


def chosen_rules(
    graphs: Sequence[Graph], labels: Mapping[Author, str], wanted: str | None
) -> Set[Author]:
    """Return the rule that is meant of those that graphs carry; all where none is named.

    Raises PatchError where there is none, or where the name is that of several.
    """
    if not labels:
        raise PatchError("no rule was applied to it: there is nothing to revert")
    if wanted is None:
        return labels.keys()
    from graphpatch.recipes import SIGN, recipe_of  # here: to take all off, no rule is read

    chosen = [rule for rule in labels if wanted in (rule.rule, labels[rule])]
    recipe = recipe_of(wanted)
    # Two rules of just the recipe's name are of two calls of it.
    if recipe is not None and wanted == SIGN + recipe.name and len(chosen) < 2:
        return {rule for rule in labels if recipe_of(rule.rule) is recipe}
    if not chosen and len(wanted) >= LEAST_ID:
        chosen = [rule for rule in labels if rule.id.startswith(wanted)]
    if not chosen:
        names = list(labels.values())
        near = did_you_mean(wanted, names) or f"; there are: {', '.join(map(repr, names))}"
        raise PatchError(f"no rule {wanted!r} was applied to it{near}")
    if len(chosen) > 1:
        which = "id" if len({rule.rule for rule in chosen}) == 1 else "name"
        lines = [f"{wanted!r} is each of {len(chosen)} rules; give the {which}:"]
        at = [(op, words) for graph in graphs for (_, op), words in rules_at(graph, labels).items()]
        patches = {key: p for graph in graphs for key, p in provenance.patches(graph).items()}
        for rule in chosen[:IN_LIST]:
            ops = short(list(dict.fromkeys(op for op, words in at if labels[rule] in words)))
            patch = patch_in_words(patches.get(rule.id))
            lines.append(f"  {rule.id}  {rule.rule!r}: {patch}{f' at {ops}' if ops else ''}")
        raise PatchError("\n".join(lines))
    return set(chosen)
