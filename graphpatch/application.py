"""Rules on a model, each on the result of the one before: what they match, do and report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from graphpatch import opdefs
from graphpatch.differentiation.shapes import sizes_in_words
from graphpatch.errors import GraphpatchError, MatchError, PatchError, did_you_mean, wrong_argument
from graphpatch.formats import Export, Model, default_output
from graphpatch.formats.before import write_down
from graphpatch.formats.destination import NO_CONTEXTS
from graphpatch.formats.load import HasModel, ModelLike, model_from
from graphpatch.gradients.spec import PythonGradient
from graphpatch.graph.check import check_graph, check_result, foreign, refuse_unreadable
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import in_model
from graphpatch.graph.template import MARK, UnlikeError, edit_all
from graphpatch.later import FromLater
from graphpatch.match.misses import explain, leaves_out_none, missing_tensors, unknown_types
from graphpatch.match.select import MatchedOps, check_taken, find
from graphpatch.names import texts
from graphpatch.patches.editing import Report, RuleEditor
from graphpatch.patches.freeze import notes_on_built
from graphpatch.patches.placement import named_now, refuse_hidden, refuse_shadowed, why_stopped
from graphpatch.patches.target import Target, refuse_ambiguous, refuse_malformed, target_of_match
from graphpatch.recipe_notes import unmatched_activations, why_recipe_finds_nothing
from graphpatch.recipes import is_recipe
from graphpatch.rules import Expect, Rule, RulesLike, by_recipe, rules_of
from graphpatch.shown import and_more, beside, html_table, plural, short

# What a notebook shows of a model, a patched one beside it, gradients by and of these tensors.
page_part: FromLater[[Model, Model | None, Sequence[str], Sequence[str]], str]
page_part = FromLater("part_of_model")

FEWEST_ALIKE = 8  # ops from which on it pays to look for those that are alike

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
        """Return True: `apply` raises where a rule cannot be applied."""
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
            check_result(graph)
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


# One rule.


class RuleResult(Report):
    """What one rule did; `unchanged` says of whole graphs why not."""

    rule: str
    matches: list[dict[str, Any]] = msgspec.field(default_factory=list)
    unchanged: list[str] = msgspec.field(default_factory=list)

    def close(self) -> None:
        """Note that the rule had no effect on some or all of its ops, with the first reason."""
        if self.unchanged and all(self.unchanged):
            self.note(f"rule {self.rule!r} changes nothing: {self.unchanged[0]}")
        if self.idle:
            which = "some of its ops" if len(self.idle) < len(self.matches) else "any of its ops"
            reason = f"{self.idle[0]}{_also(self.idle)}"
            self.note(f"rule {self.rule!r} means nothing on {which}: {reason}")


class MatchedGraph(NamedTuple):
    """What a rule matched in a graph, and what its patch goes to there, before it is patched."""

    graph: ModelGraph
    matched: MatchedOps
    targets: Sequence[Target]


def apply_rule(rule: Rule, graphs: Sequence[ModelGraph]) -> RuleResult:
    """Apply a rule to graphs, which are changed.

    Raises MatchError where it does not match as often as it expects, PatchError where the patch
    cannot be done; the message names the rule.
    """
    return patch_matched(rule, ops_by_graph(rule, graphs))


def ops_by_graph(
    rule: Rule,
    graphs: Sequence[ModelGraph],
    why: bool = True,
    known: Sequence[MatchedOps] | None = None,
) -> list[MatchedGraph]:
    """Return what a rule matches in each graph, none of which is changed.

    Raises what `apply_rule` raises, as far as that can be known before anything is patched; without
    `why`, a rule that matches nothing is not explained. `known` is what was found in each graph,
    where that was asked before.
    """
    with naming_rule(rule):
        if known is None:
            known = [find(graph, rule.match, rule.on) for graph in graphs]
        check_expected(rule, graphs, sum(matched.count for matched in known), why)
        nodes = [node for matched in known for node in patched_ops(rule, matched)]
        refuse_malformed(nodes)
        if not rule.patch.takes_all:
            refuse_shadowed(nodes, goes_first=rule.patch.takes_side)
        for matched in known:
            refuse_hidden(matched.nodes)
        by_graph = [matched_graph(rule, *pair) for pair in zip(graphs, known, strict=True)]
        rule.patch.check([target for in_graph in by_graph for target in in_graph.targets])
    return by_graph


def matched_graph(rule: Rule, graph: ModelGraph, matched: MatchedOps) -> MatchedGraph:
    """Return what the patch of a rule goes to for what it matched in a graph."""
    if not rule.as_one:
        return MatchedGraph(graph, matched, list(map(Target.of, patched_ops(rule, matched))))
    targets = list[Target]()
    for match in matched.counted:
        target = target_of_match(match.nodes, match.inputs, match.tensors)
        if match.orders:
            refuse_ambiguous(rule.patch.formulas(target), target, match.orders)
        targets.append(target)
    return MatchedGraph(graph, matched, targets)


def patched_ops(rule: Rule, matched: MatchedOps) -> list[Node]:
    """Return the ops that the patch of a rule goes to, for those that its match means.

    A patch at outputs goes behind what an earlier rule put in the place of an op.
    """
    if not rule.patch.is_at_outputs:
        return matched.nodes
    return named_now(matched.nodes, texts(rule.match.name or ()))


def patch_matched(rule: Rule, by_graph: Sequence[MatchedGraph]) -> RuleResult:
    """Patch what a rule has matched. Where that raises, the graphs may be changed in part."""
    step = RuleResult(rule.author.rule)
    graphs = [graph for graph, _, _ in by_graph]
    idle = "" if is_recipe(rule.author.rule) else leaves_out_none(graphs, rule.match)
    if idle:
        step.note(f"rule {rule.author.rule!r}: {idle}")
    with naming_rule(rule):
        for in_graph in by_graph:
            tags = in_graph.graph.around.tags if len(by_graph) > 1 else None
            patch_in_graph(rule, in_graph, step, tags=tags)
    step.close()
    return step


def patch_in_graph(
    rule: Rule,
    in_graph: MatchedGraph,
    step: RuleResult,
    known: dict[Hashable, Any] | None = None,
    tags: str | None = None,
) -> None:
    """Patch what a rule matched in one graph, for `step`; `known` is that of an earlier editor."""
    graph, matched, targets = in_graph
    step.matches.extend(listed_matches(matched, tags, rule.as_one, rule.as_one))
    if matched.nodes:
        step.unchanged.append(rule.patch.idle(matched.nodes))
    # As the ops are called before they are patched.
    left_out = left_out_notes(rule.author.rule, matched)
    step.idle.extend(why_stopped(matched.nodes))
    known = {} if known is None else known
    editor = RuleEditor(graph, rule.author, report=step, known=known)  # writes the rule down
    if targets:
        _patch_targets(rule, targets, editor)
    step.note(*_type_notes(rule), *left_out)


@contextlib.contextmanager
def naming_rule(rule: Rule) -> Iterator[None]:
    """Let errors in here begin with the name of the rule."""
    try:
        yield
    except GraphpatchError as error:
        raise type(error)(f"rule {rule.author.rule!r}: {error}") from error


def _patch_targets(rule: Rule, targets: Sequence[Target], editor: RuleEditor) -> None:
    nodes = [target.last for target in targets]
    if opened := [text for target in targets for text, _ in target.opened]:
        own = "what flows back from there keeps its own gradient"
        editor.report.note(f"rule {rule.author.rule!r}: {opened[0]}{_also(opened)}; {own}")
    editor.report.note(*(() if rule.as_one else rule.patch.notes(nodes)))
    if rule.patch.takes_all:
        rule.patch.rewrite_all(nodes, editor)
        return
    for target in targets if rule.as_one else _edit_alike(rule, targets, editor):
        rule.patch.rewrite(target, replace(editor, patched=target.last.name))


def _edit_alike(rule: Rule, targets: Sequence[Target], editor: RuleEditor) -> Sequence[Target]:
    """Patch the ops that the patch tells apart by their form alone, and return the others.

    They are ops of the main graph of a file, outside of v1 loops and branches. A gradient in Python
    is traced for each op, and at inputs it counts who gives them.
    """
    around, patch, body = editor.graph.around, rule.patch, targets[0].last.body
    if around.is_object_based or around.is_exported or not body.is_main:
        return targets
    is_traced = isinstance(getattr(patch, "gradient", None), PythonGradient)
    is_at_inputs = patch.takes_side and not patch.is_at_outputs
    is_unclear = MARK.search(f"{rule.author.rule}{patch!r}".encode())  # what is a stand-in
    if len(targets) < FEWEST_ALIKE or is_traced or is_at_inputs or is_unclear:
        return targets

    def edit(node: Node) -> list[str]:
        # What is cached may be a deed, such as a note: it counts where the report does.
        report, known = Report(), dict(editor.known)
        own = replace(editor, patched=node.name, report=report, known=known)
        patch.rewrite(Target.of(node), own)
        if MARK.search("".join(report.notes).encode()):
            raise UnlikeError
        editor.report.take_over(report)
        editor.known.update(known)
        return report.idle

    inside = editor.bodies.in_control_flow(body)
    nodes = [target.last for target in targets]
    alike = [node for node in nodes if node.body is body and node.index not in inside]
    unlike = edit_all(alike, edit, editor.report.idle)
    edited = {node.index for node in alike if node not in unlike}
    return [t for t in targets if t.last.index not in edited or t.last.body is not body]


def listed_matches(
    matched: MatchedOps, tags: str | None, with_reads: bool = True, whole: bool = False
) -> list[dict[str, Any]]:
    """Return what was matched, as the report lists it: the op, with the captures of a pattern.

    `with_reads`: and what the match reads from outside, which a formula calls x0, x1, ... Of a
    match as one op (`whole`) that stands with its last op alone.
    """
    by_op = {node: match for match in matched.counted for node in match.patched}
    listed = []
    for node in matched.nodes:
        was = in_model(node)
        entry: dict[str, Any] = {"body": node.body.label, "op": was.name, "type": was.op}
        match = by_op.get(node)
        if match is not None and (not whole or node == match.last_op):
            entry |= match.document(with_reads)
        listed.append(entry if tags is None else {**entry, "graph": tags})
    return listed


def _type_notes(rule: Rule) -> list[str]:
    if rule.match.pattern is None:
        return []
    from graphpatch.match.syntax import type_notes  # here: it brings the parser

    return [f"rule {rule.author.rule!r}: {text}" for text in type_notes(rule.match.pattern)]


def left_out_notes(rule: str, matched: MatchedOps) -> list[str]:
    """Say that matches were left out, and why the first was: by overlaps, by unknown shapes."""
    notes = []
    if matched.dropped:
        first = matched.dropped[0]
        places = ", ".join(f"{name} is {op}" for name, op in first.captures.items())
        more = _also(matched.dropped)
        notes.append(f"rule {rule!r}: a match was left out: {places}: {first.reason}{more}")
    if matched.undecided:
        node, sizes = matched.undecided[0]
        notes.append(
            f"rule {rule!r} leaves out ops whose shape is not known well enough: {node} has shape "
            f"{sizes_in_words(sizes)}{_also(matched.undecided)}"
        )
    return notes


def _also(sized: Sized) -> str:
    """Return how many more there are than the first."""
    return f" ({more})" if (more := and_more(sized, 1)) else ""


def check_expected(rule: Rule, graphs: Sequence[ModelGraph], count: int, why: bool = True) -> None:
    """Raise MatchError where a rule matched another number of ops of these than it expects."""
    expect, missing = rule.expect, missing_tensors(graphs, rule.match)
    if missing and is_recipe(rule.author.rule):  # a tensor that its call names, whatever is matched
        raise MatchError(missing.strip())
    if count < expect.min or (expect.max is not None and count > expect.max):
        text = f"matched {count or 'nothing'}, expected {expect}"
        if count:
            do = "widen" if count < expect.min else "narrow"
            raise MatchError(f'{text}; {do} the match, or write "expect": {count}')
        if why:
            ops = texts(rule.match.op or ())
            lacks = why_recipe_finds_nothing(rule.author.rule, ops, graphs)
            text += f"\n  {lacks}" if lacks else f"\n{explain(graphs, rule.match)}"
        raise MatchError(text)
    for op in unknown_types(graphs, rule.match):
        near = did_you_mean(op, opdefs.op_types())
        raise MatchError(f"neither TensorFlow nor the model has an op type {op!r}{near}")
    if missing and expect.min:
        raise MatchError(missing.strip())


# The report.


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
