"""Rules on a model: the patched model, and the report of what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.formats import Export, Model, load
from graphpatch.formats.before import checksum_begun, write_down
from graphpatch.graph import provenance
from graphpatch.graph.check import built_gradients, check, foreign
from graphpatch.graph.graph import Graph
from graphpatch.graph.heads import Progress
from graphpatch.rules import Rule, rules_from
from graphpatch.step import Step, take

PATCH_LAST = (
    "functions in the file have the gradients of some ops: optimise or convert a model before you "
    "patch it, as such tools drop them, some silently; revert takes the patch out again"
)


@dataclass(frozen=True, slots=True)
class Result:
    """A patched model, not yet written, and what `apply --json` says of it."""

    model: Model
    report: dict[str, Any]


def apply(
    rules: Sequence[Rule | Mapping[str, Any]],
    model: Model | str | Path,
    progress: Progress | None = None,
    export: Export | None = None,
) -> Result:
    """Apply rules, each on the result of the one before, and return the patched model.

    The model that came in is left as it was. With `export`, the patched graph is to be saved as a
    TF2 SavedModel from its inputs to its outputs, whose gradients hold on a tape. Raises
    MatchError where a rule does not match as often as it expects, PatchError where a patch cannot
    be done or the rules were applied before, ModelError where the graph is broken, OutputError
    where it cannot be exported; nothing is changed then.
    """
    loaded = model if isinstance(model, Model) else load(model, progress)
    try:
        digest = checksum_begun(loaded)
        patched = loaded.copy() if export is None else loaded.exported(export)
        notes = check_all(as_rules(rules), patched.graphs)
        steps = _take_all(as_rules(rules), patched.graphs, progress)
        told = {rule.author.id: rule.told for rule in as_rules(rules)}
        write_down(loaded, patched, told, digest)
    except GraphpatchError as error:
        raise type(error)(f"{loaded.path}: {error}") from error
    return Result(patched, _report(loaded, patched, [*notes, *patched.notes()], steps))


def as_rules(rules: Sequence[Rule | Mapping[str, Any]]) -> list[Rule]:
    """Rules as such: those that are still as a rules file writes them are read."""
    ready = [rule for rule in rules if isinstance(rule, Rule)]
    return ready if len(ready) == len(rules) else rules_from(list(rules))


def check_all(rules: Sequence[Rule], graphs: Sequence[Graph]) -> list[str]:
    """What there is to say of the graphs before rules go over them.

    Raises ModelError where a graph is broken, PatchError where it carries one of the rules.
    """
    for graph in graphs:
        check(graph)
    _refuse_again(rules, graphs)
    found = (note for graph in graphs for note in (*foreign(graph), *built_gradients(graph)))
    return list(dict.fromkeys(found))


def _take_all(
    rules: Sequence[Rule], graphs: Sequence[Graph], progress: Progress | None
) -> list[Step]:
    steps = []
    for place, rule in enumerate(rules):
        if progress is not None:
            progress("matching", place, len(rules))
        steps.append(take(rule, graphs))
    return steps


def _refuse_again(rules: Sequence[Rule], graphs: Sequence[Graph]) -> None:
    """Rules that a model already carries are not put on it as a second layer."""
    ids = {rule.author.id: rule.author.rule for rule in rules}
    for graph in graphs:
        for body in graph.bodies:
            for node in provenance.touched(body):
                for entry in provenance.entries(node):
                    if entry["id"] in ids:
                        raise PatchError(
                            f"rule {ids[entry['id']]!r} has been applied to this model already "
                            f"(see {node}); apply rules to the original"
                        )


def _report(before: Model, after: Model, notes: list[str], steps: list[Step]) -> dict[str, Any]:
    told = [*notes, *(note for step in steps for note in step.notes)]
    if any("function" in step.emit for step in steps):
        told.append(PATCH_LAST)
    return {
        "rules": [
            {"name": step.rule, "matches": step.matches, "emit": "+".join(step.emit)}
            for step in steps
        ],
        "nodes": {"before": before.node_count, "after": after.node_count},
        "consumer": {
            "session": list(dict.fromkeys(key for step in steps for key in step.session)),
            "tape": list(dict.fromkeys(key for step in steps for key in step.tape)),
        },
        "notes": list(dict.fromkeys(told)),
    }
