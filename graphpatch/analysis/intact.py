"""Whether what the record of a model tells is there, and is read: byte for byte.

The record has a checksum of what rules wrote. Where it is another one, the rules are taken off
and applied again, and what they write now is looked for in the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch import names
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.check import built_gradients
from graphpatch.graph.graph import Graph, read_record
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import checksum_of_rules
from graphpatch.graph.wire import message
from graphpatch.protos import NodeDef

AGAIN = "patch the original again"


def damage(model: Model) -> str:
    """Return what is not as rules left it; nothing where all is, or no rule was applied."""
    if all(map(is_intact, model.graphs)):
        return ""
    if any(read_record(graph) is None for graph in model.graphs if _is_touched(graph)):
        return f"the record of its rules is gone, with the op that carried it; {AGAIN}"
    try:
        remade = _remade(opened_again(model))
    except GraphpatchError as error:
        # Ops of gradients that were built since read what rules added, and are no damage.
        is_built = any(True for graph in model.graphs for _ in built_gradients(graph))
        if is_built and not any(map(_has_lost_gradients, model.graphs)):
            return ""
        return f"{error}; {AGAIN}"
    if remade is None:
        return f"the file was changed since, and rules in Python cannot be applied again; {AGAIN}"
    for graph in model.graphs:
        record, reads = read_record(graph), provenance.reads_of_patched(graph)
        if record is not None and reads < record.reads:
            return f"{record.reads} inputs read what rules patched, and now {reads}; {AGAIN}"
    for graph, expected in zip(model.graphs, opened_again(remade).graphs, strict=True):
        for fault in _faults(graph, expected):
            return f"{fault}; {AGAIN}"
    return ""


def is_intact(graph: Graph) -> bool:
    """Return whether a graph is as its rules left it; true where no rule was applied."""
    record = read_record(graph)
    if record is None:
        return not _is_touched(graph)
    if record.live:  # TensorFlow exports the graph anew, with other attrs beside ours
        return not _has_lost_gradients(graph)
    return record.exported or record.written == checksum_of_rules(graph)


def _has_lost_gradients(graph: Graph) -> bool:
    """Whether a key that a rule set, or the gradient of a function that it calls, is gone."""
    for body in graph.bodies:
        library = body.library
        for index, record in body.touched().items():
            node = Node(body, index)
            is_keyed = record.keys and not provenance.shadow(node)
            if is_keyed and node.attr(OVERRIDE) is None:
                return True
            is_call = record.is_added and node.op in library.signatures
            if is_call and node.op not in library.gradients:
                return True
    return False


def _is_touched(graph: Graph) -> bool:
    return any(body.first_touched() is not None for body in graph.bodies)


def _remade(model: Model) -> Model | None:
    """The model with its rules taken off and applied again; None where that cannot be done."""
    from graphpatch.analysis.revert import taken_off
    from graphpatch.application import apply_rules
    from graphpatch.rules import rules_from

    records = [record for graph in model.graphs if (record := read_record(graph)) is not None]
    rules = records[0].again
    if None in rules:
        return None
    taken_off(model)
    return apply_rules(rules_from(rules), model, None, None).model


def _faults(graph: Graph, expected: Graph) -> Iterator[str]:
    """Yield what of the patched parts of a graph is missing, or other than expected."""
    for body in expected.bodies:
        now = graph.counterpart(body)
        if now is None:
            if body.is_ours:
                yield f"function {body.label!r} is missing"
            continue
        if body.is_ours and set(map(_canonical, now)) != set(map(_canonical, body)):
            yield f"function {body.label!r} is another one"
        yield from _body_faults(now, body)
    for name, gradient in expected.library.gradients.items():
        if graph.library.gradients.get(name) != gradient:
            yield f"function {name!r} has lost its gradient function {gradient!r}"


def _body_faults(now: Body, expected: Body) -> Iterator[str]:
    touched = {node.name for node in provenance.touched(expected)}
    for name in touched:
        node = expected.node(name)
        if name not in now.by_name:
            yield f"{node} is missing"
        elif _canonical(now.node(name)) != _canonical(node):
            rules = [repr(author.rule) for author in provenance.rules_that_touched(node)[:1]]
            yield f"{now.node(name)} is not as rule {', '.join(rules)} left it"
    for node in expected if touched else ():
        read = [text for text in node.inputs if names.op_of(text) in touched]
        if read and node.name in now.by_name:
            lost = [text for text in read if text not in now.node(node.name).inputs]
            if lost:
                yield f"{node} does not read {lost[0]!r} any more"


def _canonical(node: Node) -> bytes:
    """Return what is written of a node, its attrs in the order of their names."""
    proto = message(NodeDef, provenance.as_written(node))
    return bytes(proto.SerializeToString(deterministic=True))
