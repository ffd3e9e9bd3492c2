"""One thing that a user does wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provoking.files import rules

MATCH = {"op": "Relu"}
PATCH = {"override_gradient": "guided_relu"}


@dataclass(frozen=True)
class Case:
    """What the user did, in words; the command, and the files and input it is given."""

    what: str
    command: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    stdin: bytes = b""


def typed(what: str, command: str, stdin: bytes = b"", **files: str | bytes) -> Case:
    """Return a command as it is typed; a file `a_b` is called a.b."""
    named = {name.replace("_", "."): data for name, data in files.items()}
    return Case(what, tuple(command.split()), named, stdin)


def in_rules(what: str, text: str | bytes) -> Case:
    """Return a rules file of this text."""
    return Case(what, ("apply", "bad.json", "model.pb", "-o", "out.pb"), {"bad.json": text})


def rule(what: str, **keys: Any) -> Case:
    """Return a rules file of one rule, which is right but for these keys."""
    return in_rules(what, rules({"match": MATCH, "patch": PATCH, **keys}))


def match(what: str, **keys: Any) -> Case:
    """Return a rules file of one rule with this match."""
    return rule(what, match=keys)


def patch(what: str, **keys: Any) -> Case:
    """Return a rules file of one rule with this patch."""
    return rule(what, patch=keys)


def gradient(what: str, value: Any) -> Case:
    """Return a rules file of one rule with this gradient."""
    return patch(what, override_gradient=value)
