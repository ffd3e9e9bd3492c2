"""Ops that make room for others, which give their outputs on."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.graph import attrs
from graphpatch.graph.editor import Attrs
from graphpatch.graph.node import Node
from graphpatch.patches.editing import RuleEditor, typed
from graphpatch.patches.target import known_outputs


def numbered(number: int) -> str:
    """Return what stands behind a name: nothing for the first of several."""
    return f"_{number}" if number else ""


class MovedOp:
    """An op that made room: it is `NAME/forward` now, and other ops give its outputs on.

    What gives a single output on takes the name. Of several outputs each is given on by
    `NAME/SUFFIX_0`, ..., or as it is, and an IdentityN that reads these takes the name (`close`).
    """

    def __init__(self, node: Node, editor: RuleEditor) -> None:
        self.node, self.name, self.outputs = node, node.name, known_outputs(node)
        self.editor, self.room = editor, editor.make_room(node)
        self.texts = [node.tensor(output) for output in range(len(self.outputs))]

    def stopped(self, output: int) -> str:
        """Return an output behind a StopGradient named after the op."""
        name, dtype = f"{self.name}/stop{numbered(output)}", self.outputs[output].dtype
        texts = [self.node.tensor(output)]
        return self.editor.put_op(name, "StopGradient", texts, dtype, self.node)

    def give_on(
        self, output: int, op: str, suffix: str, inputs: Sequence[str], key: str = ""
    ) -> Node:
        """Let a new op of this type give an output on."""
        values = typed(self.outputs[output].dtype, key)
        if len(self.outputs) == 1:
            return self.take_name(op, inputs, values)
        new = self.editor.add(f"{self.name}/{suffix}_{output}", op, inputs, values, self.node)
        self.texts[output] = new.tensor(0)
        return new

    def close(self) -> None:
        """Let an IdentityN give several outputs on together."""
        if len(self.outputs) > 1:
            dtypes = attrs.dtypes([arg.dtype or "" for arg in self.outputs])
            self.take_name("IdentityN", self.texts, {"T": dtypes})

    def take_name(self, op: str, inputs: Sequence[str], values: Attrs) -> Node:
        """Let a new op take the name, and give all outputs on."""
        return self.editor.take_name(self.room, op, inputs, values)
