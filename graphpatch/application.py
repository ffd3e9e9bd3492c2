"""Rules on a model: the patched model, and the report of what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphpatch.above import FromAbove
from graphpatch.errors import GraphpatchError, PatchError, wrong_argument
from graphpatch.formats import Export, Model, default_output
from graphpatch.formats.before import write_down
from graphpatch.formats.destination import NO_CONTEXTS
from graphpatch.formats.load import HasModel, ModelLike, model_from
from graphpatch.graph.check import check_graph, foreign, refuse_unreadable
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.match.conditions import check_taken
from graphpatch.patches.freeze import notes_on_built
from graphpatch.recipe_notes import unmatched_activations
from graphpatch.recipes import is_recipe
from graphpatch.rules import Expect, Rule, by_recipe
from graphpatch.rules import RulesLike as RulesLike
from graphpatch.rules import rules_of as rules_of
from graphpatch.step import RuleResult, apply_rule, check_expected, naming_rule
from graphpatch.table import beside, html_table, plural, short

# What a notebook shows of a model, a patched one beside it, gradients by and of these tensors.
page_part: FromAbove[[Model, Model | None, Sequence[str], Sequence[str]], str]
page_part = FromAbove("part_of_model")

PATCH_LAST = "optimise or convert models first, patch last: docs/guides/patch-last.md"

TAPE_FLOOR = (
    "tf.saved_model.load restores these gradients in TensorFlow 2.8 and later (inside While, If "
    "and Case: 2.12 and later); earlier versions raise an error when they load the model or "
    "differentiate it"
)


@dataclass(frozen=True, slots=True, repr=False)
class Result(HasModel):
    """A patched model, not yet written, and what `apply --json` says of it.

    `save`, `graph_def`, `meta_graph_def` and `import_into` give the model out.

    Example:
        >>> result = graphpatch.apply("rules.json", "model.pb")
        >>> result
        <Result: model.pb, 1 rule, 14 -> 29 nodes; guided: 2 Relu>
    """

    model: Model
    report: dict[str, Any]

    @property
    def ok(self) -> bool:
        """True: `apply` raises where a rule cannot be applied."""
        return True

    def document(self) -> dict[str, Any]:
        """Return what `apply --dry-run --json` prints."""
        model = self.model
        target = None if model.in_memory else default_output(model.path, bool(model.file))
        where = {"model": model.path, "output": None, "would_write": target}
        return {"outputs": [{**where, **self.report}]}

    def to_json(self, model: str, output: str, where: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `apply --json` says of a model that was written to `output`, or would be.

        Raises ModelError and OutputError as writing it would.
        """
        dropped = {NO_CONTEXTS} if output.endswith(".meta") else set()
        notes = [note for note in self.report["notes"] if note not in dropped]
        notes += self.model.text_notes(output)
        return {"model": model, **where, **self.report, "notes": notes}

    def __repr__(self) -> str:
        rules = [f"{name}: {types or 'no ops'}" for name, types, _ in self._rules()]
        return f"<Result: {self._title()}; {short(rules)}>"

    def _repr_html_(self) -> str:
        table = html_table(self._title(), ("rule", "ops", "gradient stored as"), self._rules())
        return beside(table, page_part(self.model, None, (), ()))

    def _title(self) -> str:
        nodes = self.report["nodes"]
        rules = plural(len(self._rules()), "rule")
        return f"{self.model.path}, {rules}, {nodes['before']:,} -> {nodes['after']:,} nodes"

    def _rules(self) -> list[tuple[str, str, str]]:
        return [
            (rule["name"], counted_types(rule["matches"]), rule["emit"])
            for rule in reported_rules(self.report)
        ]


def apply(
    rules: RulesLike,
    model: ModelLike,
    progress: Progress | None = None,
    export: Export | None = None,
    allow_python: bool = False,
) -> Result:
    """Apply rules, each on the result of the one before, and return the patched model.

    Forward, the patched model gives the same bits. Backward, what the rules say flows. The model
    that came in is left as it was, a live graph too.

    Args:
        rules: A path, a recipe (`@guided_backprop`), a list of dicts or of `Rule`s, a dict with
            `rules`, or a `Rule`.
        model: What `load` takes.
        progress: Called with what is done, how much of it, and of how much.
        export: The patched graph is to be saved as a TF2 SavedModel from its inputs to its
            outputs, whose gradients work with GradientTape.
        allow_python: Let {"python": "package.module:function"} import that module and call the
            function.

    Raises:
        RulesError: A rule is not valid.
        MatchError: A rule does not match as often as it expects.
        PatchError: A patch cannot be done, or the rules were applied before.
        ModelError: The model cannot be read, or its graph is broken.
        OutputError: It cannot be exported.
        TypeError: An argument is of none of these kinds.

    When not to use it: for a live graph whose Session goes on; `patch_graph` patches that one.

    Example:
        >>> rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
        >>> graphpatch.apply([rule], "model.pb").save("guided.pb")
    """
    if export is not None and not isinstance(export, Export):
        raise wrong_argument("export", "a graphpatch.Export, of inputs and outputs", export)
    return apply_rules(
        rules_of(rules, allow_python), model_from("model", model, progress), progress, export
    )


