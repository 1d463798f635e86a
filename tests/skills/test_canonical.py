import json
import math
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import canonical
from skills.canonical import NotCanonical, encode, parse
from tests.vectors import parametrize

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@parametrize("world", kind="canonical_json")
def test_vectors(row: dict[str, Any]) -> None:
    expected = row["output"]
    if isinstance(expected, dict):
        with pytest.raises(NotCanonical) as caught:
            parse(row["input"])
        assert str(caught.value) == expected["error"]
    else:
        assert encode(parse(row["input"])).decode() == expected


@parametrize("world", kind="object_ref")
def test_refs(row: dict[str, Any]) -> None:
    assert canonical.ref(encode(parse(row["input"]))) == row["output"]


@given(values)
def test_encoding_is_stable_and_means_the_same(value: Any) -> None:
    data = encode(value)
    assert encode(parse(data)) == data
    assert json.loads(data, parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@given(st.dictionaries(st.text(), scalars), st.randoms())
def test_the_order_of_members_does_not_matter(value: dict[str, Any], random: Random) -> None:
    members = list(value.items())
    random.shuffle(members)
    assert encode(dict(members)) == encode(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_plain_decimals(value: float) -> None:
    text = encode(value).decode()
    assert "e" not in text.lower()
    assert float(text) == value or (math.isclose(value, 0.0) and float(text) == 0)


@given(st.binary())
def test_no_input_breaks_the_parser(data: bytes) -> None:
    with suppress(NotCanonical):
        encode(parse(data))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("NaN", "not JSON"),
        ("[1] 2", "Extra data"),
        ('"\x00"', "control character"),
        ("1" * 1025, "digits"),
        ("1e10001", "exponent"),
        ("1e99999999999999999999", "exponent"),
        ("[" * 100_000, "too deeply"),
        (b"\xff", "not UTF-8"),
        (b'\xef\xbb\xbf"a"', "BOM"),
        ('"\\ud800"', "escaped surrogate"),
        ('{"a":{"b":1,"b":2}}', 'duplicate object member "b"'),
    ],
)
def test_refused_texts(text: str | bytes, why: str) -> None:
    with pytest.raises(NotCanonical, match=why):
        parse(text)


def test_an_escaped_backslash_is_no_surrogate() -> None:
    assert parse(r'"\\ud83d"') == r"\ud83d"


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("nan"),
        "\ud800",
        {"\ud800": 1},
        {1: 2},
        object(),
        b"x",
        10**1024,
        Decimal("1e20000"),
        {"a": {1, 2}},
    ],
)
def test_refused_values(value: Any) -> None:
    with pytest.raises(NotCanonical):
        encode(value)


def test_a_value_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotCanonical, match="too deeply"):
        encode(value)
