"""Points in time on the wire."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import deadline

MOMENTS = st.floats(min_value=-62_000_000_000, max_value=253_000_000_000)


@given(MOMENTS)
def test_a_moment_reads_back_to_the_millisecond(moment: float) -> None:
    text = deadline.write(moment)
    assert text.endswith("Z")
    assert deadline.read(text) == pytest.approx(moment, abs=0.001)
    assert deadline.write(deadline.read(text)) == text


@given(st.floats(0, 4_000_000_000), st.floats(0.001, 86_400))
def test_a_deadline_reads_back_exactly(now: float, seconds: float) -> None:
    moment = deadline.after(now, seconds)
    assert now + seconds - 0.0011 < moment <= now + seconds
    assert deadline.read(deadline.write(moment)) == moment


@given(st.text(max_size=40))
def test_reading_raises_nothing_else(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(deadline.read(text), float)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("1970-01-01t00:00:01z", 1.0),
        ("1970-01-01T00:00:00.25+00:00", 0.25),
        ("1970-01-01T00:00:00.123456789-00:00", 0.123456),
        ("2026-11-30T15:01:00.000Z", 1796050860.0),
    ],
)
def test_forms_that_are_taken(text: str, moment: float) -> None:
    assert deadline.read(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "0", "1970-01-01", "1970-01-01 00:00:00Z", "1970-01-01T00:00Z", "1970-01-01T00:00:00",
        "1970-01-01T00:00:00+01:00", "1970-13-01T00:00:00Z", "1970-02-30T00:00:00Z", "1970-01-01T24:00:01Z",
        "1970-01-01T00:00:61Z", "1970-01-01T00:00:00.Z", "1970-01-01T00:00:00Z\n", "٢٠٢٦-11-30T15:01:00Z",
        "0000-01-01T00:00:00Z", "1970-01-01T00:00:00.0123456789Z",
    ],
)  # fmt: skip
def test_forms_that_are_not(text: str) -> None:
    with pytest.raises(ValueError):
        deadline.read(text)


@pytest.mark.parametrize("moment", [1e12, -1e12, 1e300, float("inf"), float("nan")])
def test_moments_that_cannot_be_written(moment: float) -> None:
    with pytest.raises(ValueError):
        deadline.write(moment)