def apply_rules(
    read: Sequence[Rule], loaded: Model, progress: Progress | None, export: Export | None
) -> Result:
    """Return what `apply` does; without a rule the model is only converted, or written again."""
    try:
        patched = loaded.copy() if export is None else loaded.exported(export)
        graphs, steps = patched.graphs, list[RuleResult]()
        notes = check_all(read, graphs)
        for place, rule in enumerate(read):
            if progress is not None:
                progress("matching", place, len(read))
            steps.append(apply_rule(rule, graphs))
        # Of the rules of a recipe one must match, whatever each of them allows.
        busy = {step.rule for step in steps if step.matches}
        for *others, last in by_recipe(read):
            if not any(rule.author.rule in busy for rule in (*others, last)):
                with naming_rule(last):
                    check_expected(replace(last, expect=Expect()), graphs, 0)
        for graph in graphs:
            refuse_unreadable(graph)
        write_down(loaded, patched, [rule.applied for rule in read])
    except GraphpatchError as error:
        raise type(error)(f"{loaded.path}: {error}") from error
    notes += notes_on_built(loaded.graphs, [step.emit for step in steps if step.matches])
    return Result(patched, _report(loaded, patched, [*notes, *patched.notes()], steps))


def check_all(rules: Sequence[Rule], graphs: Sequence[ModelGraph]) -> list[str]:
    """Return notes on the graphs before rules are applied.

    Raises ModelError where a graph is broken, PatchError where it carries one of the rules, as
    rules are not put on a model as a second layer, MatchError where a rule asks for what a rule
    patched that is not there: neither in the file before it, nor of an earlier run.
    """
    for graph in graphs:
        check_graph(graph)
    authors = [author for graph in graphs for author in graph.library.rules]
    ids = {rule.author.id: rule.author.rule for rule in rules}
    for author in authors:
        if author.id in ids:
            raise PatchError(
                f"rule {ids[author.id]!r} has been applied to this model already; apply rules to "
                f"the original"
            )
    before = dict.fromkeys(author.rule for author in authors)
    for rule in rules:
        with naming_rule(rule):
            check_taken(rule.match, before)
        if rule.author.rule:
            before[rule.author.rule] = None
    return list(dict.fromkeys(note for graph in graphs for note in foreign(graph)))


def _report(
    before: Model, after: Model, notes: list[str], steps: list[RuleResult]
) -> dict[str, Any]:
    listed = [*notes, *(note for step in steps for note in step.notes)]
    matched = {(match["body"], match["op"]) for step in steps for match in step.matches}
    listed += unmatched_activations([step.rule for step in steps], before.graphs, matched)
    if any("function" in step.emit for step in steps):
        listed.append(PATCH_LAST)
    if any(graph.restored for graph in after.graphs):
        listed.append(TAPE_FLOOR)
    return report_of(steps, listed, nodes={"before": before.node_count, "after": after.node_count})


def report_of(steps: Sequence[RuleResult], notes: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return what rules did and need as a report has it, and these notes, each once."""
    return {
        "rules": [
            {"name": step.rule, "matches": step.matches, "emit": "+".join(step.emit)}
            for step in steps
        ],
        **more,
        "consumer": {
            "session": list(dict.fromkeys(key for step in steps for key in step.session)),
            "tape": list(dict.fromkeys(key for step in steps for key in step.tape)),
        },
        "notes": list(dict.fromkeys(notes)),
    }


def reported_rules(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a report has of rules, without those of recipes that matched nothing."""
    return [rule for rule in report["rules"] if rule["matches"] or not is_recipe(rule["name"])]


def counted_types(matches: Sequence[Mapping[str, Any]]) -> str:
    """Return how many ops of each op type were matched, in words; nothing where there are none.

    Where a match of a pattern brings several ops, how many matches there are comes first.
    """
    types = Counter(match["type"] for match in matches)
    listed = ", ".join(f"{count} {op}" for op, count in sorted(types.items()))
    count = pattern_matches(matches)
    return listed if count in (0, len(matches)) else f"{plural(count, 'match')}: {listed}"


def pattern_matches(matches: Sequence[Mapping[str, Any]]) -> int:
    """Return how many matches of patterns brought these ops; 0 where none did."""
    bindings = {
        (match.get("graph", ""), match["body"], tuple(sorted(match["captures"].items())))
        for match in matches
        if match.get("captures")
    }
    return len(bindings)
