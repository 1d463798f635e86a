"""Arithmetic of Python's own numbers, in bounded time and memory."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SkillError

MAX_LENGTH = 5_000  # characters
MAX_TOKENS = 1_800  # a name counts twice: it can stand for a whole construct of the parser's
MAX_NESTING = 200  # open brackets, the parser's own limit
MAX_BITS = 1 << 20  # of all whole numbers held at a time
MAX_WORK = 12_000_000  # products of two 30-bit digits
MAX_DIGITS = 4_300  # of the answer, Python's own limit

_TOO_LARGE = 10**MAX_DIGITS
_TOKEN = re.compile(r"[\w.]+|\S")
# A number run into a keyword (`1if`), or a backslash within a line, is never arithmetic. Python's parser may warn
# about either, and warnings are the whole process's business, so it is not asked.
_GLUED = re.compile(r"[\d.][\w.]*?(?:and|else|for|if|in|is|not|or)")

Number = int | float | complex


class Unevaluable(SkillError):
    """The text is not arithmetic, has no value, or would take more than the limits; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is left to do with the last `operands` values."""

    kind: type[ast.operator | ast.unaryop]
    operands: int


_APPLY: dict[type[ast.operator | ast.unaryop], Callable[..., Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def evaluate(expression: str) -> str:
    """The value of an arithmetic expression, as Python writes it. Raises Unevaluable."""
    try:
        value = _value(_parsed(expression))
        if isinstance(value, int) and abs(value) >= _TOO_LARGE:
            raise Unevaluable(
                f"Exceeds the limit ({MAX_DIGITS} digits) for integer string conversion; "
                "use sys.set_int_max_str_digits() to increase the limit"
            )
        return str(value)
    except (SyntaxError, ArithmeticError, ValueError, TypeError) as error:
        raise Unevaluable(str(error)) from None
    except (RecursionError, MemoryError):
        raise Unevaluable("maximum recursion depth exceeded") from None


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MAX_LENGTH:
        raise Unevaluable(f"the expression is longer than {MAX_LENGTH} characters")
    tokens = nesting = deepest = 0
    glued = "\\" in expression.replace("\\\n", "")
    for match in _TOKEN.finditer(expression):
        word = match[0]
        tokens += 2 if word[0].isalpha() else 1
        if tokens > MAX_TOKENS:
            raise Unevaluable(f"the expression has more than {MAX_TOKENS} tokens")
        nesting += (word in "([{") - (word in ")]}")
        deepest = max(deepest, nesting)
        glued = glued or _GLUED.match(word) is not None
    if deepest > MAX_NESTING:
        raise Unevaluable("too many nested parentheses (<unknown>, line 1)")
    if glued:
        raise Unevaluable("unsupported expression")
    return ast.parse(expression, mode="eval").body


def _value(expression: ast.expr) -> Number:
    """Without recursion: the values so far, and what is still to be done with them."""
    meter = _Meter()
    values: list[Number] = []
    todo: list[ast.expr | _Operation] = [expression]
    while todo:
        match todo.pop():
            case ast.Constant(value=int() | float() as value):
                values.append(meter.hold(value))
            case ast.BinOp(left, op, right) if type(op) in _APPLY:
                todo += [_Operation(type(op), 2), right, left]
            case ast.UnaryOp(op, operand) if type(op) in _APPLY:
                todo += [_Operation(type(op), 1), operand]
            case _Operation(kind, operands):
                given = values[-operands:]
                meter.admit(kind, *given)
                values[-operands:] = [meter.hold(_APPLY[kind](*given), released=given)]
            case _:
                raise Unevaluable("unsupported expression")
    return values[0]


class _Meter:
    """Counts the work done and the bits held, and refuses an operation that would exceed the limits."""

    def __init__(self) -> None:
        self._work = 0
        self._bits = 0

    def hold(self, value: Number, *, released: list[Number] | None = None) -> Number:
        self._bits += _bits(value) - sum(map(_bits, released or ()))
        self._room(0)
        return value

    def admit(self, kind: type[ast.operator | ast.unaryop], *operands: Number) -> None:
        """Count what the operation will take, before it is done."""
        digits = sum(_bits(operand) for operand in operands) // 30 + 1
        self._count(digits)
        left, right = operands[0], operands[-1]
        if len(operands) == 1 or not isinstance(left, int) or not isinstance(right, int):
            return
        if kind is ast.Pow:
            self._admit_power(left, right)
        elif kind is ast.Mult:
            self._room(_bits(left) + _bits(right))
            self._count(_product(_bits(left), _bits(right)))
        elif kind in (ast.FloorDiv, ast.Mod):
            shorter = min(_bits(right), max(_bits(left) - _bits(right), 0))
            self._count((shorter // 30 + 1) * digits)

    def _admit_power(self, base: int, exponent: int) -> None:
        if exponent < 0:
            return
        if abs(base) < 2:
            self._count(exponent.bit_length())
            return
        bits = base.bit_length() * exponent
        self._room(bits)
        self._count(_product(bits, bits))  # the squarings before the last add up to less than it

    def _room(self, more: int) -> None:
        if self._bits + more > MAX_BITS:
            raise Unevaluable(f"the numbers would take more than {MAX_BITS} bits")

    def _count(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise Unevaluable("the numbers are too large to calculate with")


def _bits(value: Number) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _product(left: int, right: int) -> int:
    """The work of a product, from the bits of its factors: as at school up to 70 digits, Karatsuba's beyond."""
    few, many = sorted((left // 30 + 1, right // 30 + 1))
    if few < 70:
        return few * many
    return int(70**2 * (few / 70) ** 1.585 * many / few)
