"""Refuse what would never fire: a patch behind the custom gradient of another op."""

from __future__ import annotations

from collections.abc import Iterable

from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.differentiation.keys import override_key
from graphpatch.errors import PatchError
from graphpatch.graph.body import Body, Node


def refuse_hidden(nodes: Iterable[Node]) -> None:
    """Raise PatchError for an op that no gradient reaches, as an IdentityN leads it past.

    The message names the IdentityN, and the rule that takes its key off.
    """
    found: dict[Body, dict[int, int]] = {}
    for node in nodes:
        body = node.body
        if body not in found:
            found[body] = hidden_ops(body)
        by = found[body].get(node.index)
        if by is not None:
            raise PatchError(_message(node, Node(body, by)))


def _message(node: Node, by: Node) -> str:
    first = f'{{"match": {{"op": "IdentityN", "name": "{by.name}"}}, '
    first += '"patch": {"override_gradient": "default"}}'
    return (
        f"no gradient reaches {node}: {by} has a custom gradient (key {override_key(by)}, from "
        f"tf.custom_gradient), which leads past it to what the wrapped function was given, so this "
        f"patch would never fire; put this rule before it, which takes the key off: {first}; or "
        f"patch {by.name} itself"
    )
