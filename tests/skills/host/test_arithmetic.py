import time
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.host import arithmetic
from skills.host.arithmetic import (
    MAX_BITS,
    MAX_LENGTH,
    MAX_NESTING,
    MAX_TOKENS,
    MAX_WORK,
    Number,
    Unevaluable,
    evaluate,
)

MEMORY = 1 << 20


def reason(expression: str) -> str:
    with pytest.raises(Unevaluable) as raised:
        evaluate(expression)
    return str(raised.value)


NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.integers(0, 10**40).map(str),
    st.floats(min_value=0, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["0", "1", "2", "0x1f", "0b101", "0o17", "1_000", "1e3", ".5", "5.", "True", "False", "1e308", "1e-320"]
    ),
)


def expressions() -> st.SearchStrategy[str]:
    return st.recursive(
        NUMBERS,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join),
            st.tuples(inner, st.sampled_from(["2", "3", "0", "-1", "0.5"])).map(
                lambda pair: f"({pair[0]}) ** {pair[1]}"
            ),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-{text}"),
            inner.map(lambda text: f"+ {text}"),
        ),
        max_leaves=20,
    )


def by_python(expression: str) -> str:
    """Python's own value, or the text of its error."""
    try:
        return str(eval(expression, {"__builtins__": {}}))
    except (ArithmeticError, ValueError, TypeError) as error:
        return f"error: {error}"


@given(expressions())
def test_it_calculates_as_python_does(expression: str) -> None:
    try:
        value = evaluate(expression)
    except Unevaluable as unevaluable:
        value = f"error: {unevaluable}"
    assert value == by_python(expression)


@given(st.text(alphabet="0123456789.eExXbBoO_+-*/%() \t\n#TrueFalse'\"\\[]{}<>=!&|^~@,:;$if or", max_size=60))
def test_whatever_it_is_given_it_answers_or_tells_why_not(expression: str) -> None:
    try:
        answer = evaluate(expression)
    except Unevaluable as unevaluable:
        answer = str(unevaluable)
    assert isinstance(answer, str)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2**14000", str(2**14000)),
        ("9" * 4300, "9" * 4300),
        ("10**4299", "1" + "0" * 4299),
        ("10**5000 % 7", str(10**5000 % 7)),
        ("10**5000 // 10**4990", "10000000000"),
        ("1**(10**4000)", "1"),
        ("(-1)**(10**4000+1)", "-1"),
        ("0**(10**4000)", "0"),
        ("True**10**9", "1"),
        ("2**-1", "0.5"),
        ("1e308*10-1e308*10", "nan"),
        ("-0.0", "-0.0"),
        ("0x" + "f" * 3000 + " % 7", str(int("f" * 3000, 16) % 7)),
        ("+".join("1" * (MAX_TOKENS // 2)), str(MAX_TOKENS // 2)),
        ("(" * MAX_NESTING + "1" + ")" * MAX_NESTING, "1"),
        ("(1 +\n  2)", "3"),
        ("1 # ((((", "1"),
        ("1 + \\\n2", "3"),
    ],
)  # fmt: skip
def test_what_is_within_the_limits_is_exact(expression: str, value: str) -> None:
    assert evaluate(expression) == value


DIGITS = "Exceeds the limit (4300 digits) for integer string conversion; "
TOO_MANY_BITS = f"the numbers would take more than {MAX_BITS} bits"
TOO_MUCH_WORK = "the numbers are too large to calculate with"
BIG = "(9**9**5)"


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("10**4300", DIGITS),
        ("-(10**4300)", DIGITS),
        ("9**9**5", DIGITS),
        ("2**100000", DIGITS),
        ("9**9**7", TOO_MANY_BITS),
        ("9**9**9", TOO_MANY_BITS),
        ("9**9**9**9", TOO_MANY_BITS),
        ("2**10**100", TOO_MANY_BITS),
        ("(10**4000)**(10**4000)", TOO_MANY_BITS),
        ("(-2)**(10**9)", TOO_MANY_BITS),
        ("+".join([f"{BIG}"] * 6), TOO_MUCH_WORK),
        ("*".join(["(2**60000)"] * 30), TOO_MUCH_WORK),
        ("(2**400000)//(2**200000)", TOO_MUCH_WORK),
        ("+".join(["2**60000*2**60000%(2**30000+1)"] * 50), TOO_MUCH_WORK),
        ("1" * (MAX_LENGTH + 1), f"the expression is longer than {MAX_LENGTH} characters"),
        ("+".join("1" * 1000), f"the expression has more than {MAX_TOKENS} tokens"),
        ("-" * 4_000 + "1", f"the expression has more than {MAX_TOKENS} tokens"),
        ("1 " * 2_000 + "1", f"the expression has more than {MAX_TOKENS} tokens"),
        ("-" * 10_000 + "1", f"the expression is longer than {MAX_LENGTH} characters"),
        ("1 " * 1_000_000, f"the expression is longer than {MAX_LENGTH} characters"),
        ("(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1), "too many nested parentheses (<unknown>, line 1)"),
        ("lambda:" * 601, f"the expression has more than {MAX_TOKENS} tokens"),
        ("~1", "unsupported expression"),
        ("1@2", "unsupported expression"),
        ("not 1", "unsupported expression"),
        ("1 and 2", "unsupported expression"),
        ("(1,)", "unsupported expression"),
        ("...", "unsupported expression"),
        ("(lambda: 1)()", "unsupported expression"),
        ("1 .real", "unsupported expression"),
        ("(yield)", "unsupported expression"),
    ],
)
def test_what_is_not_calculated(expression: str, why: str) -> None:
    assert reason(expression).startswith(why)


