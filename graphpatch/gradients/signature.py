"""The op that a gradient is for, as far as formulas need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients.ops import (
    FLOATS,
    SCALAR,
    BroadcastShape,
    Program,
    Scalar,
    Value,
    broadcast_together,
    shape_of_tensor,
)
from graphpatch.graph.attrs import DTYPE_NUMBERS


@dataclass(frozen=True, slots=True)
class Signature:
    """An op's inputs (`x0`, ...) and outputs (`y0`, ...) with their dtypes, and its attrs.

    `same_shape`: all these tensors have one shape, in every run, but for the `scalars`, whose shape
    is (). `broadcast` names the inputs whose joint shape is that of the outputs, where that is
    known. The last `more` inputs are not the op's: a formula reads them besides. `op_type` is empty
    for what is no one op: a match as a whole, a filter. `attrs` are those that are numbers or
    booleans, with the op type's defaults where the NodeDef leaves them out; others may be there,
    and cannot be read.
    """

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    attrs: Mapping[str, object] = field(default_factory=dict, hash=False)
    same_shape: bool = False
    scalars: frozenset[str] = frozenset()
    broadcast: tuple[str, ...] = ()
    op_type: str = ""
    more: int = 0

    @classmethod
    def of(
        cls,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: Mapping[str, object] | None = None,
        same_shape: bool = False,
        scalars: Collection[str] = (),
        op_type: str = "",
        more: int = 0,
    ) -> Signature:
        """Return the signature of an op with inputs and outputs of these dtypes.

        Raises FormulaError for a dtype that is not known.
        """
        xs = tuple((f"x{place}", dtype) for place, dtype in enumerate(inputs))
        ys = tuple((f"y{place}", dtype) for place, dtype in enumerate(outputs))
        for name, dtype in (*xs, *ys):
            if dtype not in DTYPE_NUMBERS:
                raise FormulaError(
                    f"the dtype of {name} is not known ({dtype!r}): an attr must name it"
                )
        scalars = frozenset(scalars)
        return cls(xs, ys, attrs or {}, same_shape, scalars, op_type=op_type, more=more)

    @classmethod
    def of_tensor(cls, dtype: str) -> Signature:
        """Return the signature of a filter: x and y are both the tensor."""
        return cls.of([dtype], [dtype], same_shape=True)

    def reading(self, dtypes: Sequence[str]) -> Signature:
        """Return it with more inputs of these dtypes, each of a shape of its own."""
        more = ((f"x{place}", dtype) for place, dtype in enumerate(dtypes, len(self.inputs)))
        broadcast = ("x0",) if self.same_shape else self.broadcast
        inputs = (*self.inputs, *more)
        return replace(self, inputs=inputs, same_shape=False, broadcast=broadcast, more=len(dtypes))

    @property
    def variables(self) -> dict[str, str]:
        """Return the dtype of each variable that a formula for this op may read."""
        upstream = ((f"d{name}", dtype) for name, dtype in self.outputs)
        return dict((*self.inputs, *self.outputs, *upstream))

    @property
    def upstream_dtype(self) -> str | None:
        """Return the dtype of the first upstream gradient that there is."""
        return next((dtype for _, dtype in self.outputs if dtype in FLOATS), None)

    def value(self, program: Program, name: str) -> Value:
        """Return a variable as a tensor of a program."""
        return Value(program, name, self.variables[name], self.shape(name))

    def shape(self, name: str) -> BroadcastShape:
        """Return the shape of a variable: dy0 has that of y0, and all have one where they do."""
        if name in self.scalars:
            return SCALAR
        plain = name.removeprefix("d")
        if self.broadcast and plain.startswith("y"):
            return broadcast_together(*map(shape_of_tensor, self.broadcast))
        return shape_of_tensor("x" if self.same_shape else plain)

    def attr(self, name: str) -> Scalar:
        """Return the value of an attr. Raises FormulaError where there is none, or no number."""
        value = self.attrs.get(name)
        if name not in self.attrs:
            legal = [word for word, attr in self.attrs.items() if isinstance(attr, (int, float))]
            none = "; none of its attrs is a number or boolean"
            legal_words = f"; it has: {', '.join(legal)}" if legal else none
            near = did_you_mean(name, legal) or legal_words
            raise FormulaError(f"the op has no attr {name!r}{near}")
        if not isinstance(value, (bool, int, float)):
            raise FormulaError(f"attr {name!r} is {value!r}; formulas read numbers and booleans")
        return value
