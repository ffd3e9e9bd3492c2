"""Ops of the class `elementwise` are: where one element of an input is changed, one changes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from graphpatch import opdefs
from graphpatch.match.keys import ELEMENTWISE

X = [0.3, 0.6, 0.2, 0.7, 0.4]
UNTRIED = {"Invert", "IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalNot", "LogicalOr"}
"""Of integers and bools, or constant here."""


@pytest.mark.slow
def test_one_element_of_the_output_hangs_on_one_of_each_input() -> None:
    tf = pytest.importorskip("tensorflow")
    done = set()
    for op in ELEMENTWISE:
        known, function = opdefs.lookup(op), getattr(tf.raw_ops, op, None)
        assert known is not None, op
        if function is None or op in UNTRIED:
            continue
        names = [name for name in inspect.signature(function).parameters if name != "name"]
        arguments: dict[str, Any] = {}
        for place, arg in enumerate(known.inputs):
            key = names[place]  # an input may have another name there
            arguments[key] = np.float32(X) + np.float32(0.05 * place)
            if arg.dtype == "bool":
                arguments[key] = np.float32(X) > 0.35
            elif arg.number_attr:
                arguments[key] = [np.float32(X), np.float32(X)]
        for name in names:
            if name == "DstT":
                arguments[name] = tf.float64
        before = np.asarray(function(**arguments))
        for key, value in arguments.items():
            if isinstance(value, np.ndarray):
                other = value.copy()
                other[3] = not other[3] if other.dtype == bool else other[3] + np.float32(0.2)
                after = np.asarray(function(**{**arguments, key: other}))
                same = (after == before) | (np.isnan(after) & np.isnan(before))
                assert same[[0, 1, 2, 4]].all(), (op, key)
        assert before.shape == (5,), op
        done.add(op)
    assert len(done) > 70
