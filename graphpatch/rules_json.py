"""JSON of a rules file: read with errors that name line and column, and no key twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from graphpatch.errors import RulesError

DEEPEST = 120  # levels of JSON; each match in another one is at least one


def depth(document: Any) -> int:
    """How many lists and objects lie in each other, counted up to one too many."""
    level, depth = [document], 0
    while level and depth <= DEEPEST:
        level = [one for some in level for one in _inside(some)]
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def decoded(raw: bytes) -> Any:
    """The JSON of a file. Raises RulesError with line and column where it is none."""
    try:
        document = msgspec.json.decode(raw.decode())
        # msgspec lets the last of two equal keys win, and a rule would do half of what it says.
        json.loads(raw, object_pairs_hook=_unique)
        return document
    except RecursionError:
        raise RulesError("it is nested too deeply: rules have some levels, not hundreds") from None
    except UnicodeDecodeError as error:
        if b"\0" in raw:
            raise RulesError("no rules file, but binary; rules come first, models after") from None
        place, reason = error.start, "not UTF-8"
    except msgspec.DecodeError as error:
        found = re.search(r"byte (\d+)", str(error))
        place = int(found[1]) if found else len(raw)
        reason = str(error).removeprefix("JSON is malformed: ").partition(" (byte")[0]
    before = raw[:place]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    raise RulesError(f"line {line}, column {column}: not valid JSON: {reason}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RulesError(f"the key {key!r} is there twice in one object; one would be lost")
        found[key] = value
    return found
