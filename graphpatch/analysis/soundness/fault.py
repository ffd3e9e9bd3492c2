"""What is wrong with a graph: one place, one kind, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.rule_words import own_name
from graphpatch.graph.body import Node


@dataclass(frozen=True, slots=True)
class Fault:
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


def at(kind: str, node: Node, says: str) -> Fault:
    """A fault of one op."""
    return Fault(kind, node.body.label, own_name(node), f"{node}: {says}")


def apart(before: Iterable[Fault], after: Iterable[Fault]) -> Mapping[str, list[Fault]]:
    """The faults of a patched graph: `new` ones, and those that its original has `too`."""
    known = {fault.key for fault in before}
    found: dict[str, list[Fault]] = {"new": [], "too": []}
    for fault in after:
        found["too" if fault.key in known else "new"].append(fault)
    return found
