"""Shapes of real models, without those that the files tell, beside those that TensorFlow infers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.models import catalogue

tf = pytest.importorskip("tensorflow")

from tests.tf.test_inferred_shapes import contradicts, inferred, ours  # noqa: E402

LEAST = 0.78  # of the shapes that TensorFlow knows


def without_shapes(graph_def: Any) -> Any:
    for node in graph_def.node:
        for key in ("_output_shapes", "_class"):
            node.attr.pop(key, None)
    return graph_def


def test_shapes_are_those_that_tensorflow_infers() -> None:
    """No shape is another one, or more than TensorFlow says; nearly all that it knows are there."""
    found, wrong = Counter[str](), {}
    for name, path in catalogue.models().items():
        for graph_def in catalogue.graph_defs(path) if path.is_file() else ():
            try:
                right = inferred(without_shapes(graph_def))
            except (ValueError, tf.errors.OpError):  # not one that TensorFlow imports
                continue
            found["models"] += 1
            mine = ours(graph_def)
            known = [one for one, shape in right.items() if shape is not None]
            found["known"] += len(known)
            found["equal"] += sum(right[one] == mine[one] for one in known)
            wrong |= {
                (name, one): (right[one], mine[one])
                for one in right
                if contradicts(right[one], mine[one])
            }
    if not found["models"]:
        pytest.skip("no models are there")
    assert wrong == {}
    assert found["equal"] >= LEAST * found["known"], dict(found)
