"""One rule on the graphs of a model: what it matched, what it did, what that needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import msgspec

from graphpatch import opdefs
from graphpatch.differentiation.shapes import sizes_in_words
from graphpatch.errors import GraphpatchError, MatchError, PatchError, did_you_mean
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import name_in_model, original_type
from graphpatch.graph.template import MARK, edit_all
from graphpatch.match.glob import texts
from graphpatch.match.misses import explain, missing_tensors, unknown_types
from graphpatch.match.select import MatchedOps, find
from graphpatch.match.spec import WHOLE
from graphpatch.patches.group import group_of_match, refuse_ambiguous
from graphpatch.patches.op_args import refuse_all_malformed
from graphpatch.patches.reach import (
    all_in_control_flow,
    named_now,
    refuse_all_shadowed,
    refuse_hidden,
    why_stopped,
)
from graphpatch.recipe_notes import why_recipe_finds_nothing
from graphpatch.rules import Rule
from graphpatch.table import and_more

FEWEST_ALIKE = 8  # ops from which on it pays to look for those that are alike


class RuleResult(msgspec.Struct, frozen=True):
    """What one rule did. The fields are those of the report."""

    rule: str
    matches: list[dict[str, Any]] = msgspec.field(default_factory=list)
    emit: dict[str, None] = msgspec.field(default_factory=dict)
    notes: dict[str, None] = msgspec.field(default_factory=dict)
    session: dict[str, None] = msgspec.field(default_factory=dict)
    tape: dict[str, None] = msgspec.field(default_factory=dict)


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
) -> list[tuple[ModelGraph, MatchedOps]]:
    """Return what a rule matches in each graph, none of which is changed.

    Raises what `take` raises, as far as that can be known before anything is patched; without
    `why`, a rule that matches nothing is not explained. `known` is what was found in each graph,
    where that was asked before.
    """
    with naming_rule(rule):
        if known is None:
            known = [find(graph, rule.match, rule.on) for graph in graphs]
        by_graph = list(zip(graphs, known, strict=True))
        check_expected(rule, graphs, sum(matched.count for _, matched in by_graph), why)
        nodes = [node for _, matched in by_graph for node in patched_ops(rule, matched)]
        refuse_all_malformed(nodes)
        if not rule.patch.takes_all:
            refuse_all_shadowed(nodes, goes_first=rule.patch.takes_side)
        for _, matched in by_graph:
            refuse_hidden(matched.nodes)
        if rule.on != (WHOLE,):  # which is asked about when it is known what it reads and gives
            rule.patch.check(nodes)
    return by_graph


def patched_ops(rule: Rule, matched: MatchedOps) -> list[Node]:
    """Return the ops that the patch of a rule goes to, for those that its match means.

    A patch at outputs goes behind what an earlier rule put in the place of an op.
    """
    if not rule.patch.is_at_outputs:
        return matched.nodes
    return named_now(matched.nodes, texts(rule.match.name or ()))


def patch_matched(rule: Rule, by_graph: Sequence[tuple[ModelGraph, MatchedOps]]) -> RuleResult:
    """Patch what a rule has `matched`. Where that raises, the graphs may be changed in part."""
    step = RuleResult(rule.author.rule)
    with naming_rule(rule):
        for graph, matched in by_graph:
            tag = graph.around.tags if len(by_graph) > 1 else None
            whole = rule.on == (WHOLE,)
            step.matches.extend(listed_matches(matched, tag, with_reads=whole, whole=whole))
            _patch_graph(rule, graph, matched, step)
    return step


@contextlib.contextmanager
def naming_rule(rule: Rule) -> Iterator[None]:
    """Errors in here begin with the name of the rule."""
    try:
        yield
    except GraphpatchError as error:
        raise type(error)(f"rule {rule.author.rule!r}: {error}") from error


def _patch_graph(rule: Rule, graph: ModelGraph, matched: MatchedOps, step: RuleResult) -> None:
    editor = Editor(graph, rule.author)
    step.notes.update(dict.fromkeys(unchanged_notes(rule, matched.nodes)))
    # As the ops are called before they are patched.
    dropped = list(left_out_notes(rule.author.rule, matched))
    idle = list(why_stopped(matched.nodes).values())
    if rule.on == (WHOLE,):
        _patch_whole(rule, matched, editor)
    elif matched.nodes:  # to ask what kind of patch it is takes long, where there are many rules
        _patch_nodes(rule, patched_ops(rule, matched), editor, step)
    if rule.match.pattern is not None:
        from graphpatch.match.pattern.syntax import (
            type_notes,
        )  # here: without one, no parser is needed

        for text in type_notes(rule.match.pattern):
            step.notes[f"rule {rule.author.rule!r}: {text}"] = None
    step.notes.update(dict.fromkeys(dropped))
    step.notes.update(dict.fromkeys(idle_notes(rule, [*idle, *editor.idle], len(matched.nodes))))
    _collect_notes(step, editor)


def unchanged_notes(rule: Rule, nodes: Sequence[Node]) -> list[str]:
    """That a rule changes nothing at any of these ops, where it does not."""
    why = rule.patch.idle(nodes) if nodes else ""
    return [f"rule {rule.author.rule!r} changes nothing: {why}"] if why else []


def _patch_nodes(rule: Rule, nodes: list[Node], editor: Editor, step: RuleResult) -> None:
    for text in rule.patch.notes(nodes):
        editor.note(text)
    if rule.patch.takes_all:
        rule.patch.rewrite_all(nodes, editor)
        return
    for node in _edited_alike(rule, nodes, editor):
        patch_node(rule, node, editor, step)
    _collect_notes(step, editor)


def _edited_alike(rule: Rule, nodes: Sequence[Node], editor: Editor) -> Sequence[Node]:
    """Patch the ops that the patch tells apart by their form alone, and return the others.

    These are ops of the main graph of a file, outside of v1 loops and branches.
    """
    around, patch, body = editor.graph.around, rule.patch, nodes[0].body
    if around.is_object_based or around.is_exported or not body.is_main:
        return nodes
    is_alike = patch.looks_at_op_alone
    if (
        len(nodes) < FEWEST_ALIKE
        or not is_alike
        or MARK.search(f"{rule.author.rule}{patch!r}".encode())
    ):
        return nodes  # or what the rule writes could be taken for a stand-in
    inside = all_in_control_flow(body, editor)
    alike = [node for node in nodes if node.body is body and node.index not in inside]
    unlike = set(edit_all(alike, patch.rewrite, editor)) if alike else set()
    done = set(alike) - unlike
    return [node for node in nodes if node not in done]


def patch_node(rule: Rule, node: Node, editor: Editor, step: RuleResult) -> None:
    """Patch one op, and put into the step what that needs and says."""
    editor.patched = node.name
    rule.patch.rewrite(node, editor)
    _collect_notes(step, editor)


def _collect_notes(step: RuleResult, editor: Editor) -> None:
    step.notes.update(editor.notes)
    step.session.update(editor.session)
    step.tape.update(editor.tape)
    step.emit.update(editor.carriers)


def _patch_whole(rule: Rule, matched: MatchedOps, editor: Editor) -> None:
    if not rule.patch.takes_match:
        raise PatchError(f'"on": "{WHOLE}" does not go with this kind of patch')
    # All before the first is patched: a match is of the graph as it was.
    groups = []
    for match in matched.kept:
        binding = match.binding
        groups.append(group_of_match(binding.nodes, binding.inputs, binding.tensors))
        refuse_ambiguous(rule.patch.by_input(groups[-1]), groups[-1], match.orders)
    if opened := [text for group in groups for text in group.open]:
        kept_there = "what flows back from there keeps its own gradient"
        editor.note(f"rule {rule.author.rule!r}: {opened[0]}{_also(opened)}; {kept_there}")
    for group in groups:
        editor.patched = group.last.name
        rule.patch.rewrite_whole(group, editor)


def listed_matches(
    matched: MatchedOps, tags: str | None, with_reads: bool = True, whole: bool = False
) -> list[dict[str, Any]]:
    """What was matched, as the report lists it: the op, and where a pattern has it its captures.

    `with_reads`: and what the match reads from outside, which a formula calls x0, x1, ... Of a
    match as one op (`whole`) that stands with its last op alone.
    """
    captures, reads = matched.captures(), matched.reads() if with_reads else {}
    once = {match.last for match in matched.kept} if whole else captures.keys()
    captured = {node: captures[node] for node in once}
    if not captured and tags is None:
        return [_match_document(node.body, node.index) for node in matched.nodes]
    return [
        _match_entry(node, tags, captured.get(node), reads.get(node, {})) for node in matched.nodes
    ]


def _match_document(body: Body, index: int) -> dict[str, Any]:
    node = Node(body, index)
    return {"body": body.label, "op": name_in_model(node), "type": original_type(node)}


def _match_entry(
    node: Node, tags: str | None, captures: dict[str, str] | None, reads: dict[str, Any]
) -> dict[str, Any]:
    entry = _match_document(node.body, node.index)
    if captures is not None:
        entry |= {"captures": captures, **reads}
    return entry if tags is None else {**entry, "graph": tags}


def left_out_notes(rule: str, matched: MatchedOps) -> Iterator[str]:
    """That matches were left out, and why the first was: by overlaps, and by unknown shapes."""
    if matched.dropped:
        first = matched.dropped[0]
        places = ", ".join(f"{name} is {op}" for name, op in first.binding.captures.items())
        more = _also(matched.dropped)
        yield f"rule {rule!r}: a match was left out: {places}: {first.reason}{more}"
    if matched.undecided:
        node, sizes = matched.undecided[0]
        yield (
            f"rule {rule!r} leaves out ops whose shape is not known well enough: {node} has shape "
            f"{sizes_in_words(sizes)}{_also(matched.undecided)}"
        )


def idle_notes(rule: Rule, reasons: list[str], count: int) -> list[str]:
    """That a rule means nothing on some of its `count` ops, or on all, and why on the first."""
    if not reasons:
        return []
    which = "some of its ops" if len(reasons) < count else "any of its ops"
    return [f"rule {rule.author.rule!r} means nothing on {which}: {reasons[0]}{_also(reasons)}"]


def _also(sized: Sized) -> str:
    """Return how many more there are than the first."""
    return f" ({more})" if (more := and_more(sized, 1)) else ""


def check_expected(rule: Rule, graphs: Sequence[ModelGraph], count: int, why: bool = True) -> None:
    """Raise MatchError where a rule matched another number of ops of these than it expects."""
    expect = rule.expect
    if count < expect.min or (expect.max is not None and count > expect.max):
        text = f"matched {count or 'nothing'}, expected {expect}"
        do = "widen" if count < expect.min else "narrow"
        raise MatchError(
            f'{text}; {do} the match, or write "expect": {count}'
            if count
            else f"{text}\n{_why_unmatched(rule, graphs)}"
            if why
            else text
        )
    for op in unknown_types(graphs, rule.match):
        near = did_you_mean(op, opdefs.op_types())
        raise MatchError(f"neither TensorFlow nor the model has an op type {op!r}{near}")
    missing = missing_tensors(graphs, rule.match)
    if missing and expect.min:
        raise MatchError(missing.strip())


def _why_unmatched(rule: Rule, graphs: Sequence[ModelGraph]) -> str:
    """Return why a rule matched nothing, in indented lines."""
    lacks = why_recipe_finds_nothing(rule.author.rule, texts(rule.match.op or ()), graphs)
    return f"  {lacks}" if lacks else explain(graphs, rule.match)
