"""Where an op is, whether a gradient comes to it, and refusals where none does or none can."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphpatch.differentiation.flow import is_carrier, override_key
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import BOUNDARIES, ENTERS
from graphpatch.graph.walk import first_producers
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.target import Target

# Ops that formulas and traced functions are made of, and that have no gradient in a function that a
# Session differentiates as a whole.
UNKNOWN_TO_FUNCTIONS = frozenset(
    {"Elu", "EnsureShape", "Erf", "IsNan", "Round", "SelectV2", "Softplus"}
)
MAIN_ONLY = '"body": "main" leaves functions out'


def refuse_without_gradient(node: Node, editor: RuleEditor) -> None:
    """Raise PatchError where no gradient comes to an op in a Session.

    A TF2 SavedModel is differentiated op by op on a tape; there the report says so.
    """
    around, label = editor.graph.around, node.body.label
    if not around.is_object_based:
        editor.cached("notes on functions", lambda: _note_functions(editor))
    elif call := editor.bodies.called_as_ops.get(label):
        raise PatchError(
            f"{node}: {call} calls the function as an op of its own, and a tape, after "
            f"tf.saved_model.load, does not look into it; inline the function into the main graph "
            f"first; {MAIN_ONLY}"
        )
    reason = editor.bodies.why_no_gradient(node)
    if not reason or around.is_exported:
        return
    if not around.is_object_based:
        raise PatchError(f"{node}: {reason}; {MAIN_ONLY}")
    editor.report.note(
        f"function {label}: the new gradient works with GradientTape, after "
        f"tf.saved_model.load, and not in a Session: {reason}"
    )


def _note_functions(editor: RuleEditor) -> None:
    """Say which called functions hold ops of which TensorFlow has no gradient there."""
    for body in editor.graph.bodies:
        op_type = next((op for op in sorted(UNKNOWN_TO_FUNCTIONS) if body.by_type.get(op)), None)
        if op_type is None or body.is_main:
            continue
        node = Node(body, body.by_type[op_type][0])
        if editor.is_differentiated_whole(node):
            editor.report.note(
                f"{editor.bodies.place_of(node).ignoring} calls function {body.label}, which a "
                f"Session differentiates as a whole, and TensorFlow has no gradient of {op_type} "
                f"there ({node.name}): a gradient that comes through this call fails with "
                f"NotFoundError, in the original too where it is not found to be zero before"
            )


def check_together(target: Target, editor: RuleEditor) -> None:
    """Raise PatchError where the ops of a target cannot count as one, or no gradient comes."""
    for node in target.nodes:
        refuse_boundary(node)
        refuse_carried(node)
    refuse_without_gradient(target.last, editor)


def refuse_boundary(node: Node) -> None:
    """Raise PatchError for an op whose inputs and outputs are not in one place of a loop."""
    if node.op in BOUNDARIES:
        raise PatchError(
            f"{node} leads into or out of a loop or branch, and a function cannot stand for it; "
            f"filter_gradient changes what flows back through a tensor inside or outside"
        )


def refuse_carried(node: Node) -> None:
    """Raise PatchError for an op that has a gradient of ours in functions already."""
    if is_carrier(node):
        rules = {author.rule for author in provenance.rules_that_touched(node)}
        raise PatchError(
            f"{node} has the gradient that rule {', '.join(map(repr, sorted(rules)))} gave it; "
            f"let one of the rules leave it out"
        )


def shadow_behind(target: Target, editor: RuleEditor) -> None:
    """Write down that no gradient reaches the ops before the last, which is written as it moves."""
    for node in target.nodes:
        if node != target.last and node.data_inputs:
            editor.shadow(node)


def refuse_shadowed(nodes: Iterable[Node], goes_first: bool) -> None:
    """Raise PatchError for the first op that an earlier rule put behind a gradient of its own.

    `goes_first`: this rule and that one go together, if this one comes first.
    """
    for node in _may_be_patched(nodes):
        if by := provenance.shadow(node):
            first = "put this rule before that one, or " if goes_first else ""
            raise PatchError(
                f"no gradient reaches {node} any more, since rule {by!r} gave its outputs another "
                f'one; {first}leave the op out of one of the two rules: here "taken": false, which '
                f'leaves out what earlier rules patched, or in that rule "not": {{"name": ...}}'
            )


def named_now(nodes: Sequence[Node], named: Collection[str]) -> list[Node]:
    """Return the op that has the name of each op of the model now, and so gives its tensors.

    An op that is `named` is meant itself.
    """
    now = {node: _named_now(node) for node in _may_be_patched(nodes) if node.name not in named}
    return [now.get(node, node) for node in nodes]


def _named_now(node: Node) -> Node:
    return Node(node.body, node.body.by_name.get(provenance.in_model(node).name, node.index))


def why_stopped(nodes: Iterable[Node]) -> list[str]:
    """Say of ops behind whose outputs an earlier rule put a StopGradient why nothing flows."""
    reasons = []
    for node in _may_be_patched(nodes):
        stop = _named_now(node)  # which has the name that the op had
        is_stop = stop.op == "StopGradient" and provenance.is_added(stop)
        if is_stop and len(node.outputs or ()) == 1:
            by = next(iter(provenance.rules_that_patched(stop)), provenance.LOST)
            reasons.append(f"rule {by.rule!r} stops what flows back to {node}")
    return reasons


def _may_be_patched(nodes: Iterable[Node]) -> Iterator[Node]:
    """Return the nodes on which something may be written down; quick where there is nothing."""
    return (node for node in nodes if node.body.may_be_signed(node.index))


def refuse_hidden(nodes: Iterable[Node]) -> None:
    """Raise PatchError for an op that no gradient reaches, as an IdentityN leads it past.

    The message names the IdentityN, and the rule that takes its key off.
    """
    hidden: dict[Body, dict[int, int]] = {}
    for node in nodes:
        body = node.body
        if body not in hidden:
            hidden[body] = hidden_ops(body)
        if node.index not in hidden[body]:
            continue
        by = Node(body, hidden[body][node.index])
        match = {"op": "IdentityN", "name": by.name}
        if not body.is_main:
            match["body"] = body.label  # functions may have ops of one name
        first = json.dumps({"match": match, "patch": {"override_gradient": "default"}})
        raise PatchError(
            f"no gradient reaches {node}: {by} has a custom gradient (key {override_key(by)}, from "
            f"tf.custom_gradient), which leads past it to what the wrapped function was given, so "
            f"this patch would never fire; put this rule before it, which takes the key off: "
            f"{first}; or patch {by.name} itself"
        )


def comes_from_constant(node: Node | None) -> bool:
    """Return whether a tensor that this op gives is a constant of the file, passed on unchanged."""
    ops = (producer.op for producer in first_producers(node))
    return next((op for op in ops if op not in {"Identity", *ENTERS}), "") == "Const"
