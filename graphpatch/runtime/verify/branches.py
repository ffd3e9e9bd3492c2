"""Watch which branches a graph takes: signs at activations, truth at conditions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from graphpatch.control_flow.op_types import SWITCHES
from graphpatch.graph.graph import Graph
from graphpatch.graph.op_types import IFS
from graphpatch.runtime.graph_run import ASSIGNED, GraphRun
from graphpatch.runtime.verify.outputs import is_value, ops_in_control_flow

# Ops that do one thing below zero, and another above.
SIGNED = frozenset({"Abs", "Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Sign"})
# Ops that choose by a condition, and which input that is.
TRUTHS = dict.fromkeys(("Select", "SelectV2", *IFS), 0) | dict.fromkeys(SWITCHES, 1)


class BranchWatch:
    """The ops of a graph that take branches; nothing changes in what others compute.

    `hidden` counts those in v1 loops and branches, which cannot be looked at.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.read: dict[str, str] = {}  # the tensor by which an op decides
        inside = ops_in_control_flow(graph)
        deciding = {op: _decides(op) for op in graph.get_operations()}
        deciding = {op: tensor for op, tensor in deciding.items() if tensor is not None}
        for op, tensor in deciding.items():
            # In a loop or branch an op does not run by what it reads; a Switch is where it begins.
            is_open = op not in inside or op.type in TRUTHS
            # A constant of a loop's body reads nothing of the loop: its context tells.
            is_outside = tensor.op not in inside and _context(tensor.op) is None
            if is_open and is_outside and is_value(tensor):
                self.read[op.name] = tensor.name
        self.hidden = len(deciding) - len(self.read)
        self._asked: dict[str, tuple[str, str]] | None = None

    def taken(self, running: GraphRun) -> dict[str, tuple[bool, bool]]:
        """For each op: whether something below 0 (or false) came to it, and above (or true)."""
        asked = self._asked
        if asked is None:
            asked = dict(_questions(self.graph, set(self.read.values())))
        values, _ = running.run([name for pair in asked.values() for name in pair], False)
        # What waits for a queue that nobody fills is asked once.
        answered = {tensor: pair for tensor, pair in asked.items() if set(pair) <= values.keys()}
        self._asked = answered if self._asked is None else asked
        return {
            name: (bool(values[answered[tensor][0]]), bool(values[answered[tensor][1]]))
            for name, tensor in self.read.items()
            if tensor in answered
        }

    def steered(self, running: GraphRun, names: Sequence[str], upwards: bool) -> dict[str, Any]:
        """Values for what these ops read, of both signs or all true (`upwards`), or all false."""
        tensors = [self.graph.get_tensor_by_name(self.read[name]) for name in names]
        fed = {t.name for t in tensors if self.graph.is_feedable(t) and t.name not in running.feeds}
        shapes, _ = running.run(sorted(fed), False)
        return {name: _random_values(name, like, upwards) for name, like in shapes.items()}


def _decides(op: Any) -> Any:
    """Return the tensor by which an op decides what it does; None for other ops, and for ours."""
    if op.name.startswith(ASSIGNED) or op.type not in SIGNED | TRUTHS.keys():
        return None
    tensor = op.inputs[TRUTHS.get(op.type, 0)]
    wanted = tensor.dtype.is_bool if op.type in TRUTHS else tensor.dtype.is_floating
    return tensor if wanted else None


def _context(op: Any) -> Any:
    return op._get_control_flow_context()


def _questions(graph: Any, names: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """For each tensor whether some of it is below 0, or false; and above, or true."""
    import tensorflow as tf

    with graph.as_default(), tf.control_dependencies(None), tf.name_scope(ASSIGNED):
        for name in sorted(names):
            value = graph.get_tensor_by_name(name)
            sides = (~value, value) if value.dtype.is_bool else (value < 0, value > 0)
            below, above = (tf.reduce_any(side) for side in sides)
            yield name, (below.name, above.name)


def _random_values(name: str, like: Any, upwards: bool) -> Any:
    if like.dtype == bool:
        return np.full(like.shape, upwards)
    random = np.random.default_rng(zlib.crc32(f"{name} {upwards}".encode()))
    return np.asarray(random.standard_normal(like.shape, np.float32) * 4).astype(like.dtype)


def in_functions(graph: Graph) -> int:
    """Return how many ops that take branches stand in functions, where nobody can look."""
    return sum(
        len(body.by_type.get(op, ()))
        for body in graph.functions.values()
        for op in SIGNED | TRUTHS.keys()
        if not body.is_ours
    )
