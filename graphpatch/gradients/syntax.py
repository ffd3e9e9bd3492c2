"""The parser of the formula language: operator precedence, by binding power (Pratt, 1973).

`let NAME = VALUE;` comes first, as often as wanted. From loosest to tightest: `or`, `and`, `not`,
comparisons (which chain), `+ -`, `* /`, the signs `+ -`, and `**`, which groups to the right.
Nothing is evaluated here.
"""

from __future__ import annotations

from collections.abc import Collection

from graphpatch.gradients import words
from graphpatch.gradients.call_arguments import CallArgument, bind
from graphpatch.gradients.expression import AttrRef, Call, Expression, Literal, NumberList, depth
from graphpatch.gradients.functions import FUNCTIONS
from graphpatch.gradients.tokens import formula_error, tokenize
from graphpatch.tokens import Token

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_COMPARE = 4
_BINDS = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6} | dict.fromkeys(_COMPARISONS, _COMPARE)
_NOT = 3
_SIGN = 7
_POWER = 8
_DEEPEST = 100
"""How deep a formula may nest, so that it never meets the limit of Python's own recursion."""


def parse_formula(text: str, parameters: Collection[str] = ()) -> Expression:
    """The expression that a formula stands for.

    `parameters` are the names it may use besides the language's own. Raises FormulaError, with
    the column and the nearest legal word, where the text is not a formula.
    """
    return _FormulaParser(text, parameters).whole()


class _FormulaParser:
    """One reading of a text, from its first token to its last."""

    def __init__(self, text: str, parameters: Collection[str]) -> None:
        self.text = text
        self.parameters = parameters
        self.tokens = tokenize(text)
        self.position = 0
        self.depth = 0
        self.defined: dict[str, Expression] = {}
        self.used: set[str] = set()

    @property
    def here(self) -> Token:
        return self.tokens[self.position]

    def at_end(self) -> bool:
        return self.here.kind == "end"

    def advance(self) -> Token:
        token = self.here
        self.position += 1
        return token

    def sees(self, symbol: str) -> bool:
        return not self.at_end() and self.here.text == symbol

    def expect(self, symbol: str, purpose: str = "") -> None:
        if not self.sees(symbol):
            found = self.here
            raise formula_error(
                self.text, found.column, f"expected {symbol!r}{purpose}, found {found}"
            )
        self.advance()

    def whole(self) -> Expression:
        if self.at_end():
            raise formula_error(
                self.text, 1, "the formula is empty; the gradient that is always 0 is: 0"
            )
        while self.sees(words.LET):
            self.definition()
        expression = self.expression(0)
        if not self.at_end():
            raise formula_error(self.text, self.here.column, self.left_over())
        unused = sorted(self.defined.keys() - self.used)
        if unused:
            raise formula_error(self.text, 1, f"let {unused[0]} = ... is never used")
        if depth(expression) > _DEEPEST:
            raise formula_error(self.text, 1, f"nested more than {_DEEPEST} deep")
        return expression

    def definition(self) -> None:
        """`let NAME = VALUE;`: what follows may use the name for the value."""
        self.advance()
        name = self.advance()
        if name.kind != "name":
            raise formula_error(self.text, name.column, f"expected a name after let, found {name}")
        taken = [*self.parameters, *self.defined, *FUNCTIONS]
        if not words.legal_parameter(name.text) or name.text in taken:
            raise formula_error(self.text, name.column, f"{name.text} has a meaning already")
        self.expect("=", " after the name")
        value = self.expression(0)
        self.expect(";", ", which ends a let")
        self.defined[name.text] = value

    def left_over(self) -> str:
        if self.sees(")") or self.sees("]"):
            return f"{self.here} closes nothing"
        if self.sees("="):
            return "equality is written =="
        if self.sees(";"):
            return "a formula is one expression; what it names comes before: let NAME = ...;"
        if self.here.text in words.ELSEWHERE:
            return words.unknown_word(self.here.text, self.parameters, FUNCTIONS)
        return f"expected an operator or the end, found {self.here}"

    def expression(self, least: int) -> Expression:
        """What stands here, as far as its operators bind tighter than `least`."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise formula_error(self.text, self.here.column, f"nested more than {_DEEPEST} deep")
        left = self.operand(least)
        while (binds := self.binding()) > least:
            left = self.operation(left, binds)
        self.depth -= 1
        return left

    def binding(self) -> int:
        if self.at_end():
            return 0
        return _POWER if self.sees("**") else _BINDS.get(self.here.text, 0)

    def operation(self, left: Expression, binds: int) -> Expression:
        if binds == _COMPARE:
            return self.comparison(left)
        sign = self.advance()
        right = self.expression(_SIGN - 1 if binds == _POWER else binds)
        return Call(sign.text, (left, right), column=sign.column)

    def comparison(self, left: Expression) -> Expression:
        """`a < b`, or a chain: `a < b < c` holds where `a < b and b < c` does."""
        result: Expression | None = None
        while self.binding() == _COMPARE:
            sign = self.advance()
            right = self.expression(_COMPARE)
            holds = Call(sign.text, (left, right), column=sign.column)
            result = holds if result is None else Call("and", (result, holds), column=sign.column)
            left = right
        assert result is not None
        return result

    def operand(self, least: int) -> Expression:
        token = self.advance()
        if token.kind == "number":
            return self.number(token)
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
        raise formula_error(self.text, token.column, f"expected a value, found {token}")

    def number(self, token: Token) -> Expression:
        value = float(token.text)
        if value == float("inf"):
            raise formula_error(
                self.text, token.column, f"{token.text} is beyond any float; write: inf"
            )
        return Literal(value, token.column)

    def word(self, token: Token, least: int) -> Expression:
        if token.text == "not":
            if least >= _NOT:
                raise formula_error(self.text, token.column, "put the 'not ...' in parentheses")
            return Call("not", (self.expression(_NOT - 1),), column=token.column)
        if token.text == words.LET:
            raise formula_error(
                self.text, token.column, "a let stands at the beginning: let NAME = ...;"
            )
        if token.text in words.OPERATOR_WORDS:
            raise formula_error(self.text, token.column, f"expected a value, found {token}")
        if token.text in self.defined and not self.sees("("):
            self.used.add(token.text)
            return self.defined[token.text]
        if self.sees("("):
            return self.call(token)
        if token.text == "attr" and self.sees("."):
            return self.attr(token)
        expression = words.meaning_of_word(token.text, token.column, self.parameters)
        if expression is None:
            known = [*self.parameters, *self.defined]
            message = words.unknown_word(token.text, known, FUNCTIONS)
            raise formula_error(self.text, token.column, message)
        return expression

    def attr(self, token: Token) -> Expression:
        self.advance()
        name = self.advance()
        if name.kind != "name":
            raise formula_error(
                self.text, name.column, f"expected the name of an attr, found {name}"
            )
        return AttrRef(name.text, token.column)

    def call(self, name: Token) -> Expression:
        given: list[CallArgument] = []
        self.advance()
        while not self.sees(")"):
            if given:
                self.expect(",", " or ')'")
            given.append(self.argument())
        self.advance()
        return bind(self.text, name, given, [*self.parameters, *self.defined])

    def argument(self) -> CallArgument:
        token = self.here
        following = self.tokens[min(self.position + 1, len(self.tokens) - 1)]
        if token.kind == "name" and following.text == "=":
            self.position += 2
            return CallArgument(token, self.value())
        return CallArgument(None, self.value())

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
