"""What a patch is given to work with: it changes a graph, reports, and asks about the graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from graphpatch.differentiation.bodies import Bodies
from graphpatch.graph import attrs
from graphpatch.graph.editor import Attrs, Editor
from graphpatch.graph.node import Node
from graphpatch.graph.record import Author
from graphpatch.graph.template import OneOp
from graphpatch.patches.target import known_outputs
from graphpatch.protos import AttrValue

T = TypeVar("T")


class Report(msgspec.Struct, kw_only=True):
    """What a rule says: `emit` how gradients are stored, `idle` why not, of single ops.

    `session` and `tape` are the keys that these must have registered.
    """

    emit: dict[str, None] = msgspec.field(default_factory=dict)
    notes: dict[str, None] = msgspec.field(default_factory=dict)
    session: dict[str, None] = msgspec.field(default_factory=dict)
    tape: dict[str, None] = msgspec.field(default_factory=dict)
    idle: list[str] = msgspec.field(default_factory=list)

    def note(self, *texts: str) -> None:
        """Say something once."""
        self.notes.update(dict.fromkeys(texts))

    def used(self, carrier: str, session: str = "", tape: str = "") -> None:
        """Report how a gradient is stored, and which key a Session, a tape must have registered."""
        self.emit[carrier] = None
        self.session.update({session: None} if session else {})
        self.tape.update({tape: None} if tape else {})

    def take_over(self, report: Report) -> None:
        """Say what another one says, but for what it says of single ops."""
        for key in ("emit", "notes", "session", "tape"):
            getattr(self, key).update(getattr(report, key))


def typed(dtype: str | None, key: str = "") -> dict[str, AttrValue]:
    """Return the attrs of an op that has its dtype as attr T, and its gradient under a key."""
    values = {"T": attrs.dtype(dtype or "")}
    return {**values, attrs.OVERRIDE: attrs.text(key)} if key else values


def numbered(number: int) -> str:
    """Return what stands behind a name: nothing for the first of several."""
    return f"_{number}" if number else ""


@dataclass(eq=False)
class RuleEditor(Editor):
    """An editor on behalf of a rule; `known` has what was asked of the graph as a whole."""

    author: Author
    report: Report = field(kw_only=True)
    known: dict[Hashable, Any] = field(default_factory=dict)

    def cached(self, question: Hashable, answer: Callable[[], T]) -> T:
        """Answer a question, or do a deed, once for all ops of the rule, unless it raises."""
        if question not in self.known:
            self.known[question] = answer()
        known: T = self.known[question]
        return known

    def put_op(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        dtype: str | None,
        beside: Node,
        key: str = "",
    ) -> str:
        """Add an op that has its dtype as attr T, its gradient under a key; return its tensor."""
        return self.add(name, op, inputs, typed(dtype, key), beside).tensor(0)

    @property
    def bodies(self) -> Bodies:
        """Return how TensorFlow comes to each body, and those that no gradient reaches."""
        return self.cached("bodies", lambda: Bodies(self.graph))

    def is_differentiated_whole(self, node: Node) -> bool:
        """Return whether a Session differentiates the function that an op is in as a whole.

        What such a function calls, TensorFlow optimises before: it inlines the call and takes out
        what stops gradients, and the op's own gradient is used. So calls must be kept from being
        inlined. An exported graph is differentiated on a tape alone.
        """
        is_ignored = self.bodies.place_of(node).ignoring is not None
        return is_ignored and not self.graph.around.is_exported

    def is_in_control_flow(self, node: Node) -> bool:
        """Return whether an op lies in a v1 loop or branch; those have no form."""
        is_alone = isinstance(node.body, OneOp)
        return not is_alone and node.index in self.bodies.in_control_flow(node.body)

    def is_restored(self, node: Node) -> bool:
        """Return whether an op is in a function that tf.saved_model.load restores."""
        around = self.graph.around
        return around.is_object_based and (around.is_exported or not node.body.is_main)


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
