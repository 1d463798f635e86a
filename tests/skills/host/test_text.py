from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.host.text import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""), ("x", "x"), (7, "7"), (True, "True"), (1.5, "1.5"), (Decimal("1.5"), "1.5"),
        (Decimal("1E+3"), "1000.0"), (Decimal("1E+400"), "inf"), ([1, "a"], "[1, 'a']"),
        ({"a": Decimal("0.1"), "b": [None]}, "{'a': 0.1, 'b': [None]}"),
    ],
)  # fmt: skip
def test_it_is_pythons_own_text_whatever_decoded_the_numbers(value: Any, expected: str) -> None:
    assert text(value, at_most=100) == expected


def test_what_has_no_text_is_a_value_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = {"a": deep}
    for value in (deep, 10**5000):
        with pytest.raises(ValueError, match=r"nested too deeply|Exceeds the limit"):
            text(value, at_most=10**7)


def made(depth: int) -> Any:
    return [made(depth - 1)] * 10 if depth else 1


@pytest.mark.parametrize(
    "value",
    [[1] * 51, [[]] * 26, ["x" * 100], {"x" * 100: 1}, {str(n): n for n in range(17)}, made(5), [Decimal(1)] * 51],
)
def test_a_long_text_is_not_made(value: Any) -> None:
    with pytest.raises(ValueError, match="the value takes more than 100 characters"):
        text(value, at_most=100)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_what_fits_is_never_refused(value: Any) -> None:
    made = text(value, at_most=10**6)
    assert text(value, at_most=max(len(made), 1)) == made


def test_a_string_is_what_it_is_however_long() -> None:
    assert text("x" * 101, at_most=100) == "x" * 101
