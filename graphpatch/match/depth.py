"""How deep an op lies in a body: how many ops one after the other it is computed from."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch import names
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.graph.body import Body


def depths(body: Body) -> list[int]:
    """Of each op the length of the longest way to it, control inputs apart.

    What a loop's NextIteration gives back is left out, so that a loop is as deep as its body. Ops
    on any other circle, and those behind them, are deepest. Linear in the size of the body.
    """
    op_names, ops, by_name = body.heads.names, body.heads.ops, body.by_name
    reads = [_reads(inputs, ops, by_name) for inputs in body.heads.inputs]
    waits = [len(one) for one in reads]
    readers: list[list[int]] = [[] for _ in op_names]
    for index, producers in enumerate(reads):
        for producer in producers:
            readers[producer].append(index)
    deep, ready = [0] * len(body), [index for index, count in enumerate(waits) if not count]
    for index in ready:
        for reader in readers[index]:
            deep[reader] = max(deep[reader], deep[index] + 1)
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return [len(body) if waits[index] else depth for index, depth in enumerate(deep)]


def _reads(inputs: Sequence[str], ops: list[str], by_name: dict[str, int]) -> list[int]:
    found = [by_name.get(names.op_of(text)) for text in inputs if not text.startswith("^")]
    return [index for index in found if index is not None and ops[index] not in NEXTS]
