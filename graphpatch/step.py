"""One rule on the graphs of a model: what it matched, what it did, what that needs."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import msgspec

from graphpatch import opdefs
from graphpatch.differentiation.shapes import sizes_in_words
from graphpatch.errors import GraphpatchError, MatchError, did_you_mean
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Node
from graphpatch.graph.provenance import in_model
from graphpatch.graph.template import MARK, edit_all
from graphpatch.match.glob import texts
from graphpatch.match.misses import explain, leaves_out_none, missing_tensors, unknown_types
from graphpatch.match.select import MatchedOps, find
from graphpatch.patches.reach import (
    bodies,
    named_now,
    refuse_hidden,
    refuse_shadowed,
    why_stopped,
)
from graphpatch.patches.target import (
    Target,
    refuse_ambiguous,
    refuse_malformed,
    target_of_match,
)
from graphpatch.recipe_notes import why_recipe_finds_nothing
from graphpatch.recipes import is_recipe
from graphpatch.rules import Rule
from graphpatch.table import and_more

FEWEST_ALIKE = 8  # ops from which on it pays to look for those that are alike


class RuleResult(msgspec.Struct, frozen=True):
    """What one rule did. `idle` and `unchanged` say why not: of single ops, of whole graphs."""

    rule: str
    matches: list[dict[str, Any]] = msgspec.field(default_factory=list)
    emit: dict[str, None] = msgspec.field(default_factory=dict)
    notes: dict[str, None] = msgspec.field(default_factory=dict)
    session: dict[str, None] = msgspec.field(default_factory=dict)
    tape: dict[str, None] = msgspec.field(default_factory=dict)
    idle: list[str] = msgspec.field(default_factory=list)
    unchanged: list[str] = msgspec.field(default_factory=list)

    def note(self, *texts: str) -> None:
        """Say something once."""
        self.notes.update(dict.fromkeys(texts))

    def collect(self, editor: Editor) -> None:
        """Take over what an editor has to say."""
        self.note(*editor.notes)
        self.emit.update(editor.carriers)
        self.session.update(editor.session)
        self.tape.update(editor.tape)
        self.idle.extend(editor.idle)

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
    targets: list[Target]


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
    targets = []
    for match in matched.kept:
        targets.append(target_of_match(match.nodes, match.inputs, match.tensors))
        if match.orders:
            refuse_ambiguous(rule.patch.formulas(targets[-1]), targets[-1], match.orders)
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
    editor = Editor(graph, rule.author, known={} if known is None else known)
    if targets:
        _patch_targets(rule, targets, editor)
    step.collect(editor)
    step.note(*_type_notes(rule), *left_out)


@contextlib.contextmanager
def naming_rule(rule: Rule) -> Iterator[None]:
    """Let errors in here begin with the name of the rule."""
    try:
        yield
    except GraphpatchError as error:
        raise type(error)(f"rule {rule.author.rule!r}: {error}") from error


def _patch_targets(rule: Rule, targets: Sequence[Target], editor: Editor) -> None:
    nodes = [target.last for target in targets]
    if opened := [text for target in targets for text, _ in target.opened]:
        own = "what flows back from there keeps its own gradient"
        editor.note(f"rule {rule.author.rule!r}: {opened[0]}{_also(opened)}; {own}")
    for text in () if rule.as_one else rule.patch.notes(nodes):
        editor.note(text)
    if rule.patch.takes_all:
        rule.patch.rewrite_all(nodes, editor)
        return
    for target in targets if rule.as_one else _edit_alike(rule, targets, editor):
        editor.patched = target.last.name
        rule.patch.rewrite(target, editor)


def _edit_alike(rule: Rule, targets: Sequence[Target], editor: Editor) -> Sequence[Target]:
    """Patch the ops that the patch tells apart by their form alone, and return the others.

    They are ops of the main graph of a file, outside of v1 loops and branches.
    """
    around, patch, body = editor.graph.around, rule.patch, targets[0].last.body
    if around.is_object_based or around.is_exported or not body.is_main:
        return targets
    is_alike = patch.looks_at_op_alone and len(targets) >= FEWEST_ALIKE
    if not is_alike or MARK.search(f"{rule.author.rule}{patch!r}".encode()):
        return targets  # or what the rule writes could be taken for a stand-in
    inside = bodies(editor).in_control_flow(body)
    nodes = [target.last for target in targets]
    alike = [node for node in nodes if node.body is body and node.index not in inside]
    unlike = edit_all(alike, lambda node, own: patch.rewrite(Target.of(node), own), editor)
    edited = {node.index for node in alike if node not in unlike}
    return [t for t in targets if t.last.index not in edited or t.last.body is not body]


def listed_matches(
    matched: MatchedOps, tags: str | None, with_reads: bool = True, whole: bool = False
) -> list[dict[str, Any]]:
    """Return what was matched, as the report lists it: the op, with the captures of a pattern.

    `with_reads`: and what the match reads from outside, which a formula calls x0, x1, ... Of a
    match as one op (`whole`) that stands with its last op alone.
    """
    by_op = {node: match for match in matched.kept for node in match.patched}
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
    from graphpatch.match.pattern.syntax import type_notes  # here: it brings the parser

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
