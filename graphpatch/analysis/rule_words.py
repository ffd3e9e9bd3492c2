"""Which rules are at which ops of a graph, what they do in words, and what is wrong there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edits import Added, AttrSet, Author, Edit
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import name_in_model
from graphpatch.graph.rule_labels import rule_labels
from graphpatch.names import OpKey
from graphpatch.rule_spec import OPTIONS

BESIDE = (*OPTIONS, "on")  # the keys of a patch that are no kind


def rules_at(
    graph: Graph, labels: Mapping[Author, str] | None = None
) -> dict[OpKey, dict[str, str]]:
    """For each op that a rule was at: the rules, in their order, and what each does in words.

    `labels` is what rules are called, where this is not the only graph that is told of.
    """
    patches = provenance.patches(graph)
    labels = rule_labels([graph]) if labels is None else labels
    order = {key: place for place, key in enumerate(patches)}
    found: dict[OpKey, dict[str, str]] = {}
    ids: dict[OpKey, dict[str, int]] = {}
    for body in graph.bodies:
        for node in provenance.touched(body):
            for edit, op in patched_ops(node):
                place, label = (body.label, op), labels[Author(edit.rule, edit.id)]
                found.setdefault(place, {})[label] = patch_in_words(patches.get(edit.id))
                ids.setdefault(place, {})[label] = order.get(edit.id, 0)
    return {
        place: dict(sorted(rules.items(), key=lambda rule: ids[place][rule[0]]))
        for place, rules in found.items()
    }


def patched_ops(node: Node) -> Iterator[tuple[Edit, str]]:
    """The edits of a node that change a gradient, each with the op whose gradient that is."""
    for edit in provenance.entries(node):
        if isinstance(edit, AttrSet) and edit.attr == OVERRIDE:
            yield edit, name_in_model(node)
        elif isinstance(edit, Added) and edit.patched:
            yield edit, edit.patched


def ops_before_rules(body: Body) -> list[str]:
    """The ops of the model that the ops read which rules added to a body."""
    added = (
        node
        for node in provenance.touched(body)
        if any(isinstance(edit, Added) for edit in provenance.entries(node))
    )
    read = (body.producer(text) for node in added for text in node.data_inputs)
    return list(dict.fromkeys(name_in_model(one) for one in read if one is not None))


def patch_in_words(patch: Mapping[str, Any] | None) -> str:
    """A patch in words: `guided_relu`, `filter_gradient clip(min=-1, max=1) at inputs`."""
    if not patch:
        return "changed"
    kind = next((key for key in patch if key not in BESIDE), None)
    if kind is None:
        return "changed"
    told = _in_text(patch[kind])
    told = told if kind == "override_gradient" else f"{kind} {told}".rstrip()
    options = [f" {key} {_in_text(patch[key])}" for key in BESIDE if key in patch]
    return told + "".join(options)


def _in_text(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, given),) = value.items()
        if isinstance(given, Mapping):
            return f"{name}({', '.join(f'{key}={_in_text(one)}' for key, one in given.items())})"
        return f"{name} {_in_text(given)}"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class StructureFault:
    """One thing that is wrong; `op` is the op as it was called before any rule."""

    kind: str
    body: str
    op: str
    says: str

    @property
    def key(self) -> tuple[str, str, str]:
        """By what a fault of the original is known again, whatever rules renamed."""
        return self.kind, self.body, self.op

    def document(self) -> dict[str, Any]:
        """The fault as `verify --json` prints it."""
        return {"kind": self.kind, "body": self.body, "op": self.op, "says": self.says}


def fault_at(kind: str, node: Node, says: str) -> StructureFault:
    """A fault of one op."""
    return StructureFault(kind, node.body.label, name_in_model(node), f"{node}: {says}")


def split_new_faults(
    before: Iterable[StructureFault], after: Iterable[StructureFault]
) -> Mapping[str, list[StructureFault]]:
    """The faults of a patched graph: `new` ones, and those that its original has `too`."""
    known = {fault.key for fault in before}
    found: dict[str, list[StructureFault]] = {"new": [], "too": []}
    for fault in after:
        found["too" if fault.key in known else "new"].append(fault)
    return found
