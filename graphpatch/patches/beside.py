"""The ops of a formula, put beside an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphpatch.gradients.nodedef_form import Nodes
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.names import op_of


def put_beside(
    found: Nodes,
    node: Node,
    tensors: Mapping[str, str],
    editor: Editor,
    anchor: Sequence[str] = (),
    scope: str = "",
) -> str:
    """Add these nodes next to `node`, under `scope`; the tensor that is their result.

    `tensors` says which tensors of the graph they read by other names. Nodes that read nothing
    wait for `anchor`.
    """
    names: dict[str, str] = {}

    def now(text: str) -> str:
        op = op_of(text)
        return tensors.get(text) or names.get(op, op) + text[len(op) :]

    for one in found.nodes:
        inputs = [now(text) for text in one.input] or anchor
        names[one.name] = editor.add(scope + one.name, one.op, inputs, one.attr, node).name
    return now(found.results[0])
