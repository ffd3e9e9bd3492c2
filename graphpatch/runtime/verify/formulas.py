"""The formulas that a file carries, as TensorFlow computes them, against their numpy form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from graphpatch.analysis.soundness.stored_gradients import StoredGradient, stored_gradients
from graphpatch.errors import GraphpatchError
from graphpatch.gradients import interpreter
from graphpatch.graph.graph import Graph
from graphpatch.runtime.formula_in_tensorflow import tensorflow_gradient
from graphpatch.runtime.function_gradient import function_gradient
from graphpatch.runtime.graph_run import GraphRun, first_line
from graphpatch.runtime.values import upstream_weights
from graphpatch.runtime.verify.backward import finite
from graphpatch.runtime.verify.constructed import (
    argument_dtypes,
    construction_gradient,
    counted_gradient,
    fingerprint,
    first_of_same,
)
from graphpatch.runtime.verify.forward import distance

# By how much of its largest element a gradient may differ: what the dtype's precision leaves.
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-5, "float64": 1e-10}
SCALES = (-1.0, 1e-3, 30.0)
ANYWHERE = (4, 4)  # the shape of all that a formula reads, where the graph does not tell


@dataclass(frozen=True, slots=True)
class FormulaCheck:
    """A formula on tensors of these dtypes and shapes: how far the two forms are apart."""

    label: str
    ops: int
    example: str
    shapes: str
    error: float = 0.0
    tolerance: float = 0.0
    why: str = ""  # it was not compared
    by: str = "numpy"  # what computes the gradient that the rule tells

    @property
    def is_wrong(self) -> bool:
        """Whether the two forms differ."""
        return not self.why and not self.error <= self.tolerance

    def document(self) -> dict[str, Any]:
        """The formula as `verify --json` prints it."""
        compared = {"max_error": finite(self.error), "tolerance": self.tolerance}
        return {
            "formula": self.label,
            "ops": self.ops,
            "example": self.example,
            "shapes": self.shapes,
            "compared_with": self.by,
            **({"not_compared": self.why} if self.why else compared),
        }


def check_formulas(graph: Graph, running: GraphRun | None) -> list[FormulaCheck]:
    """Check each formula of a patched graph, on what its ops meet, or else on seeded arrays.

    `running` is the patched graph with its feeds; without it nothing is known of shapes.
    """
    found: dict[tuple[str, ...], list[tuple[StoredGradient, list[Any]]]] = {}
    met = _met(list(stored_gradients(graph)), running)
    for one, values in met:
        shapes = [f"{np.asarray(value).dtype.name}{list(np.shape(value))}" for value in values]
        form = fingerprint(one) if one.moved is not None else one.function
        found.setdefault((one.label, form, *shapes), []).append((one, values))
    return [_check_group(graph, key, group) for key, group in found.items()]


def _met(
    some: Sequence[StoredGradient], running: GraphRun | None
) -> Iterator[tuple[StoredGradient, list[Any]]]:
    """What each op reads, and gives, as far as it can be fetched; else seeded arrays."""
    wanted = [_tensors_met(one) if one.node.body.is_main else [] for one in some]
    fetched = sorted({name for names in wanted for name in names})
    values = running.run(_fetchable(running, fetched), False)[0] if running else {}
    for one, names in zip(some, wanted, strict=True):
        is_met = bool(names) and all(name in values for name in names)
        yield one, [values[name] for name in names] if is_met else _anything(one)


def _fetchable(running: GraphRun, names: Sequence[str]) -> list[str]:
    from graphpatch.runtime.verify.outputs import fetchable

    return list(fetchable(running.graph, names))


def _tensors_met(one: StoredGradient) -> list[str]:
    """What a call of a function reads, y among it; or what an op reads and gives."""
    if one.moved is not None:
        return [text if ":" in text else f"{text}:0" for text in (*one.reads, one.gives)]
    read = [text if ":" in text else f"{text}:0" for text in one.node.data_inputs]
    if one.function:
        return read
    return [*read, *(f"{one.node.name}:{place}" for place in range(len(one.node.outputs or ())))]


def _anything(one: StoredGradient) -> list[Any]:
    if one.moved is not None:
        likes = [np.zeros(ANYWHERE, _numpy(dtype)) for dtype in argument_dtypes(one)]
        return [upstream_weights(f"{place}", like) for place, like in enumerate(likes)]
    flat = [*(one.node.arguments or ()), *(() if one.function else one.node.outputs or ())]
    likes = [np.zeros(ANYWHERE, _numpy(arg.dtype or "float32")) for arg in flat]
    return [upstream_weights(f"{place}", like) for place, like in enumerate(likes)]


def _numpy(dtype: str) -> Any:
    import tensorflow as tf

    return tf.as_dtype(dtype).as_numpy_dtype


def _check_group(
    graph: Graph, key: tuple[str, ...], group: Sequence[tuple[StoredGradient, list[Any]]]
) -> FormulaCheck:
    one, values = group[0]
    about = one.label, len(group), str(one.node), ", ".join(key[2:])
    if one.computed is None and one.counts_as is None:
        return FormulaCheck(*about, why=one.why)
    try:
        error, tolerance = _largest_error(graph, one, values)
    except GraphpatchError as refusal:
        return FormulaCheck(*about, why=str(refusal))
    except Exception as failure:  # TensorFlow's or numpy's reason why it cannot be computed
        return FormulaCheck(*about, why=first_line(failure))
    by = "numpy" if one.counts_as is None else "TensorFlow"
    return FormulaCheck(*about, error, tolerance, by=by)


def _largest_error(graph: Graph, one: StoredGradient, values: Sequence[Any]) -> tuple[float, float]:
    """The largest difference of the two forms, as a part of the largest element; what is allowed.

    On what the op met, and on seeded values of those shapes too: of what an op met, much may be 0.
    """
    seeded = [
        upstream_weights(f"x{place}", value) if np.asarray(value).dtype.kind not in "iub" else value
        for place, value in enumerate(values)
    ]
    sets = [values, seeded, *_scaled(seeded)] if one.moved is not None else [values, seeded]
    found = [_once(graph, one, list(map(np.asarray, some))) for some in sets]
    return max(error for error, _ in found), max(tolerance for _, tolerance in found)


def _scaled(values: Sequence[Any]) -> Iterator[list[Any]]:
    """The values with the other sign, and in other sizes."""
    for by in SCALES:
        yield [
            value if np.asarray(value).dtype.kind in "iub" else (value * by).astype(value.dtype)
            for value in values
        ]


def _once(graph: Graph, one: StoredGradient, values: Sequence[Any]) -> tuple[float, float]:
    names = _formula_names(graph, one)
    if one.moved is not None:
        values = [*(values[first] for first in first_of_same(one)), values[-1]]
    at = dict(zip(names, values, strict=True))
    inputs = _filled_up(at, "x")
    outputs = _filled_up(at, "y") or inputs  # a filter gives on what it reads
    upstream = [upstream_weights(f"dy{place}", y) for place, y in enumerate(outputs)]
    if one.computed is None:
        expected = counted_gradient(one, [*inputs, outputs[0]], upstream[0])
    else:
        formula, attrs = one.computed.formula, dict(one.attrs)
        expected = interpreter.gradient(formula, inputs, outputs, upstream, attrs, one.op_type)
    if one.moved is None:
        given = _by_tensorflow(graph, one, names, values, upstream)
    else:
        expected = _sum_of_same_tensors(expected, first_of_same(one))
        given = construction_gradient(one, values, upstream[0])
    places = [int(name[1:]) for name in names if name.startswith("x")]
    pairs = list(zip((expected[place] for place in places), given, strict=False))
    errors = [_distance(left, right) for left, right in pairs]
    dtypes = [np.asarray(one).dtype.name for pair in pairs for one in pair if one is not None]
    return max(errors, default=0.0), max(
        (TOLERANCES.get(name, 0.0) for name in dtypes), default=0.0
    )


def _sum_of_same_tensors(gradients: Sequence[Any], firsts: Sequence[int]) -> list[Any]:
    """The gradients of inputs; where some are one tensor, their sum at the first of them."""
    found: list[Any] = [None] * len(gradients)
    for dx, first in zip(gradients, firsts, strict=True):
        if dx is not None:
            found[first] = dx if found[first] is None else found[first] + dx
    return found


def _distance(expected: Any, given: Any) -> float:
    """How far apart they are; no gradient, `null` in a formula, is the same as zeros."""
    if expected is None or given is None:
        flows = [one for one in (expected, given) if one is not None]
        return float("inf") if any(np.any(np.asarray(one)) for one in flows) else 0.0
    expected = np.asarray(expected)
    if expected.shape != given.shape or expected.dtype != given.dtype:
        return float("inf")
    _, relative = distance(expected, given)
    return relative if relative == relative else float("inf")


def _formula_names(graph: Graph, one: StoredGradient) -> list[str]:
    """What the formula calls what was met: x0, ..., y0, ..."""
    if one.function:
        signature = graph.functions[one.node.op].signature
        return [arg.name for arg in signature.input_arg] if signature is not None else []
    if one.moved is not None:
        return [*(f"x{place}" for place in range(len(one.reads))), "y0"]
    read, gives = len(one.node.data_inputs), len(one.node.outputs or ())
    return [f"x{place}" for place in range(read)] + [f"y{place}" for place in range(gives)]


def _filled_up(at: Mapping[str, Any], kind: str) -> list[Any]:
    """x0, x1, ... with something that carries no gradient for those that nobody reads."""
    places = [int(name[1:]) for name in at if name.startswith(kind)]
    count = max(places, default=-1) + 1
    return [at.get(f"{kind}{place}", np.zeros((), np.int32)) for place in range(count)]


def _by_tensorflow(
    graph: Graph,
    one: StoredGradient,
    names: Sequence[str],
    values: Sequence[Any],
    upstream: Sequence[Any],
) -> list[Any]:
    """What the gradient function of the file, or the registered one, gives in a Session."""
    import tensorflow as tf

    assert one.computed is not None
    with tf.Graph().as_default() as scratch:
        tensors = [tf.constant(value) for value in values]
        is_y = [name.startswith("y") for name in names]
        ys = [t for t, y in zip(tensors, is_y, strict=True) if y] or tensors[:1]
        if one.function:
            gradient = function_gradient(graph, graph.functions[one.function])
            op: Any = SimpleNamespace(inputs=tensors, outputs=ys)
        else:
            gradient = tensorflow_gradient(one.computed.formula)
            xs = [t for t, y in zip(tensors, is_y, strict=True) if not y]
            op = SimpleNamespace(
                inputs=xs,
                outputs=ys,
                type=one.node.op,
                name=one.node.name,
                get_attr=one.attrs.__getitem__,
            )
        found = gradient(op, *map(tf.constant, upstream))
    with tf.compat.v1.Session(graph=scratch) as session:
        return [None if dx is None else np.asarray(session.run(dx)) for dx in found]
