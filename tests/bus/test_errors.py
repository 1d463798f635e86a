"""The error table, out and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bus
from bus import ERRORS, BusError, InternalError, from_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


def test_codes_and_reasons_are_unique() -> None:
    assert len({kind.reason for kind in ERRORS.values()}) == len(ERRORS)
    for code, kind in ERRORS.items():
        assert kind.code == code
        assert (kind.domain == "skillbus") == (not -32768 <= code <= -32000)


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_itself(kind: type[BusError]) -> None:
    for error in (kind(), kind("message", metadata={"k": "v"})):
        back = from_json(error.as_json())
        assert type(back) is kind
        assert (back.message, back.metadata, str(back)) == (error.message, error.metadata, error.message)


def test_transport_errors_travel_as_what_they_are_to_the_caller() -> None:
    for kind in (bus.ConnectionLost, bus.Rejected, bus.Unroutable, bus.Refused):
        assert type(from_json(kind().as_json())) is bus.Unavailable
    assert type(from_json(bus.AgentNotFound().as_json())) is bus.SkillNotFound


@given(JSON, JSON, JSON)
def test_any_body_is_some_error(code: Any, message: Any, details: Any) -> None:
    assert isinstance(from_json({"code": code, "message": message, "details": details}), BusError)


def test_an_unknown_code_is_named() -> None:
    error = from_json({"code": -1, "message": "odd"})
    assert type(error) is InternalError
    assert "-1" in error.message
    assert "odd" in error.message
