"""What flows back through ops, in words: the rules that are at them, or their own gradients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphpatch import opdefs
from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import OP_BY_OP
from graphpatch.differentiation.flow import override_key
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import CALLS
from graphpatch.graph.provenance import in_model
from graphpatch.graph.record import Author, labels
from graphpatch.names import OpKey


def rules_at(
    graph: Graph, names: Mapping[Author, str] | None = None
) -> dict[OpKey, dict[str, str]]:
    """Return for each op that a rule was at the rules in their order, and what each does in words.

    `names` is what rules are called, where this is not the only graph that is told of.
    """
    patches, rules = provenance.patches(graph), graph.library.rules
    names = labels(rules) if names is None else names
    words = [(names[rule], patch_in_words(patches.get(rule.id))) for rule in rules]
    places_by_op: dict[OpKey, tuple[int, ...]] = {}
    for body in graph.bodies:
        for index, record in body.touched().items():
            if record.is_added:
                op, places = record.patched, record.rules[:1]
            else:
                op, places = in_model(Node(body, index)).name if record.keys else "", record.keys
            if op:
                before = places_by_op.setdefault((body.label, op), places)
                if before != places:
                    places_by_op[body.label, op] = tuple({*before, *places})
    # A place beyond the words is of a rule whose record is gone.
    rules_of = {
        places: dict(words[place] for place in sorted(places) if place < len(words))
        for places in set(places_by_op.values())
    }
    return {op: rules_of[places] for op, places in places_by_op.items() if rules_of[places]}


def ops_before_rules(body: Body) -> list[str]:
    """Return the ops of the model that the ops read which rules added to a body."""
    added = (node for node in provenance.touched(body) if provenance.is_added(node))
    read = (body.producer(text) for node in added for text in node.data_inputs)
    return list(dict.fromkeys(in_model(node).name for node in read if node is not None))


def patch_in_words(patch: Mapping[str, Any] | None) -> str:
    """Return a patch in words: `guided_relu`, `filter_gradient clip(min=-1, max=1) at inputs`."""
    if not patch:
        return "changed"
    [(kind, value), *options] = patch.items()  # as rules are written: the kind first
    words = _in_text(value)
    words = words if kind == "override_gradient" else f"{kind} {words}".rstrip()
    return words + "".join(f" {key} {_in_text(option)}" for key, option in options)


def _in_text(value: Any) -> str:
    if value is True or isinstance(value, str):
        return "" if value is True else value
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, content),) = value.items()
        if not isinstance(content, Mapping):
            return f"{name} {_in_text(content)}"
        return f"{name}({', '.join(f'{key}={_in_text(item)}' for key, item in content.items())})"
    return json.dumps(value)


def gradient_state(node: Node) -> dict[str, str]:
    """Say what flows back through an op: {"state": ..., "key": the override, where there is one}.

    A function of ours is named beside its key: {"function": the gradient function}. `gives` is
    `none`, `zero` or `error` where that is all that TensorFlow's default gives. The state is
    `overridden`; or, of the op type's own gradient, `default`, `none` (registered as not
    differentiable), `missing` (LookupError), `function` (that of its body), `unknown`.
    """
    key = override_key(node)
    if key is not None and (node.opdef is not None or provenance.record(node) is None):
        function = node.body.library.gradients.get(node.op)
        return {"state": "overridden", "key": key, **({"function": function} if function else {})}
    state = type_gradient(node.opdef)
    raised = "error" if flow.refused(node, node.op) else ""
    gives = raised or flow.gives(node.op) if state == "default" else ""
    return {"state": state, **({"gives": gives} if gives else {})}


def type_gradient(known: opdefs.OpDef | None) -> str:
    """Return the state of an op type's own gradient, as `gradient` names it."""
    if known is None:
        return "unknown"
    if known.known_to == "library" or known.name in OP_BY_OP | CALLS:
        return "function"
    return {"registered": "default"}.get(known.gradient, known.gradient)
