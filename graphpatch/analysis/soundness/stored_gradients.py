"""The formulas that a patched graph carries, as its rules tell them: which op has which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphpatch.analysis.rule_words import patch_in_words
from graphpatch.analysis.soundness.joined import (
    FileRules,
    counted_by_call,
    formulas_passing,
    input_of,
    joined_gradient,
    key_of,
    reads_of,
)
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import GraphpatchError
from graphpatch.gradients.attach import is_guard
from graphpatch.gradients.fits import signature, windows_of
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    Computed,
    InlineFormula,
    LibraryGradient,
    from_key,
    parse_gradient,
)
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.graph import Graph
from graphpatch.match.spec import WHOLE
from graphpatch.patches import KINDS

MOVED = "/forward"


@dataclass(frozen=True, eq=False)
class StoredGradient:
    """An op that has the gradient of a formula: by a function, a construction, or its key alone.

    `computed` is None where no formula of ours says what flows back, and `why` tells that. Of a
    construction, `reads` are the tensors that the formula calls x0, x1, ..., `moved` is the op
    whose place it has taken, and `gives` the tensor of it that is given on. `counts_as` is a
    formula of these that TensorFlow differentiates, where the rule tells one, and no gradient.
    `root` is the tensor that gets the gradient, where a function passes it on, and no Select.
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
    root: str = ""
    op_type: str = ""  # of the op whose gradient it is; nothing for a match as one op


def stored_gradients(graph: Graph) -> Iterator[StoredGradient]:
    """Each op of a graph that carries a gradient of ours."""
    rules = FileRules(graph)
    for body in graph.bodies:
        for node in () if body.is_ours else provenance.touched(body):
            function = graph.library.gradients.get(node.op, "")
            if is_call(node):
                yield from _by_call(node, function, rules)
            elif not function and (computed := from_key(key_of(node))) is not None:
                yield StoredGradient(
                    node, computed.key, "", computed, _own_attrs(node), op_type=node.op
                )
            elif not function and is_join(node):
                yield from _by_construction(node, rules)


def is_join(node: Node) -> bool:
    """Whether an op gives one tensor on, and its gradient to another."""
    return node.op == "Select" and key_of(node) == "AddN" and provenance.is_added(node)


def is_call(node: Node) -> bool:
    """Whether an op gives the outputs of another on, with the gradient of a function."""
    is_ours = node.op in node.body.library.gradients and provenance.original_type(node) == node.op
    return is_ours and not is_guard(key_of(node))


def _by_construction(node: Node, rules: FileRules) -> Iterator[StoredGradient]:
    """The gradient of a construction, where a rule tells what flows back."""
    patch = patch_of(node, rules)
    kind = kind_of(patch)
    if patch is None or kind is None:
        return
    gives, label = stopped_tensor(node), patch_in_words(patch)
    moved = None if gives is None else node.body.producer(gives)
    if gives is None or moved is None:
        why = "its Select does not pass on what a StopGradient reads"
        yield StoredGradient(node, label, "", None, {}, why)
        return
    try:
        found = _gradient_by_construction(node, moved, patch, kind, rules)
        yield replace(found, label=label, moved=moved, gives=gives)
    except GraphpatchError as error:
        yield StoredGradient(node, label, "", None, {}, str(error))


def _gradient_by_construction(
    node: Node, moved: Node, patch: Mapping[str, Any], kind: str, rules: FileRules
) -> StoredGradient:
    """What its rule says that flows back. Raises GraphpatchError where that cannot be told."""
    if KINDS[kind].verified == "join":
        found = joined_gradient(node, moved, patch, kind, rules)
        formula = found.counts_as
        return StoredGradient(
            node, "", "", found.computed, _own_attrs(moved), "", found.reads, counts_as=formula
        )
    gradient = parse_gradient(patch[kind])
    if not isinstance(gradient, LibraryGradient | InlineFormula):
        return StoredGradient(node, "", "", None, {}, "this kind has no formula to compare")
    told = reads_of(node)
    if not told:
        computed, reads = gradient.for_op(moved.op), tuple(moved.data_inputs)
        return StoredGradient(
            node, "", "", computed, _own_attrs(moved), "", reads, op_type=moved.op
        )
    return StoredGradient(node, "", "", gradient, windows_of(_match_ops(moved)), "", told)


def stopped_tensor(node: Node, output: int = 0) -> str | None:
    """The tensor that a Select, or a call, gives on as this output, behind a StopGradient."""
    own = len(node.outputs or ())
    place = 1 if is_join(node) else len(node.data_inputs) - own + output
    stop = node.body.producer(node.data_inputs[place])
    if stop is None or stop.op != "StopGradient":
        return None
    return stop.data_inputs[0]


