"""A gradient as its formulas: one for all inputs of an op alike, or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from msgspec import structs

from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients.functions import OF_THE_OP
from graphpatch.gradients.ops import FLOATS, NOT_SERVED, Scalar
from graphpatch.gradients.syntax import (
    AttrRef,
    Call,
    Expression,
    Name,
    NumberList,
    ParameterRef,
    TensorRef,
    Variable,
    legal_parameter,
    parse_formula,
    walk,
)
from graphpatch.gradients.tensors import ConstantTensor

FormulaText: TypeAlias = str | Sequence[str | None]
"""A formula as a rules file has it: a text, or a list with a text or null for each input."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What flows back through an op, as expressions of its inputs, outputs and upstream gradients.

    `alike`: the one expression is dx of every differentiable input; otherwise there is one for
    each input, None where nothing flows. `values` are those of the parameters, as far as known.
    """

    texts: tuple[str | None, ...]
    expressions: tuple[Expression | None, ...] = field(compare=False)
    alike: bool
    names: tuple[str, ...] = ()
    values: tuple[tuple[str, Scalar | ConstantTensor], ...] = ()

    @classmethod
    def parse(
        cls,
        source: FormulaText,
        parameters: Mapping[str, Scalar | ConstantTensor] | Iterable[str] = (),
    ) -> Formula:
        """Return the formula of a text, or of a list with a text or None for each input.

        `parameters` are the further names it may use, with their values or to be bound later.
        Raises FormulaError, with the column and the nearest legal word.
        """
        names = tuple(parameters)
        for name in names:
            if not legal_parameter(name):
                raise FormulaError(f"{name!r} cannot be a parameter: it is not a name, or is taken")
        texts = (source,) if isinstance(source, str) else tuple(_texts_of(source))
        expressions = tuple(None if text is None else parse_formula(text, names) for text in texts)
        formula = cls(texts, expressions, isinstance(source, str), names)
        return formula.bind(parameters) if isinstance(parameters, Mapping) else formula

    def bind(self, values: Mapping[str, Scalar | ConstantTensor]) -> Formula:
        """Give parameters values. Raises FormulaError for one it does not have."""
        for name, value in values.items():
            if name not in self.names:
                near = did_you_mean(name, self.names) or f"; it has: {', '.join(self.names) or '-'}"
                raise FormulaError(f"the formula has no parameter {name!r}{near}")
            if not isinstance(value, (bool, int, float, ConstantTensor)):
                raise FormulaError(f"parameter {name!r} is {value!r}, not a number or a boolean")
        merged = {**dict(self.values), **values}
        return replace(self, values=tuple(sorted(merged.items())))

    def _names(self, kind: type[Name]) -> tuple[str, ...]:
        """Return the names of one kind that it reads, each once, in the text's order."""
        read = (part.name for part in self._parts() if isinstance(part, kind))
        return tuple(dict.fromkeys(read))

    @property
    def variables(self) -> frozenset[str]:
        """Return the variables it reads, by their full names: `x0`, `y0`, `dy0`."""
        return frozenset(self._names(Variable))

    @property
    def attrs(self) -> frozenset[str]:
        """Return the attrs of the op that it reads."""
        return frozenset(self._names(AttrRef))

    @property
    def parameters(self) -> frozenset[str]:
        """Return the parameters it reads."""
        return frozenset(self._names(ParameterRef))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the tensors of the graph that it reads by name, each once, in the text's order."""
        return self._names(TensorRef)

    @property
    def reads_op(self) -> bool:
        """Whether it calls `forward` or `own`: it reads the op's type, inputs and attrs then."""
        return any(isinstance(part, Call) and part.function in OF_THE_OP for part in self._parts())

    def with_more_inputs(self, dtypes: Sequence[str], parameters: Sequence[str] = ()) -> Formula:
        """Return it for an op with inputs of these dtypes, and further inputs for what it reads.

        The inputs after the op's stand for these parameters and then for `tensors`, in this order.
        No gradient flows to them.
        """
        further: list[tuple[type, str]] = [(ParameterRef, name) for name in parameters]
        further += [(TensorRef, name) for name in self.tensors]
        if not further:
            return self
        inputs = {named: f"x{place}" for place, named in enumerate(further, len(dtypes))}
        done: dict[Expression, Expression] = {}
        read = [part and _with_variables(part, inputs, done) for part in self.expressions]
        texts = list(self.texts)
        if self.alike:
            flows = [dtype in FLOATS or dtype in NOT_SERVED for dtype in dtypes]
            texts = [texts[0] if flow else None for flow in flows]
            read = [read[0] if flow else None for flow in flows]
        none = [None] * len(further)
        values = tuple((name, value) for name, value in self.values if name not in parameters)
        return replace(
            self, texts=(*texts, *none), expressions=(*read, *none), alike=False, values=values
        )

    def with_named_inputs(self, count: int) -> Formula:
        """Return a formula of inputs alone, in which those behind `count` stand for `tensors`."""
        named = enumerate(self.tensors, count)
        inputs: dict[tuple[type, str], str] = {(TensorRef, name): f"x{n}" for n, name in named}
        done: dict[Expression, Expression] = {}
        read = (part and _with_variables(part, inputs, done) for part in self.expressions)
        return replace(self, expressions=tuple(read))

    def _parts(self) -> Iterable[Expression]:
        for expression in self.expressions:
            if expression is not None:
                yield from walk(expression)

    def __str__(self) -> str:
        if self.alike:
            return str(self.texts[0])
        return f"[{', '.join('null' if text is None else text for text in self.texts)}]"


def _with_variables(
    part: Expression, inputs: Mapping[tuple[type, str], str], done: dict[Expression, Expression]
) -> Expression:
    """Return the expression with variables for such parts; a part of several is made once."""

    def rewritten(part: Expression) -> Expression:
        return _with_variables(part, inputs, done)

    if part not in done:
        done[part] = part
        if isinstance(part, NumberList):
            done[part] = structs.replace(part, items=tuple(map(rewritten, part.items)))
        elif isinstance(part, Call):
            options = tuple((name, rewritten(value)) for name, value in part.options)
            arguments = tuple(map(rewritten, part.arguments))
            done[part] = structs.replace(part, arguments=arguments, options=options)
        elif isinstance(part, Name) and (type(part), part.name) in inputs:
            done[part] = Variable(inputs[type(part), part.name], part.column)
    return done[part]


def _texts_of(source: object) -> Iterable[str | None]:
    if not isinstance(source, Sequence):
        raise FormulaError(f"a formula is a text or a list of them, and this is {source!r}")
    if not any(isinstance(text, str) for text in source):
        raise FormulaError("the list holds no formula: with null for each input nothing flows")
    for place, text in enumerate(source):
        if text is not None and not isinstance(text, str):
            raise FormulaError(f"formula {place} of the list is {text!r}, not a text or null")
        yield text
