"""The formula language: tokens, words, the parser, and a gradient as formulas of an op's inputs.

Operator precedence is by binding power (Pratt, 1973). `let NAME = VALUE;` comes first, as often as
wanted. From loosest to tightest: `or`, `and`, `not`, comparisons (which chain), `+ -`, `* /`, the
signs `+ -`, and `**`, which groups to the right. Nothing is evaluated here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients.functions import FUNCTIONS, OF_THE_OP, Function
from graphpatch.gradients.ops import FLOATS, NOT_SERVED, Scalar
from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.shown import pointed
from graphpatch.tokens import Language, Token

_TOKEN = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<string>\"[^\"]*\"|'[^']*')"
    r"|(?P<symbol>\*\*|<=|>=|==|!=|[-+*/<>(),=.;\[\]])",
    re.ASCII,
)

_INSTEAD = {
    "&": "write: and",
    "|": "write: or",
    "!": "write: not, or != for unequal",
    "~": "write: not",
    "^": "powers are written **",
    "%": "there is no remainder",
    "?": "write: where(condition, a, b)",
    "{": "brackets are round",
    "}": "brackets are round",
}

NAMED_NUMBERS: dict[str, Scalar] = {
    "inf": math.inf,
    "nan": math.nan,
    "pi": math.pi,
    "true": True,
    "false": False,
}

_OPERATOR_WORDS = ("and", "or", "not")
_LET = "let"
_TENSOR = "tensor"
_VARIABLE = re.compile(r"(?P<kind>x|y|dy)(?P<index>0|[1-9]\d*)?", re.ASCII)

_ELSEWHERE = {
    **dict.fromkeys(("if", "else"), "write: where(condition, a, b)"),
    "lambda": "a formula is one expression of x, y and dy",
    "dx": "the upstream gradient is dy, and dx is what the formula gives",
    "grad": "the upstream gradient is dy",
    "e": "write: exp(1)",
    **dict.fromkeys(("tf", "np"), "functions are called by their bare name"),
    **dict.fromkeys(
        ("None", "null"), "null stands for a whole formula in the list, one for each input"
    ),
}

# Functions over axes for which a number in the place of these is the other of two numbers.
_OF_TWO = {"max": "maximum(a, b)", "min": "minimum(a, b)"}

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_COMPARE = 4
_BINDS = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6} | dict.fromkeys(_COMPARISONS, _COMPARE)
_NOT = 3
_SIGN = 7
_POWER = 8
_DEEPEST = 100
"""How deep a formula may nest, so that it never meets the limit of Python's own recursion."""


def formula_error(text: str, column: int, message: str) -> FormulaError:
    """Return the error to raise for what stands at `column` (from 1) of the formula `text`."""
    return FormulaError(f"formula, column {column}: {message}\n{pointed(text, column)}")


_FORMULA = Language("formula", _TOKEN, _INSTEAD, formula_error)


# A Struct is made in a tenth of the time of a dataclass, which counts as a command starts.
class Literal(msgspec.Struct, frozen=True, eq=False):
    """`0.5`, `1e-3`, `inf`, `nan`, `pi`, `true`, `false`."""

    value: Scalar
    column: int = 0


class Name(msgspec.Struct, frozen=True, eq=False):
    """What stands for a value."""

    name: str
    column: int = 0


class Variable(Name, frozen=True, eq=False):
    """`x0`, `y0`, `dy0`, ...: an input, an output, an upstream gradient; `x` is `x0`."""


class AttrRef(Name, frozen=True, eq=False):
    """`attr.alpha`: a number or a boolean among the attrs of the op's NodeDef."""


class TensorRef(Name, frozen=True, eq=False):
    """`tensor("global_step:0")`: a tensor of the graph that the op is in, whoever gives it."""


class ParameterRef(Name, frozen=True, eq=False):
    """A number or a boolean that a rule gives by name."""


class NumberList(msgspec.Struct, frozen=True, eq=False):
    """`[1, 2]`: a list, which only options such as `axes` and the indices of `gather` take."""

    items: tuple[Expression, ...]
    column: int = 0


class Call(msgspec.Struct, frozen=True, eq=False):
    """A function, or an operator, on its arguments; the options that are given, by name."""

    function: str
    arguments: tuple[Expression, ...]
    options: tuple[tuple[str, Expression], ...] = ()
    column: int = 0


Expression: TypeAlias = Literal | Variable | AttrRef | TensorRef | ParameterRef | NumberList | Call


