"""A GraphDef that calls gradient functions on numbers that are fed.

What is fed and fetched is float64, and cast in the graph, so that every numpy can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphpatch.gradients.ops import DTYPE_NUMBERS
from graphpatch.protos import FunctionDef, GraphDef


def dtype_named(name: str) -> Any:
    """The numpy dtype of this name, bfloat16 included."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass
class Calls:
    """Calls of functions, gathered into one graph."""

    graph: GraphDef = field(default_factory=GraphDef)
    feeds: dict[str, Any] = field(default_factory=dict)
    fetches: list[str] = field(default_factory=list)

    def add(self, function: FunctionDef, arguments: Sequence[Any]) -> list[str]:
        """Call a function on arrays; the names of what is fetched for its outputs."""
        self.graph.versions.producer = 134
        self.graph.library.function.append(function)
        name = function.signature.name
        call = self.graph.node.add(name=f"{name}/call", op=name)
        inputs = zip(function.signature.input_arg, arguments, strict=True)
        call.input.extend(self._fed(f"{name}/{arg.name}", arg.type, value) for arg, value in inputs)
        outputs = function.signature.output_arg
        return [
            self._fetched(f"{name}/{arg.name}", arg.type, f"{name}/call:{place}")
            for place, arg in enumerate(outputs)
        ]

    def _fed(self, name: str, dtype: int, value: Any) -> str:
        self.feeds[f"{name}/fed"] = np.asarray(value).astype(np.float64)
        fed = self.graph.node.add(name=f"{name}/fed", op="Placeholder")
        fed.attr["dtype"].type = DTYPE_NUMBERS["float64"]
        fed.attr["shape"].shape.unknown_rank = True
        return self._cast(name, f"{name}/fed", DTYPE_NUMBERS["float64"], dtype)

    def _fetched(self, name: str, dtype: int, source: str) -> str:
        found = f"{self._cast(name, source, dtype, DTYPE_NUMBERS['float64'])}:0"
        self.fetches.append(found)
        return found

    def _cast(self, name: str, source: str, from_dtype: int, to_dtype: int) -> str:
        cast = self.graph.node.add(name=name, op="Cast", input=[source])
        cast.attr["SrcT"].type, cast.attr["DstT"].type = from_dtype, to_dtype
        return name
