"""A rule that is applied to ops as they are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from graphpatch.errors import PatchError
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.graph import Graph
from graphpatch.match import glob
from graphpatch.match.conditions import holds
from graphpatch.match.glob import texts
from graphpatch.match.spec import Match
from graphpatch.rules import Rule
from graphpatch.step import Applied, idle_notes, naming_rule, patch_node

# What a match may ask of an op that nothing reads yet, and that nothing else is known of.
ALONE = frozenset({"op", "name", "name_regex", "attr", "dtype", "value", "body"})
JOINING = frozenset({"any", "all", "not"})


def is_alone(match: Match) -> bool:
    """Whether an op alone tells if a match means it."""
    given = match.given()
    inner = [*given.get("any", ()), *given.get("all", ()), *([match.not_] if match.not_ else [])]
    return given.keys() <= ALONE | JOINING and all(map(is_alone, inner))


@dataclass(eq=False)
class AtOnce:
    """A rule on ops as they are made, and what it did. `rule` is one whose patch is by key."""

    rule: Rule
    step: Applied = field(init=False)
    idle: list[str] = field(default_factory=list)
    known: dict[Hashable, Any] = field(default_factory=dict)  # of all ops: see Editor.cached

    def __post_init__(self) -> None:
        self.step = Applied(self.rule.author.rule)
        self._holds = holds(self.rule.match)
        wanted = self.rule.match.op
        self._is_type: Callable[[str], bool] | None = None
        if wanted is not None:
            self._is_type = glob.one_of(texts(wanted))

    def may_mean(self, op: Any) -> bool:
        """Whether the op is of a type that the rule asks for, which is cheap to tell."""
        return self._is_type is None or self._is_type(op.type)

    def take(self, graph: Graph, node: Node) -> None:
        """Patch the node where the rule means it. Raises PatchError, with the rule's name."""
        if not self._holds(node.body)(node):
            return
        entry = {"body": node.body.label, "op": node.name, "type": node.op}
        self.step.matches.append(entry)
        editor = Editor(graph, self.rule.author, node.name, known=self.known)
        with naming_rule(self.rule):
            patch_node(self.rule, node, editor, self.step)
        self.idle += editor.idle

    def finish(self) -> Applied:
        """What it did. Raises PatchError where it means nothing on any of the ops it matched."""
        if self.idle and len(self.idle) == len(self.step.matches):
            raise PatchError(f"rule {self.rule.author.rule!r}: {self.idle[0]}")
        self.step.notes.update(dict.fromkeys(idle_notes(self.rule, self.idle)))
        return self.step