def _parts(expression: Expression) -> tuple[Expression, ...]:
    """Return what an expression is made of, in the order of the text."""
    if isinstance(expression, Call):
        return (*expression.arguments, *(value for _, value in expression.options))
    return expression.items if isinstance(expression, NumberList) else ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield this expression and all that it is made of, each part once, in the text's order."""
    done: set[Expression] = set()
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if part not in done:
            done.add(part)
            yield part
            waiting.extend(reversed(_parts(part)))


def _depth(expression: Expression) -> int:
    """Count the calls that lie within each other, without recursion."""
    level: set[Expression] = {expression}
    count = 0
    while level := {part for whole in level for part in _parts(whole)}:
        count += 1
    return count


def full_variable_name(word: str) -> str | None:
    """Return the full name of a variable (`x` is `x0`), or None where the word is none."""
    match = _VARIABLE.fullmatch(word)
    return f"{match['kind']}{match['index'] or 0}" if match else None


def legal_parameter(word: str) -> bool:
    """Return whether a parameter may have this name."""
    taken = word in NAMED_NUMBERS or word in (*_OPERATOR_WORDS, "attr", _LET)
    is_name = re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) is not None
    return is_name and not taken and full_variable_name(word) is None


def _unknown_word(word: str, names: Collection[str]) -> str:
    """Return the message for a word that stands for nothing."""
    if word in FUNCTIONS:
        return f"{word} is a function, and needs its arguments: {word}(...)"
    if word in _ELSEWHERE:
        return f"a formula has no {word!r}; {_ELSEWHERE[word]}"
    legal = [*names, "x", "y", "dy", "attr", *NAMED_NUMBERS, *_OPERATOR_WORDS, _LET, *FUNCTIONS]
    known = ", ".join([*names, "x, y, dy (for x0, y0, dy0), x1, ..., y1, ..., dy1, ..., attr.NAME"])
    return f"unknown name {word!r}{did_you_mean(word, legal)}; a formula knows {known}"


def parse_formula(text: str, parameters: Collection[str] = ()) -> Expression:
    """Return the expression that a formula stands for.

    `parameters` are the names it may use besides the language's own. Raises FormulaError, with
    the column and the nearest legal word, where the text is not a formula.
    """
    return _FormulaParser(text, parameters).whole()


