"""A comparison with a threshold as one op: surrogates of the library have their step at 0.

`Cast(x > t)` steps at t. So a surrogate of x0 alone is right for a threshold of 0 only; elsewhere
the message has the formula of `x - t` that is right.
"""

from __future__ import annotations

import json
import re

from graphpatch.errors import PatchError
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.spec import LibraryGradient, json_value
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node
from graphpatch.graph.walk import first_producers
from graphpatch.patches.group import MatchedGroup

# For each comparison its input that is larger where the result is true, and the other one.
SIDES = {"Greater": (0, 1), "GreaterEqual": (0, 1), "Less": (1, 0), "LessEqual": (1, 0)}
SHIFTS = frozenset({"Add", "AddV2", "BiasAdd", "Sub"})


def check_centre(gradient: LibraryGradient, group: MatchedGroup) -> None:
    """Raise PatchError where a surrogate is centred at 0, and the comparison of a match is not."""
    entry = LIBRARY[gradient.name]
    comparisons = [node for node in group.nodes if node.op in SIDES]
    if entry.ops != ("Sign",) or "x0" not in gradient.formula.variables or len(comparisons) != 1:
        return
    (node,) = comparisons
    above, below = (_side(node, slot, group) for slot in SIDES[node.op])
    if above.startswith("x") and below == "0":
        return
    shifted = [side for side in (above, below) if side in SHIFTS]
    if shifted:
        raise PatchError(
            f"{entry.name} has its step at 0 of x0, and in the match {node} compares the result of "
            f"{shifted[0]}; start the pattern at the comparison"
        )
    if not {above[:1], below[:1]} & {"x"} or "" in (above, below):
        return  # nothing is known of where it steps
    spec = _centred(gradient, above, below, node, group)
    raise PatchError(
        f"{entry.name} has its step at 0 of x0, and {node} compares {above} with {below}; "
        f"{group.reading()}; write: {json.dumps(spec)}"
    )


def _side(node: Node, slot: int, group: MatchedGroup) -> str:
    """Return what a comparison reads: `x0`, a number, the op type of a shift, or nothing known."""
    text = node.data_inputs[slot]
    for place, (reader, read_slot) in enumerate(group.slots):
        if reader.data_inputs[read_slot] == text:
            return f"x{place}"
    producer = node.body.producer(text)
    tensor = None if producer is None else constant(producer)
    if tensor is None:
        return producer.op if producer is not None and producer.op in SHIFTS else ""
    numbers = {float(number) for piece, _ in tensor.pieces() for number in piece.flat}
    return f"{numbers.pop():.9g}" if len(numbers) == 1 else ""


def _centred(
    gradient: LibraryGradient, above: str, below: str, node: Node, group: MatchedGroup
) -> dict[str, object]:
    """Return the surrogate as formulas of the difference, for each input that is no constant."""
    text = re.sub(r"\bx\b", "u", str(LIBRARY[gradient.name].text))
    lets, _, value = f"let u = {above} - {below}; {text}".rpartition("; ")
    values = {name: json_value(item) for name, item in gradient.parameters}
    sides = {above: f"{lets}; {value}", below: f"{lets}; -({value})"}
    formulas = []
    for place, (reader, slot) in enumerate(group.slots):
        producers = first_producers(node.body.producer(reader.data_inputs[slot]))
        is_constant = next((item.op for item in producers if item.op != "Identity"), "") == "Const"
        formulas.append(None if is_constant else sides.get(f"x{place}"))
    formula = formulas[0] if len(formulas) == 1 else formulas
    return {"formula": formula, **({"constants": values} if values else {})}
