"""Ops whose gradient does not depend on the value of what they read."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch import opdefs
from graphpatch.differentiation import gradient_table

PYTHON = "EagerPyFunc"  # its gradient is a program, where the process has it


def is_linear(op_type: str, varies: Sequence[bool], is_constant: Sequence[bool]) -> bool:
    """Whether what flows back through an op is the same for all values of the inputs that vary.

    `varies` and `is_constant` say for each input whether its value changes, and whether it never
    does; neither is so of an input that is fed. What flows to a constant does not count.
    """
    known, row = opdefs.lookup(op_type), gradient_table.recorded_gradient(op_type)
    if op_type == PYTHON:
        return False
    if row is None or not row.inputs:
        return row is not None and bool(row.raises)  # no gradient, so none that depends on values
    assert known is not None, f"{op_type} is in the table of gradients alone"
    places = [gradient_table.declared(known, slot, len(varies)) for slot in range(len(varies))]
    changing = {place for place, one in zip(places, varies, strict=True) if one}
    asked = {place for place, one in zip(places, is_constant, strict=True) if not one}
    reads = [row.read_for(place) for place in asked if place is not None and row.flows_to(place)]
    fixed = {
        n
        for n, arg in enumerate(known.inputs)
        if n not in changing or arg.name in gradient_table.SIZES
    }
    return any(varies) and all(one <= fixed for one in reads)
