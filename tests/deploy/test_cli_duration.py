import pytest

from deploy.cli.duration import parse_duration, write_duration
from deploy.cli.failure import Failure


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600),
        ("0", 0),
        ("1.5", 1.5),
        ("90m", 5400),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("0.5s", 0.5),
        ("250ms", 0.25),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text, option="--ttl") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "-1", "1 h", "1w", "1h ", "1hm", "١", "1e3", "nan", "999999999999h"])
def test_what_is_no_duration_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(Failure, match=r"^--ttl "):
        parse_duration(text, option="--ttl")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (3600, "1h"), (5400, "1h30m"), (93_600, "1d2h"), (86_400 + 61, "1d1m")],
)
def test_a_duration_is_written_in_two_units(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text
