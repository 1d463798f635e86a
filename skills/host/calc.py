"""The tool calc: the value of an arithmetic expression, as text."""

from collections.abc import Mapping
from typing import Any

from ..arguments import legible
from ..contract import Contract, Risk
from ..plan import Plan
from ..skill import Skill
from .arithmetic import MAX_DIGITS, MAX_LENGTH, Unevaluable, evaluate
from .text import text

SHOWN = 200  # characters of an expression that is too long to show whole

CONTRACT = Contract(
    id="calc",
    title="Calculate",
    description=(
        "Calculate an arithmetic expression exactly, instead of in your head. `expr` holds whole and decimal numbers, "
        "`+ - * /`, `//` (quotient rounded down), `%` (remainder), `**` (power) and parentheses, as in Python: `/` "
        "always gives a decimal, whole numbers are exact. No names, functions, comparisons or units. Answers with the "
        "number as text, or with text that begins with `error:`. "
        f"Limits: {MAX_LENGTH} characters, an answer of {MAX_DIGITS} digits. Needs no grant."
    ),
    tags=("arithmetic",),
    examples=('{"expr": "(17+4)*3"}', '{"expr": "2**10/7"}'),
    input_schema={
        "type": "object",
        "properties": {
            "expr": {"type": "string", "description": "The expression"},
            "query": {"type": "string", "description": "The expression, where `expr` is left out or empty"},
        },
        "additionalProperties": True,
    },
    output_schema={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The value, or `error: …`"}},
        "required": ["text"],
    },
    repeatable=True,
    output_mode="text/plain",
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="normal", idempotent=True),
)


def calc() -> Skill:
    """The skill; it has no effect and no tier but live."""
    return Skill(CONTRACT, plan)


def plan(arguments: Any) -> Plan:
    if not isinstance(arguments, Mapping):
        return Plan(result={"text": "error: arguments must be a JSON object"}, refused=True)
    try:
        expression = text(arguments.get("expr") or arguments.get("query") or "", at_most=MAX_LENGTH).strip()
    except ValueError as error:
        return Plan.answer({"text": legible(f"error: {error}")})
    return Plan.answer({"text": legible(_answer(expression))})


def _answer(expression: str) -> str:
    try:
        return evaluate(expression)
    except Unevaluable as reason:
        shown = expression if len(expression) <= MAX_LENGTH else f"{expression[:SHOWN]}…"
        return f"error: could not evaluate {shown!r} ({reason})"
