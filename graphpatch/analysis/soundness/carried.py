"""The formulas that a patched graph carries, as its rules tell them: which op has which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphpatch.analysis.rule_words import words
from graphpatch.analysis.soundness.joined import input_of, joined, passed, reads_of
from graphpatch.errors import GraphpatchError
from graphpatch.gradients.attach import is_guard
from graphpatch.gradients.fits import signature
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import Computed, Named, Written, from_key, parse
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.origin import origin
from graphpatch.patches import KINDS

MOVED = "/forward"


@dataclass(frozen=True, eq=False)
class Carried:
    """An op that has the gradient of a formula: by a function, a construction, or its key alone.

    `computed` is None where no formula of ours says what flows back, and `why` tells that. Of a
    construction, `reads` are the tensors that the formula calls x0, x1, ..., `moved` is the op
    whose place it has taken, and `gives` the tensor of it that is given on. `counts_as` is a
    formula of these that TensorFlow differentiates, where the rule tells one, and no gradient.
    """

    node: Node
    label: str
    function: str
    computed: Computed | None
    attrs: Mapping[str, Any]
    why: str = ""
    reads: tuple[str, ...] = ()
    moved: Node | None = None
    gives: str = ""
    counts_as: Formula | None = None
    op_type: str = ""  # of the op whose gradient it is; nothing for a match as one op


def carried(graph: Graph) -> Iterator[Carried]:
    """Each op of a graph that carries a gradient of ours."""
    rules = origin(graph).get("rules", {})
    for body in graph.bodies:
        for node in () if body.is_ours else provenance.touched(body):
            function = graph.library.gradients.get(node.op, "")
            if function and not _is(node, "enclosed") and not is_guard(_key(node)):
                yield _by_function(node, function, rules)
            elif not function and (computed := _by_key(node)) is not None:
                yield Carried(node, computed.key, "", computed, _attrs(node), op_type=node.op)
            elif not function and is_join(node):
                yield from _by_construction(node, rules)


def is_join(node: Node) -> bool:
    """Whether an op gives one tensor on, and its gradient to another."""
    return node.op == "Select" and _key(node) == "AddN" and is_added(node)


def is_added(node: Node) -> bool:
    """Whether a rule put an op there."""
    return _is(node, "added")


def _is(node: Node, did: str) -> bool:
    return bool(provenance.of_kind(node, did))


def _by_key(node: Node) -> Computed | None:
    return from_key(_key(node))


def _key(node: Node) -> str:
    value = node.attr(OVERRIDE)
    return "" if value is None else value.s.decode(errors="backslashreplace")


def _by_construction(node: Node, rules: Mapping[str, Any]) -> Iterator[Carried]:
    """The gradient of a construction, where a rule tells what flows back."""
    patch = rule_of(node, rules)
    kind = kind_of(patch)
    if patch is None or kind is None:
        return
    gives, label = stopped(node), words(patch)
    moved = None if gives is None else node.body.producer(gives)
    if gives is None or moved is None:
        why = "its Select does not give on what a StopGradient reads"
        yield Carried(node, label, "", None, {}, why)
        return
    try:
        found = _constructed(node, moved, patch, kind, rules)
        yield replace(found, label=label, moved=moved, gives=gives)
    except GraphpatchError as error:
        yield Carried(node, label, "", None, {}, str(error))


def _constructed(
    node: Node, moved: Node, patch: Mapping[str, Any], kind: str, rules: Mapping[str, Any]
) -> Carried:
    """What its rule says that flows back. Raises GraphpatchError where that cannot be told."""
    if KINDS[kind].verified == "join":
        found = joined(node, moved, patch, kind, rules)
        formula = found.counts_as
        return Carried(
            node, "", "", found.computed, _attrs(moved), "", found.reads, counts_as=formula
        )
    gradient = parse(patch[kind])
    if not isinstance(gradient, Named | Written):
        return Carried(node, "", "", None, {}, "no formula of a rule is told for it")
    told = reads_of(node)
    if told is None:
        computed, reads = gradient.for_op(moved.op), tuple(moved.data_inputs)
        return Carried(node, "", "", computed, _attrs(moved), "", reads, op_type=moved.op)
    return Carried(node, "", "", gradient, {}, "", tuple(told))


def stopped(node: Node) -> str | None:
    """The tensor that a Select gives on, behind a StopGradient."""
    stop = node.body.producer(node.data_inputs[1])
    if stop is None or stop.op != "StopGradient":
        return None
    return stop.data_inputs[0]


def rule_of(node: Node, rules: Mapping[str, Any]) -> Any:
    """The patch of the rule that put an op there, of those that the file tells."""
    edits = provenance.entries(node)
    return next((rules[edit.id] for edit in edits if edit.id in rules), None)


def kind_of(patch: Mapping[str, Any] | None) -> str | None:
    """The kind of a patch, of those whose gradients can be compared."""
    return next((kind for kind in patch or () if kind in KINDS and KINDS[kind].verified), None)


def _by_function(node: Node, function: str, rules: Mapping[str, Any]) -> Carried:
    patch = rule_of(node, rules)
    label = words(patch)
    kind, moved = kind_of(patch), _moved(node)
    if patch is None or kind is None:
        return Carried(node, label, function, None, {}, "no formula of a rule is told for it")
    if kind == "straight_through" and moved is not None:
        texts = passed(len(moved.data_inputs), input_of(patch[kind]), "dy")
        return Carried(node, label, function, Written(Formula.parse(texts)), {})
    if KINDS[kind].verified == "join":
        why = f"{kind} that a function carries has no formula of dy"
        return Carried(node, label, function, None, {}, why)
    try:
        gradient = parse(patch[kind])
    except GraphpatchError as error:
        return Carried(node, label, function, None, {}, str(error))
    if not isinstance(gradient, Named | Written):
        return Carried(
            node, label, function, None, {}, "it is no formula, but code that was traced"
        )
    if moved is None or kind != "override_gradient":
        return Carried(node, label, function, gradient, {})
    op_type = _type(moved)
    attrs = _attrs(moved)
    return Carried(node, label, function, gradient.for_op(op_type), attrs, op_type=op_type)


def _moved(node: Node) -> Node | None:
    """The op whose place a call has taken."""
    name = f"{node.name}{MOVED}"
    return node.body.node(name) if name in node.body.by_name else None


def _type(node: Node) -> str:
    """Its op type before a rule put it into a function."""
    return provenance.original_type(node)


def _attrs(node: Node) -> Mapping[str, Any]:
    return dict(signature(node).attrs)
