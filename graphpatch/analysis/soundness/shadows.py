"""Ops that a gradient passes by: an IdentityN with a gradient of its own carries it past them.

`tf.custom_gradient` leaves such an IdentityN, which reads what its function gives and what that
takes; `tf.nn.swish` is one. Backward, TensorFlow goes from it right to what the function takes.
"""

from __future__ import annotations

from graphpatch import names
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.names import OpKey


def shadowed(graph: Graph) -> dict[OpKey, Node]:
    """The ops that are passed by, and the IdentityN that does it."""
    found: dict[OpKey, Node] = {}
    for body in graph.bodies:
        for index in body.by_type.get("IdentityN", ()):
            node = Node(body, index)
            if node.attr(OVERRIDE) is not None and not provenance.entries(node):
                found |= {(body.label, name): node for name in _between(body, node)}
    return found


def _between(body: Body, node: Node) -> set[str]:
    """The ops between what the function takes and what it gives, those that give it included."""
    ends = [names.op_of(text) for text in node.data_inputs]
    found: set[str] = set()
    for end in ends:
        walked, others = {end}, set(ends) - {end}
        todo, reached = [end], False
        while todo:
            index = body.by_name.get(todo.pop())
            for text in body.heads.inputs[index] if index is not None else ():
                op = names.op_of(text)
                reached = reached or op in others
                if op not in walked and op not in others and not text.startswith("^"):
                    walked.add(op)
                    todo.append(op)
        found |= walked if reached else set()
    return found