class _FormulaParser:
    """One reading of a text, from its first token to its last."""

    def __init__(self, text: str, parameters: Collection[str]) -> None:
        self.text = text
        self.parameters = parameters
        self.tokens: list[Token] = []
        for token in _FORMULA.tokens(text):
            before = self.tokens[-1] if self.tokens else token
            touching = before.column + len(before.text) == token.column
            if touching and before.kind == "number" and token.kind in ("name", "number"):
                message = f"{before.text}{token.text} is neither a number nor a name"
                raise self.error(token.column, message)
            self.tokens.append(token)
        self.position = 0
        self.depth = 0
        self.defined: dict[str, Expression] = {}
        self.used: set[str] = set()

    def error(self, column: int, message: str) -> FormulaError:
        return formula_error(self.text, column, message)

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def advance(self) -> Token:
        token = self.next
        self.position += 1
        return token

    def sees(self, symbol: str) -> bool:
        return self.next.kind != "end" and self.next.text == symbol

    def expect(self, symbol: str, purpose: str = "") -> None:
        if not self.sees(symbol):
            raise self.error(self.next.column, f"expected {symbol!r}{purpose}, found {self.next}")
        self.advance()

    def whole(self) -> Expression:
        if self.next.kind == "end":
            raise self.error(1, "the formula is empty; the gradient that is always 0 is: 0")
        while self.sees(_LET):
            self.definition()
        expression = self.expression(0)
        if self.next.kind != "end":
            raise self.error(self.next.column, self.left_over())
        unused = sorted(self.defined.keys() - self.used)
        if unused:
            raise self.error(1, f"let {unused[0]} = ... is never used")
        if _depth(expression) > _DEEPEST:
            raise self.error(1, f"nested more than {_DEEPEST} deep")
        return expression

    def definition(self) -> None:
        """Read `let NAME = VALUE;`: what follows may use the name for the value."""
        self.advance()
        name = self.advance()
        if name.kind != "name":
            raise self.error(name.column, f"expected a name after let, found {name}")
        taken = [*self.parameters, *self.defined, *FUNCTIONS]
        if not legal_parameter(name.text) or name.text in taken:
            raise self.error(name.column, f"{name.text} has a meaning already")
        self.expect("=", " after the name")
        value = self.expression(0)
        self.expect(";", ", which ends a let")
        self.defined[name.text] = value

    def left_over(self) -> str:
        if self.sees(")") or self.sees("]"):
            return f"{self.next} closes nothing"
        if self.sees("="):
            return "equality is written =="
        if self.sees(";"):
            return "a formula is one expression; what it names comes before: let NAME = ...;"
        if self.next.text in _ELSEWHERE:
            return _unknown_word(self.next.text, self.parameters)
        return f"expected an operator or the end, found {self.next}"

    def expression(self, least: int) -> Expression:
        """Read what stands here, as far as its operators bind tighter than `least`."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(self.next.column, f"nested more than {_DEEPEST} deep")
        result = self.operand(least)
        while (binds := self.binding()) > least:
            if binds == _COMPARE:
                result = self.comparison(result)
            else:
                sign = self.advance()
                right = self.expression(_SIGN - 1 if binds == _POWER else binds)
                result = Call(sign.text, (result, right), column=sign.column)
        self.depth -= 1
        return result

    def binding(self) -> int:
        if self.next.kind == "end":
            return 0
        return _POWER if self.sees("**") else _BINDS.get(self.next.text, 0)

    def comparison(self, first: Expression) -> Expression:
        """Read `a < b`, or a chain: `a < b < c` holds where `a < b and b < c` does."""
        holds: Expression | None = None
        while self.binding() == _COMPARE:
            sign = self.advance()
            second = self.expression(_COMPARE)
            pair = Call(sign.text, (first, second), column=sign.column)
            holds = Call("and", (holds, pair), column=sign.column) if holds else pair
            first = second
        assert holds is not None
        return holds

    def operand(self, least: int) -> Expression:
        token = self.advance()
        if token.kind == "number":
            value = float(token.text)
            if math.isinf(value):
                raise self.error(token.column, f"{token.text} is beyond any float; write: inf")
            return Literal(value, token.column)
        if token.kind == "name":
            return self.word(token, least)
        if token.text == "(":
            inside = self.expression(0)
            self.expect(")")
            return inside
        if token.text == "-":
            return Call("-x", (self.expression(_SIGN - 1),), column=token.column)
        if token.text == "+":
            return self.expression(_SIGN - 1)
        raise self.error(token.column, f"expected a value, found {token}")

    def word(self, token: Token, least: int) -> Expression:
        word, column = token.text, token.column
        if word == "not":
            if least >= _NOT:
                raise self.error(column, "put the 'not ...' in parentheses")
            return Call("not", (self.expression(_NOT - 1),), column=column)
        if word == _LET:
            raise self.error(column, "a let stands at the beginning: let NAME = ...;")
        if word in _OPERATOR_WORDS:
            raise self.error(column, f"expected a value, found {token}")
        if word == _TENSOR and self.sees("("):
            return self.tensor(column)
        if self.sees("("):
            return self.call(token)
        if word in self.defined:
            self.used.add(word)
            return self.defined[word]
        if word == "attr" and self.sees("."):
            self.advance()
            name = self.advance()
            if name.kind != "name":
                raise self.error(name.column, f"expected the name of an attr, found {name}")
            return AttrRef(name.text, column)
        if word in self.parameters:
            return ParameterRef(word, column)
        if word in NAMED_NUMBERS:
            return Literal(NAMED_NUMBERS[word], column)
        variable = full_variable_name(word)
        if variable is None:
            raise self.error(column, _unknown_word(word, [*self.parameters, *self.defined]))
        return Variable(variable, column)

    def tensor(self, column: int) -> Expression:
        """Read the name of a tensor, in quotes and parentheses."""
        self.advance()
        name = self.advance()
        text = name.text[1:-1].strip()
        if name.kind != "string" or not text:
            message = f"expected the name of a tensor in quotes, tensor('name:0'), found {name}"
            raise self.error(name.column, message)
        self.expect(")", " after the name of the tensor")
        return TensorRef(text, column)

    def call(self, name: Token) -> Expression:
        """Read the arguments of a call, and match them with what its function takes."""
        function = self.function(name)
        legal = (*function.arguments, *function.options)
        bound: dict[str, Expression] = {}
        self.advance()
        while not self.sees(")"):
            if bound:
                self.expect(",", " or ')'")
            place = len(bound)
            word = legal[place] if place < len(legal) else ""
            if self.next.kind == "name" and self.tokens[self.position + 1].text == "=":
                keyword = self.advance()
                self.advance()
                word = keyword.text
                if word not in legal:
                    near = did_you_mean(word, legal) or f": {function.spelled}"
                    raise self.error(keyword.column, f"{function.name} has no {word!r}{near}")
            elif function.rest and place >= len(function.arguments):
                word = f"{function.rest}{place}"
            elif word == "axes" and function.name in _OF_TWO:
                message = f"axes stand by name, axes=0; of two numbers: {_OF_TWO[function.name]}"
                raise self.error(self.next.column, message)
            value = self.value()
            if not word:
                message = f"{function.name} takes {len(legal)} at most: {function.spelled}"
                raise self.error(value.column, message)
            if word in bound:
                raise self.error(value.column, f"{function.name} is given {word} twice")
            if isinstance(value, NumberList) and not function.takes_list(word):
                raise self.error(value.column, f"{word} of {function.name} cannot be a list")
            bound[word] = value
        self.advance()
        missing = [word for word in function.arguments if word not in bound]
        if missing:
            message = f"{function.name} needs {' and '.join(missing)}: {function.spelled}"
            raise self.error(name.column, message)
        more = [word for word in bound if word not in legal]
        arguments = tuple(bound[word] for word in (*function.arguments, *more))
        options = tuple((word, bound[word]) for word in function.options if word in bound)
        return Call(function.name, arguments, options, name.column)

    def function(self, name: Token) -> Function:
        if name.text in FUNCTIONS:
            return FUNCTIONS[name.text]
        if name.text in (*self.parameters, *self.defined) or full_variable_name(name.text):
            message = f"{name.text} is a value, not a function; write * to multiply"
            raise self.error(name.column, message)
        near = did_you_mean(name.text, FUNCTIONS) or f"; legal: {', '.join(FUNCTIONS)}"
        raise self.error(name.column, f"no function is called {name.text!r}{near}")

    def value(self) -> Expression:
        if not self.sees("["):
            return self.expression(0)
        opening = self.advance()
        items: list[Expression] = []
        while not self.sees("]"):
            if items:
                self.expect(",", " or ']'")
            items.append(self.expression(0))
        self.advance()
        return NumberList(tuple(items), opening.column)


FormulaText: TypeAlias = str | Sequence[str | None]
"""A formula as a rules file has it: a text, or a list with a text or null for each input."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What flows back through an op, as expressions of its inputs, outputs and upstream gradients.

    `alike`: the one expression is dx of every differentiable input; otherwise there is one for
    each input, None where nothing flows. `values` are those of the parameters, as far as known.
    `inputs` are the parameters and tensors that are inputs behind the op's own: kind, name, input.
    """

    texts: tuple[str | None, ...]
    expressions: tuple[Expression | None, ...] = field(compare=False)
    alike: bool
    names: tuple[str, ...] = ()
    values: tuple[tuple[str, Scalar | ConstantTensor], ...] = ()
    inputs: tuple[tuple[type[Name], str, str], ...] = ()

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
        """Return whether it calls `forward` or `own`: then it reads the op's type and attrs."""
        return any(isinstance(part, Call) and part.function in OF_THE_OP for part in self._parts())

    def with_more_inputs(self, dtypes: Sequence[str], parameters: Sequence[str] = ()) -> Formula:
        """Return it for an op with inputs of these dtypes, and further inputs for what it reads.

        The inputs after the op's stand for these parameters and then for `tensors`, in this order.
        No gradient flows to them.
        """
        named = self.with_named_inputs(len(dtypes), parameters)
        if not named.inputs:
            return self
        texts, expressions = self.texts, self.expressions
        if self.alike:
            flows = [dtype in FLOATS or dtype in NOT_SERVED for dtype in dtypes]
            texts = tuple(texts[0] if flow else None for flow in flows)
            expressions = tuple(expressions[0] if flow else None for flow in flows)
        none = (None,) * len(named.inputs)
        return replace(named, texts=texts + none, expressions=expressions + none, alike=False)

    def with_named_inputs(self, count: int, parameters: Sequence[str] = ()) -> Formula:
        """Return it with inputs behind `count` in the place of parameters, and of `tensors`."""
        further: list[tuple[type[Name], str]] = [(ParameterRef, name) for name in parameters]
        further += [(TensorRef, name) for name in self.tensors]
        inputs = tuple((kind, name, f"x{n}") for n, (kind, name) in enumerate(further, count))
        return replace(self, inputs=inputs)

    def _parts(self) -> Iterable[Expression]:
        for expression in self.expressions:
            if expression is not None:
                yield from walk(expression)

    def __str__(self) -> str:
        if self.alike:
            return str(self.texts[0])
        return f"[{', '.join('null' if text is None else text for text in self.texts)}]"


def _texts_of(source: object) -> Iterable[str | None]:
    if not isinstance(source, Sequence):
        raise FormulaError(f"a formula is a text or a list of them, and this is {source!r}")
    if not any(isinstance(text, str) for text in source):
        raise FormulaError("the list holds no formula: with null for each input nothing flows")
    for place, text in enumerate(source):
        if text is not None and not isinstance(text, str):
            raise FormulaError(f"formula {place} of the list is {text!r}, not a text or null")
        yield text
