import json
import math
from typing import Any

import pytest
from a2a.utils import _jcs
from hypothesis import given
from hypothesis import strategies as st

from broker.agent.jcs import NoCanonicalForm, canonicalize

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)


def test_the_example_of_the_rfc() -> None:
    # RFC 8785, section 3.2.2 and 3.2.3.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
        "literals": [None, True, False],
    }
    assert canonicalize(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


@given(VALUES)
def test_it_is_what_the_sdk_of_a2a_makes(value: Any) -> None:
    def finite(value: Any) -> bool:
        match value:
            case float():
                return math.isfinite(value)
            case list():
                return all(map(finite, value))
            case dict():
                return all(map(finite, value.values()))
        return True

    if finite(value):
        assert canonicalize(value).decode() == _jcs.canonicalize(value)
        assert canonicalize(json.loads(canonicalize(value))) == canonicalize(value)
    else:
        with pytest.raises(NoCanonicalForm, match="not representable"):
            canonicalize(value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        # RFC 8785, appendix B; and an integer that no double holds.
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-1.7976931348623157e308, "-1.7976931348623157e+308"),
        (9007199254740992, "9007199254740992"),
        (295147905179352830000, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (999999999999999700000, "999999999999999700000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.33333325, "333333333.33333325"),
        (9223372036854775807, "9223372036854776000"),
    ],
)
def test_numbers_are_those_of_ecmascript(number: float, text: str) -> None:
    assert canonicalize(number).decode() == text


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, {1: 2}, b"bytes", 10**400, [float("nan")]])
def test_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(NoCanonicalForm):
        canonicalize(value)


def test_nesting_has_an_end() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NoCanonicalForm, match="too deeply"):
        canonicalize(value)
