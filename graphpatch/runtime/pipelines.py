"""What an input pipeline gives, as it is fed where no program fills the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from graphpatch.graph.op_types import PARSERS, PIPELINES
from graphpatch.runtime.values import seeded_value
from graphpatch.runtime.waiting import waiting_ops

SPARSE_COUNTS = {"ParseExampleV2": "num_sparse", "ParseSingleExample": "num_sparse"}
FILLS_TABLES = frozenset({
    "InitializeTable", "InitializeTableV2", "LookupTableImport", "LookupTableImportV2",
})  # fmt: skip
ENTRY_MAKERS = frozenset("Cast ConcatV2 Const Identity NoOp Pack Range Reshape".split())


def next_values(
    graph: Any, given: Container[str], size: int, whole: tuple[int, ...]
) -> Iterator[tuple[str, Any]]:
    """Tensors that iterators, queues and parsers of Examples give, with seeded values.

    Not of a OneShotIterator, which needs no program, nor of a parser of Examples that are given.
    """
    ops = graph.get_operations()
    given_to = [
        reader
        for op in ops
        for one in op.outputs
        if one.name in given
        for reader in one.consumers()
    ]
    parsed = waiting_ops(given_to)
    for op in ops:
        if op.type in PIPELINES and op.inputs[0].op.type != "OneShotIterator":
            for one in op.outputs:
                if one.dtype.name not in ("resource", "variant"):
                    yield one.name, seeded_value(one.name, one.dtype, one.shape, size, whole)
        elif op.type in PARSERS and op not in parsed:
            for one in op.outputs:
                yield one.name, seeded_value(one.name, one.dtype, one.shape, size, whole)
            yield from _sparse_parts(op, size)


def _sparse_parts(op: Any, size: int) -> Iterator[tuple[str, Any]]:
    """The indices and shapes of the sparse tensors of a parser: one value in each row."""
    count = op.get_attr(SPARSE_COUNTS.get(op.type, "Nsparse"))
    for place in range(count):
        indices, shape = op.outputs[place], op.outputs[2 * count + place]
        rows, rank = np.arange(size, dtype=np.int64), indices.shape[1]
        yield indices.name, np.stack([rows, *[rows * 0] * (rank - 1)], axis=1)
        yield shape.name, np.array([size, *[1] * (rank - 1)], np.int64)


def fill_tables(graph: Any, session: Any) -> None:
    """Put the entries into tables that constants tell, as a program does that loads the model.

    Other tables stay empty, and so do those whose entries TensorFlow refuses; it names them where
    they are read.
    """
    import tensorflow as tf

    for op in graph.get_operations():
        if op.type in FILLS_TABLES and _is_told(op):
            with contextlib.suppress(tf.errors.OpError):
                session.run(op)


def _is_told(op: Any) -> bool:
    """Whether what is put into a table is computed of constants, by ops that do nothing else."""
    read = [*op.control_inputs, *(one.op for one in op.inputs[1:])]
    found, todo = set[Any](), read
    while todo:
        before = todo.pop()
        if before not in found:
            found.add(before)
            todo += [*before.control_inputs, *(one.op for one in before.inputs)]
    return all(one.type in ENTRY_MAKERS for one in found)
