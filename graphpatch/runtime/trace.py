"""A gradient function of the user's, `module:function`, traced by TensorFlow into a FunctionDef.

So a file that carries it needs neither the module nor graphpatch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import PatchError, RulesError, did_you_mean
from graphpatch.gradients.attach import OpDtypes, TracedFunction
from graphpatch.patches import function_carrier
from graphpatch.runtime.formula_in_tensorflow import GradientFunction
from graphpatch.runtime.stand_in import StandIn
from graphpatch.runtime.traced_graph import traced_function


def trace(path: str, op: OpDtypes) -> TracedFunction:
    """The gradient function at `package.module:function`, traced for one op.

    It is called as TensorFlow calls a registered one, with (op, *upstream gradients), None for an
    output that carries none. Raises RulesError where there is no such function, or no TensorFlow
    to trace it; PatchError where it fails, gives another number of gradients than the op has
    inputs, or uses a tensor or variable from outside.
    """
    called = _Call(path, gradient_at(path), op)
    tf = _import_tensorflow()
    dtypes = [*op.inputs, *op.outputs, *op.outputs]
    specs = [
        tf.TensorSpec(None, dtype, name)
        for name, dtype in zip(_argument_names(op), dtypes, strict=True)
    ]
    try:
        wrapped = tf.compat.v1.wrap_function(called, specs)
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(
            f"{path} failed on {op}: {type(error).__name__}: {_first_line(error)}"
        ) from error
    results = dict(zip(called.flowing, wrapped.outputs, strict=True))
    return traced_function(called.name, path, wrapped.graph, _argument_names(op), results)


def gradient_at(path: str) -> GradientFunction:
    """The function at `package.module:function`, its module imported.

    Raises RulesError where there is none.
    """
    module_name, _, name = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise RulesError(_not_imported(module_name, error)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise RulesError(f"{module_name} has no {part!r}{did_you_mean(part, vars(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise RulesError(f"{path} is a {type(found).__name__}, not a function")
    return found


def _not_imported(module: str, error: Exception) -> str:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return f"there is no Python module {missing!r} here (looked for it to import {module})"
    return f"cannot import {module}: {type(error).__name__}: {_first_line(error)}"


def _import_tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise RulesError(
            '{"python": ...} is traced by TensorFlow, which is not installed here: '
            "pip install tensorflow"
        ) from error
    return tf


def _argument_names(op: OpDtypes) -> list[str]:
    outputs = range(len(op.outputs))
    return [
        *(f"x{place}" for place in range(len(op.inputs))),
        *(f"{kind}{place}" for kind in ("y", "dy") for place in outputs),
    ]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


@dataclass(eq=False)
class _Call:
    """A call of the gradient function on the arguments x..., y..., dy... of a traced function."""

    path: str
    function: GradientFunction
    op: OpDtypes
    flowing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.rpartition(":")[2]

    def __call__(self, *arguments: Any) -> list[Any]:
        """The gradients that are there; `flowing` says which: dx0, ..."""
        inputs = arguments[: len(self.op.inputs)]
        outputs = arguments[len(inputs) : len(inputs) + len(self.op.outputs)]
        upstream = [
            dy if dtype in DIFFERENTIABLE else None
            for dtype, dy in zip(self.op.outputs, arguments[-len(outputs) :], strict=True)
        ]
        found = self._as_list(self.function(StandIn(self.op, inputs, outputs), *upstream))
        there = {
            f"dx{place}": self._as_tensor(place, dx, like)
            for place, (dx, like) in enumerate(zip(found, inputs, strict=True))
            if dx is not None and self.op.inputs[place] in DIFFERENTIABLE
        }
        if not there:
            raise PatchError(
                f"{self.path} gives no gradient for any input of {self.op}; stop_gradient says that"
            )
        self.flowing = list(there)
        return list(there.values())

    def _as_list(self, found: Any) -> Sequence[Any]:
        gradients = list(found) if isinstance(found, list | tuple) else [found]
        if len(gradients) != len(self.op.inputs):
            raise PatchError(
                f"{self.path} gives {len(gradients)} gradients, and {self.op} has "
                f"{len(self.op.inputs)} inputs: it gives one for each, or None"
            )
        return gradients

    def _as_tensor(self, place: int, dx: Any, like: Any) -> Any:
        """A gradient as a dense tensor that is not an argument as it came."""
        import tensorflow as tf

        tensor = tf.convert_to_tensor(dx, dtype_hint=like.dtype)
        if tensor.dtype != like.dtype:
            raise PatchError(
                f"{self.path} gives a gradient of {tensor.dtype.name} for input {place} of "
                f"{self.op}, which is {like.dtype.name}"
            )
        return tf.identity(tensor)


function_carrier.trace.is_for(trace)