def patch_of(node: Node, rules: Mapping[str, Any]) -> Any:
    """The patch of the rule that put an op there, of those that the file tells."""
    touched = provenance.rules_that_touched(node)
    return next((rules[rule.id] for rule in touched if rule.id in rules), None)


def kind_of(patch: Mapping[str, Any] | None) -> str | None:
    """The kind of a patch, of those whose gradients can be compared."""
    return next((kind for kind in patch or () if kind in KINDS and KINDS[kind].verified), None)


def _by_call(node: Node, function: str, rules: FileRules) -> Iterator[StoredGradient]:
    """The gradient of a function; and of a join, to which formula it passes it on."""
    patch = patch_of(node, rules)
    kind = kind_of(patch)
    label = patch_in_words(patch)
    if kind is not None and kind != "filter_gradient" and _is_filter(node):
        cut = f"{label}, where no gradient comes to the op"
        yield StoredGradient(
            node, cut, function, InlineFormula(Formula.parse("zeros_like(dy)")), {}
        )
        return
    is_own = kind == "straight_through" and patch.get("on") != WHOLE
    if kind is None or KINDS[kind].verified != "join" or is_own:
        yield _gradient_by_function(node, function, rules)
        return
    yield StoredGradient(
        node, f"{label}, what its function passes on", function, _summed_upstream(node), {}
    )
    if kind == "backward_as":  # what it is passed on to, `clean_path` asks
        return
    yield from _counted_as(node, patch, kind, rules, label)


def _is_filter(node: Node) -> bool:
    """Whether a call gives on what it reads: before an op that gets no gradient, or as a filter."""
    return len(node.data_inputs) == len(node.outputs or ())


def _summed_upstream(node: Node) -> Computed:
    """Of each output that carries a gradient dy, summed to the shape that it is repeated from."""
    outputs = [n for n, arg in enumerate(node.outputs or ()) if arg.dtype in DIFFERENTIABLE]
    return InlineFormula(Formula.parse([f"sum_like(dy{o}, x{n})" for n, o in enumerate(outputs)]))


def _counted_as(
    node: Node, patch: Mapping[str, Any], kind: str, rules: FileRules, label: str
) -> Iterator[StoredGradient]:
    """What flows from the tensor that a function passes the gradient to."""
    gives, roots = stopped_tensor(node), counted_by_call(node)
    moved = None if gives is None else node.body.producer(gives)
    if gives is None or moved is None or len(roots) != 1:
        yield StoredGradient(
            node, label, "", None, {}, "its call does not pass on what a StopGradient reads"
        )
        return
    try:
        found = _gradient_by_construction(node, moved, patch, kind, rules)
        yield replace(found, label=label, moved=moved, gives=gives, root=roots[0])
    except GraphpatchError as error:
        yield StoredGradient(node, label, "", None, {}, str(error))


def _gradient_by_function(node: Node, function: str, rules: Mapping[str, Any]) -> StoredGradient:
    patch = patch_of(node, rules)
    label = patch_in_words(patch)
    kind, moved = kind_of(patch), _replaced_op(node)
    if patch is None or kind is None:
        return StoredGradient(
            node, label, function, None, {}, "this kind has no formula to compare"
        )
    if kind == "straight_through":
        texts = formulas_passing(
            len(moved.data_inputs) if moved else 1, input_of(patch[kind]), "dy"
        )
        return StoredGradient(node, label, function, InlineFormula(Formula.parse(texts)), {})
    try:
        gradient = parse_gradient(patch[kind])
    except GraphpatchError as error:
        return StoredGradient(node, label, function, None, {}, str(error))
    if not isinstance(gradient, LibraryGradient | InlineFormula):
        return StoredGradient(node, label, function, None, {}, "it is traced code, not a formula")
    if moved is None or kind != "override_gradient":
        return StoredGradient(node, label, function, gradient, {})
    op_type = provenance.original_type(moved)
    attrs = _own_attrs(moved)
    if patch.get("on") == "match":
        return StoredGradient(node, label, function, gradient, windows_of(_match_ops(moved)))
    return StoredGradient(node, label, function, gradient.for_op(op_type), attrs, op_type=op_type)


def _replaced_op(node: Node) -> Node | None:
    """The op whose place a call has taken."""
    name = f"{node.name}{MOVED}"
    return node.body.node(name) if name in node.body.by_name else None


def _match_ops(last: Node) -> list[Node]:
    """The ops of a match as one op: its last op, and those that no gradient reaches any more."""
    found: dict[str, Node] = {}
    waiting = [last]
    while waiting:
        node = waiting.pop()
        if node.name not in found and (node is last or provenance.shadow(node)):
            found[node.name] = node
            producers = (node.body.producer(text) for text in node.data_inputs)
            waiting += [one for one in producers if one is not None]
    return list(found.values())


def _own_attrs(node: Node) -> Mapping[str, Any]:
    return dict(signature(node).attrs)
