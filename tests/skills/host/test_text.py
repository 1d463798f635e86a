from decimal import Decimal
from typing import Any

import pytest

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
    assert text(value) == expected


def test_what_has_no_text_is_a_value_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = {"a": deep}
    for value in (deep, 10**5000):
        with pytest.raises(ValueError, match=r"nested too deeply|Exceeds the limit"):
            text(value)
