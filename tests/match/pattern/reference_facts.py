"""What the keys of a match ask of an op, read plainly off its NodeDef and those around it."""

from __future__ import annotations

import json
import math
from typing import Any

from graphpatch.graph.node import Body, Node
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.spec import Compared, Inside, Match, Near, OneOf, Shape
from graphpatch.protos import NodeDef

Sizes = tuple[int, ...] | None


def is_told(body: Body, index: int, match: Match) -> bool:
    """Whether an op is what `attr`, `value`, `shape`, `inside` and `taken` ask for."""
    return (
        all(is_attr(body, index, key, one) for key, one in (match.attr or {}).items())
        and (match.value is None or is_value(values(body, index), match.value))
        and (match.shape is None or is_shape(shape(body, index), match.shape))
        and (
            match.inside is None or any(is_inside(one, match.inside) for one in around(body, index))
        )
        and (is_taken(body, index, match) if match.taken is not None else not is_added(body, index))
    )


def meets(found: float, wanted: Compared) -> bool:
    return all(
        {">": found > n, "<": found < n, ">=": found >= n, "<=": found <= n, "!=": found != n}[sign]
        for sign, n in wanted.bounds.items()
    )


def is_attr(body: Body, index: int, key: str, wanted: Any) -> bool:
    found = Node(body, index).attr(key)
    if found is None:
        return False
    return meets(found.i, wanted) if isinstance(wanted, OneOf) else found.i == wanted


def values(body: Body, index: int) -> list[float] | None:
    """All elements of a Const; None where the op is none."""
    found = Node(body, index).attr("value")
    if body.heads.ops[index] != "Const" or found is None:
        return None
    given = list(found.tensor.float_val)
    count = math.prod(dim.size for dim in found.tensor.tensor_shape.dim)
    return [*given, *given[-1:] * (count - len(given))]


def is_value(found: list[float] | None, wanted: Any) -> bool:
    if found is None:
        return False
    if isinstance(wanted, Near):
        return all(meets(one, wanted) for one in found)
    return all(one == wanted for one in found)


def shape(body: Body, index: int) -> Sizes:
    """The shape of output 0; None where TensorFlow, importing the graph, knows none."""
    op, inputs = body.heads.ops[index], body.heads.inputs[index]
    read = [text for text in inputs if text[0] != "^"]
    before = [shape_of(body, text) for text in (read[:1] if op == "Switch" else read)]
    if op == "Const":
        found = Node(body, index).attr("value")
        return None if found is None else tuple(d.size for d in found.tensor.tensor_shape.dim)
    if op == "LoopCond":
        return ()
    if op in ("Placeholder", "Enter") or None in before:
        return None
    if op == "Unpack":
        return (before[0] or ())[1:]
    known = [one for one in before if one is not None]
    if op == "Merge":
        return known[0] if known[0] == known[1] else None
    return known[0] if op == "Switch" else max(known, key=len)


def shape_of(body: Body, text: str) -> Sizes:
    name = text.split(":")[0]
    producer = body.by_name.get(name)
    if producer is None or body.heads.ops[producer] == "NextIteration":
        return None
    return shape(body, producer)


def is_shape(found: Sizes, wanted: Any) -> bool:
    if found is None:
        return False
    asked = wanted if isinstance(wanted, Shape) else Shape(sizes=wanted)
    pairs: list[tuple[int, Any]] = [(len(found), asked.rank), (math.prod(found), asked.elements)]
    if asked.sizes is not None:
        if len(asked.sizes) != len(found):
            return False
        pairs += [
            (n, None if one == -1 else one) for n, one in zip(found, asked.sizes, strict=True)
        ]
    return all(
        one is None or (meets(n, one) if isinstance(one, Compared) else n == one)
        for n, one in pairs
    )


def around(body: Body, index: int) -> list[tuple[str, set[str], int | None]]:
    """The loops and branches around an op: the kind, what it is called, which branch."""
    if not body.is_main:
        main = next(iter(body.library.bodies()))
        calls = [one for one in main if one.op in ("While", "If")]
        return [
            ("loop", {call.name}, None) if call.op == "While" else ("branch", {call.name}, 1)
            for call in calls
        ]
    if "loop" in (frame(body, i) for i in range(len(body))):
        return [("loop", {"loop", "decide"}, None)] if in_loop(body, index) else []
    return [("branch", {"pred"}, number) for number in branches(body, index)]


def frame(body: Body, index: int) -> str:
    found = Node(body, index).attr("frame_name") if body.heads.ops[index] == "Enter" else None
    return "" if found is None else found.s.decode()


def in_loop(body: Body, index: int) -> bool:
    """Whether the op is a part of the loop, or computed from one, before an Exit."""
    seen, todo = set[int](), [index]
    while todo:
        one = todo.pop()
        if body.heads.ops[one] == "Enter":
            return True
        for text in body.heads.inputs[one]:
            producer = body.by_name[text.strip("^").split(":")[0]]
            if producer not in seen and body.heads.ops[producer] != "Exit":
                seen.add(producer)
                todo.append(producer)
    return False


def branches(body: Body, index: int) -> set[int]:
    """The outputs of the Switch that an op depends on, before a Merge."""
    found, todo = set[int](), [index] if body.heads.ops[index] != "Merge" else []
    while todo:
        for text in body.heads.inputs[todo.pop()]:
            name, _, output = text.strip("^").partition(":")
            producer = body.by_name[name]
            if body.heads.ops[producer] == "Switch":
                found.add(int(output or 0))
            elif body.heads.ops[producer] != "Merge":
                todo.append(producer)
    return found


def is_inside(one: tuple[str, set[str], int | None], wanted: Any) -> bool:
    kind, names, number = one
    if not isinstance(wanted, Inside):
        return bool(kind == wanted)
    asked = wanted.loop if kind == "loop" else wanted.branch
    if asked is None:
        return kind == "branch" and wanted.branch is None and wanted.when == bool(number)
    is_called = any(glob.matches_glob(text, name) for text in texts(asked) for name in names)
    return is_called and (wanted.when is None or number is None or wanted.when == bool(number))


def written(body: Body, index: int) -> tuple[dict[str, Any], str]:
    """The record of an op, and the name that it had; nothing for one that was added."""
    found = Node(body, index).attr("_graphpatch")
    if found is None:
        return {}, ""
    names = [NodeDef.FromString(raw).name for raw in found.list.s[1:]]
    return json.loads(found.list.s[0]), "".join(names)


def rules_at(body: Body, index: int, *keys: str) -> list[str]:
    """The rules that the record of an op names under these keys."""
    record, _ = written(body, index)
    return [("one", "two")[place] for key in keys for place in record.get(key, ())]


def is_taken(body: Body, index: int, match: Match) -> bool:
    rules = set(rules_at(body, index, "rules"))
    if isinstance(match.taken, bool):
        return bool(rules) is match.taken
    return bool(rules & set(texts(match.taken or ())))


def is_added(body: Body, index: int) -> bool:
    record, name = written(body, index)
    return bool(record) and not name and "of" not in record