def test_an_interpreter_with_a_lower_limit_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_TOO_LARGE", 10**10_000)
    assert reason("10**5000").startswith("Exceeds the limit (4300")


PATHOLOGICAL = [
    *(opening * 190 + "1" + middle + closing * 190
      for opening, closing in [("(", ")"), ("[", "]"), ("{", "}"), ("f(", ")"), ("a[", "]"), ("(a:=", ")"), ("*(", ")")]
      for middle in ("", " 1", ",", ":", "=")),
    *(piece * (1700 // (2 * len(piece))) + "1"
      for piece in ["-", "+", "--+", "not ", "1**", "1**-", "2**", "1if 1else ", "1 if 1 else ", "lambda:", "1<", "1,",
                    "a.", "a=", "1 or ", "await ", "f'{1}'", "'a' ", "((", "{1:", "[a for a in ", "{**", "*", "~", "1_",
                    "0x", "1e"]),
    "+".join(["2**1000000"] * 200),
    "*".join(["2**1000"] * 250),
    "%".join(["2**500000"] + ["2**400000"] * 100),
    "//".join(["2**500000"] + ["3"] * 800),
    "+".join(["9**9**5//9**9**4"] * 100),
    "1" + "%2.0**1023" * 250,
    "2**" * 80 + "2",
    "(" + "2**20000+" * 180 + "1)**2",
    "9" * MAX_LENGTH,
    "0x" + "f" * (MAX_LENGTH - 2),
    "1" + "0" * 4299 + "*1" * 300,
    "/".join(["10**4000"] * 150),
    "'" + "\\d" * 2000 + "'",
    "\U0010ffff" * MAX_LENGTH,
    "\n" * 4000 + "1",
    "(" + "\n" * 4000 + "1)",
    "#" * MAX_LENGTH,
]  # fmt: skip


def seconds(expression: str) -> float:
    """What the processor takes for an expression, the best of three; what else runs on it does not count."""

    def once() -> float:
        begun = time.thread_time()
        with suppress(Unevaluable):
            evaluate(expression)
        return time.thread_time() - begun

    return min(once() for _ in range(3))


@given(expressions() | st.sampled_from(PATHOLOGICAL))
def test_none_takes_the_processor_for_a_tenth_of_a_second(expression: str) -> None:
    assert seconds(expression) < 0.1  # a few milliseconds, measured


@pytest.mark.parametrize("expression", PATHOLOGICAL, ids=range(len(PATHOLOGICAL)))
def test_a_pathological_expression_ends_within_its_memory(expression: str) -> None:
    """That this test ends at all bounds the time; what is done is bounded below, by counting and not by a clock."""
    tracemalloc.start()
    try:
        evaluate(expression)
    except Unevaluable:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= MEMORY + len(expression) * 4


class Counted:
    """Stands for the operators, and counts what they really do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.work = 0
        self.largest = 0
        for kind, original in list(arithmetic._APPLY.items()):
            patch.setitem(arithmetic._APPLY, kind, self.counting(original))

    def counting(self, original: Callable[..., Number]) -> Callable[..., Number]:
        def apply(*operands: Number) -> Number:
            value = original(*operands)
            for number in (*operands, value):
                if isinstance(number, int):
                    self.largest = max(self.largest, number.bit_length())
                    self.work += number.bit_length() // 30
            return value

        return apply

    def within_limits(self) -> bool:
        return self.largest <= MAX_BITS and self.work <= 3 * MAX_WORK


@pytest.mark.parametrize("expression", PATHOLOGICAL, ids=range(len(PATHOLOGICAL)))
def test_no_number_is_larger_and_no_more_is_done_than_the_limits_say(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    with suppress(Unevaluable):
        evaluate(expression)
    assert counted.within_limits()


@given(
    st.recursive(
        st.sampled_from(["2", "9", "10**100", "7**3000", "1e3", "True"]),
        lambda inner: st.tuples(inner, st.sampled_from(["+", "*", "**", "//", "%", "-"]), inner).map(
            lambda parts: f"({''.join(parts)})"
        ),
        max_leaves=30,
    )
)
def test_towers_of_large_numbers_end(expression: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = Counted(patch)
        with suppress(Unevaluable):
            evaluate(expression)
        assert counted.within_limits()


@pytest.mark.parametrize("left", [1, 30, 69 * 30, 70 * 30, 5000 * 30])
@pytest.mark.parametrize("right", [1, 30, 2100, 150_000])
def test_a_product_counts_the_same_in_either_order_and_more_for_more(left: int, right: int) -> None:
    assert arithmetic._product(left, right) == arithmetic._product(right, left)
    assert arithmetic._product(left, right) <= arithmetic._product(left + 3000, right)


@pytest.mark.parametrize(
    "expression", [r"'\d'", r"b'\u1'", "1if 1else 2", "1or 2", "0x1for x in y", "1.5in 2", r"'\400'", "1\\"]
)
def test_the_parser_is_never_made_to_warn(expression: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reason(expression)
    assert caught == []
