"""Running a real model in a Session, on seeded inputs, as far as it can be run."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpatch.runtime.graph_run import waiting_ops, without_failed

TIMEOUT = 10_000  # milliseconds; some graphs wait for a queue that nobody fills
PATIENCE = 10  # times that, for a graph of which it is known that it runs
ASSIGNED = "value_that_a_test_assigns"  # the placeholders that we add, for values of variables
PLACEHOLDERS = {"Placeholder", "PlaceholderV2"}

LARGEST = 1 << 20  # elements of a tensor that is fetched

# Ops that change a variable while others may be reading it.
WRITES = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)[A-Z]?|Restore")

# What unknown sizes and shapes may be: the first guess with which anything runs is taken.
GUESSES = ((2, (2,)), (1, (1, 8, 8, 3)), (1, ()), (4, (2, 3)), (32, (1, 32, 32, 3)))

Values = Mapping[str, np.ndarray]
Test = Callable[[np.ndarray, np.ndarray | None], bool]


@dataclass(frozen=True)
class Plan:
    """What is fed to a graph, and which of its tensors answer the same on every run."""

    feeds: Values
    variables: Values
    expected: Values
    optimise: bool


def plan(graph: Any, optimise: bool) -> tuple[Plan | None, str]:
    """How a graph is run, or None and TensorFlow's reason why it is not.

    With `optimise`, as Sessions do by default; else op by op, as the graph says.
    """
    fetches, reason = list(float_tensors(graph)), "it has no float output"
    for size, shape in GUESSES if fetches else ():
        feeds, variables = dict(_feeds(graph, size, shape)), dict(_variables(graph, size, shape))
        first, reason = run(graph, fetches, feeds, variables, optimise)
        if "DeadlineExceeded" in reason:
            break
        if first:
            again, _ = run(graph, list(first), feeds, variables, optimise)
            stable = {key: value for key, value in first.items() if same(value, again.get(key))}
            if stable:
                return Plan(feeds, variables, stable, optimise), ""
            reason = "its outputs differ from run to run"
    return None, reason


def same(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Bit by bit: NaNs by their payload, zeros by their sign."""
    return (
        other is not None
        and (one.dtype, one.shape) == (other.dtype, other.shape)
        and one.tobytes() == other.tobytes()
    )


def close(one: np.ndarray, other: np.ndarray | None) -> bool:
    """But for the last bits."""
    return (
        other is not None
        and (one.dtype, one.shape) == (other.dtype, other.shape)
        and np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    )


def run(
    graph: Any,
    fetches: Sequence[str],
    feeds: Values,
    variables: Values,
    optimise: bool,
    timeout: int = TIMEOUT,
) -> tuple[dict[str, np.ndarray], str]:
    """The values of those tensors that can be computed, and why the others cannot."""
    import tensorflow as tf

    wanted, reason = list(fetches), ""
    with tf.compat.v1.Session(graph=graph, config=_config(optimise, timeout)) as session:
        try:
            _assign(graph, session, variables)
            while wanted:
                try:
                    return dict(zip(wanted, session.run(wanted, feeds), strict=True)), reason
                except tf.errors.OpError as error:
                    reason = _first_line(error)
                    wanted = without_failed(graph, wanted, error)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            reason = _first_line(error)
    return {}, reason


def _config(optimise: bool, timeout: int) -> Any:
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=timeout)
    if not optimise:
        options = config.graph_options
        options.rewrite_options.disable_meta_optimizer = True
        options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


def float_tensors(graph: Any) -> Iterator[str]:
    """The float tensors that no other float tensor is made of: what the graph is there for."""
    hidden = _in_loops(graph)
    hidden |= waiting_ops([op for op in graph.get_operations() if _is_chance(op, hidden)])
    for op in graph.get_operations():
        for output in op.outputs if op.inputs and op not in hidden else ():
            readers = [to for reader in output.consumers() for to in reader.outputs]
            small = (output.shape.num_elements() or 0) <= LARGEST
            if small and _is_float(output) and not any(_is_float(to) for to in readers):
                yield output.name


def _is_chance(op: Any, branches: set[Any]) -> bool:
    """Whether what the op gives depends on the run: on chance, on a file, on who is faster."""
    node = op.node_def
    if "seed2" in node.attr:
        return not (node.attr["seed"].i or node.attr["seed2"].i)
    if op.type == "Merge":
        return not any(tensor.op in branches for tensor in op.inputs)
    return WRITES.match(op.type) is not None


def _in_loops(graph: Any) -> set[Any]:
    """The ops in v1 loops and branches, whose tensors cannot be fetched."""
    found: set[Any] = set()
    for start, end in (("Enter", "Exit"), ("Switch", "Merge")):
        todo = [op for op in graph.get_operations() if op.type == start and op not in found]
        while todo:
            op = todo.pop()
            if op not in found:
                found.add(op)
                readers = {to for output in op.outputs for to in output.consumers()}
                todo += [to for to in readers if to.type != end]
    return found


def _is_float(tensor: Any) -> bool:
    """Whether it is float or complex, and no reference: what an optimiser's step writes to."""
    return (
        bool(tensor.dtype.is_floating or tensor.dtype.is_complex) and not tensor.dtype._is_ref_dtype
    )


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line and "Graph execution" not in line]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _feeds(graph: Any, size: int, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    for op in graph.get_operations():
        if op.type in PLACEHOLDERS and not op.name.startswith(ASSIGNED):
            tensor = op.outputs[0]
            yield tensor.name, _value(tensor.name, tensor.dtype, tensor.shape, size, shape)


def _variables(graph: Any, size: int, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    import tensorflow as tf

    for op in graph.get_operations():
        if op.type in {"Variable", "VariableV2", "VarHandleOp"}:
            given = tf.TensorShape(op.get_attr("shape"))
            dtype = op.get_attr("dtype")
            yield op.outputs[0].name, _value(op.name, dtype, given, size, shape)


def _assign(graph: Any, session: Any, variables: Values) -> None:
    """Give each variable its value, by ops that are added to the graph."""
    import tensorflow as tf

    fed_with, done = {}, []
    with graph.as_default():
        for name, value in variables.items():
            variable = graph.get_tensor_by_name(name)
            if variable.dtype == tf.resource:
                fed = tf.compat.v1.placeholder(variable.op.get_attr("dtype"), name=ASSIGNED)
                done.append(tf.raw_ops.AssignVariableOp(resource=variable, value=fed))
            else:
                fed = tf.compat.v1.placeholder(variable.dtype.base_dtype, name=ASSIGNED)
                done.append(tf.compat.v1.assign(variable, fed, validate_shape=False).op)
            fed_with[fed] = value
    session.run(done, fed_with)


def _value(name: str, dtype: Any, given: Any, size: int, shape: tuple[int, ...]) -> np.ndarray:
    """Seeded by the tensor's name: small floats, zeros and ones, or empty strings."""
    sizes = shape if given.rank is None else tuple(dim or size for dim in given.as_list())
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if dtype.base_dtype.name == "string":
        return np.full(sizes, b"", dtype=object)
    kind = dtype.base_dtype.as_numpy_dtype
    if dtype.is_floating or dtype.is_complex:
        return np.asarray(random.standard_normal(sizes, dtype=np.float32)).astype(kind)
    return np.asarray(random.integers(0, 2, size=sizes)).astype(kind)
