"""What `graphpatch ops` says: op types with their counts, and what one op is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphpatch import names
from graphpatch.analysis.again import damage
from graphpatch.analysis.rule_words import gradient_state, rules_at
from graphpatch.differentiation.flow import override_key
from graphpatch.formats import Model
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import as_model
from graphpatch.graph.walk import outputs_there
from graphpatch.match.misses import NEAREST, elsewhere, nearest_names
from graphpatch.names import glob_test, is_glob
from graphpatch.shown import document_of


def _all_bodies(model: Model) -> Iterator[Body]:
    return (body for graph in model.graphs for body in graph.bodies)


def all_ops(model: Model) -> list[Node]:
    """Return every op of the model."""
    return [node for body in _all_bodies(model) for node in body]


def count_types(model: Model) -> dict[str, int]:
    """Return how many ops of each type there are, also in functions, most frequent first."""
    return _by_count(Counter(op for body in _all_bodies(model) for op in body.heads.ops))


def _by_count(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(slots=True)
class ModelOps:
    """How many ops of the model are of each op type, the most frequent first.

    `patched` counts, by op type, those that have another gradient than that of their type, by whose
    it is: a rule's, in words, or a key's. `by_rules` is how many ops rules added.
    """

    types: Counter[str] = field(default_factory=Counter)
    patched: dict[str, Counter[str]] = field(default_factory=dict)
    by_rules: int = 0


def count_model_ops(model: Model) -> ModelOps:
    """Count the ops of a model by the op types that they had before any rule."""
    counts = ModelOps()
    touched = {body for body in _all_bodies(model) if body.touched()}
    is_told = bool(touched) and not damage(model)  # else TensorFlow alone tells what flows back
    for graph in model.graphs:
        rules = rules_at(graph) if is_told else {}
        for body in graph.bodies:
            own: Iterable[Node] = () if body.is_ours else body
            if body in touched and not body.is_ours:
                own = [node for node in as_model(body) if not provenance.clone_of(node)]
            types: Counter[str] = Counter()
            for node in own:
                types[node.op] += 1
                at = rules.get((body.label, node.name)) if body in touched else None
                by = _by_whom(node, at)
                if by:
                    counts.patched.setdefault(node.op, Counter())[by] += 1
            counts.types.update(types)
            counts.by_rules += len(body) - types.total()
    counts.types = Counter(_by_count(counts.types))
    return counts


def _by_whom(node: Node, rules: Mapping[str, str] | None) -> str:
    """Say whose gradient an op has instead of that of its type; nothing where it has its own."""
    if rules:
        return ", then ".join(f"{words}, by rule {rule!r}" for rule, words in rules.items())
    key = override_key(node) if node.body.payload(node.index).mentions(attrs.OVERRIDE) else None
    return "" if key is None else f"overridden by {key}"


def find_ops(model: Model, wanted: tuple[str, ...]) -> tuple[list[Node], list[str]]:
    """Return the ops of these names, which may be globs or name one of the op's tensors (`relu:0`).

    What is said of a name that no op has tells the nearest ones.
    """
    nodes: list[Node] = []
    faults = []
    for text in wanted:
        outputs = outputs_there(_all_bodies(model), text) if ":" in text else ""
        if outputs:
            faults.append(f"{model.path}: there is no tensor {text!r}: {outputs}")
            continue
        op = names.op_of(text)
        if is_glob(op):
            is_meant = glob_test(op)
            named = [node for node in all_ops(model) if is_meant(node.name)]
        else:
            named = [body.node(op) for body in _all_bodies(model) if op in body.by_name]
        nodes += named
        if not named:
            faults.append(f"{model.path}: no op is named {text!r}{_did_you_mean_op(model, text)}")
    return nodes, faults


def _did_you_mean_op(model: Model, text: str) -> str:
    legal = [name for body in _all_bodies(model) for name in body.heads.names]
    of_type = [node.name for node in all_ops(model) if node.op == text]
    near = nearest_names(names.op_of(text), legal)
    return (
        elsewhere(text, legal)
        or (of_type and f"; {text} is the op type of {', '.join(of_type[:NEAREST])}")
        or (near and f"; nearest: {', '.join(near)}")
        or ""
    )


def op_document(node: Node) -> dict[str, Any]:
    """Return an op as `ops --json` prints it."""
    outputs = (
        None
        if node.outputs is None
        else [
            {
                "tensor": node.tensor(index),
                "dtype": arg.dtype and f"{arg.dtype}{'_ref' if arg.is_ref else ''}",
            }
            for index, arg in enumerate(node.outputs)
        ]
    )
    return {
        **document_of(node, "body=body.label name type=op inputs"),
        "outputs": outputs,
        "attrs": {
            key: attrs.as_json(value)
            for key in node.attr_names
            if key != provenance.PROVENANCE_ATTR and (value := node.attr(key))
        },
        "gradient": gradient_state(node),
        "changed": list(_changes(node)),
    }


def _changes(node: Node) -> Iterator[dict[str, str]]:
    """Yield what each rule did to an op, in a word."""
    record = provenance.record(node)
    if record is None:
        return
    word = "enclosed" if provenance.in_model(node).op != node.op else "shadowed"
    word = "renamed" if provenance.in_model(node).name != node.name else word
    did = dict.fromkeys(record.rules, "added" if record.is_added else word)
    did |= {} if record.is_added else dict.fromkeys(record.keys, "attr")
    for place in sorted({*did, *record.inputs}):
        rule = provenance.author(node.body, place).rule
        yield from [{"rule": rule, "did": did[place]}] if place in did else []
        yield from [{"rule": rule, "did": "input"}] if place in record.inputs else []
