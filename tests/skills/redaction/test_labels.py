from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skills.redaction import redact_labelled
from tests.skills.vectors import expand
from tests.vectors import parametrize


@parametrize("host-tools.policy", kind="redact")
def test_the_recorded_answers(row: dict[str, Any]) -> None:
    assert redact_labelled(expand(row["input"], {})) == expand(row["output"], {})


@given(
    label=st.sampled_from(["api_key", "API-KEY", "apikey", "Token", "my_secret", "password", "authorization"]),
    sign=st.sampled_from(["=", ": ", " = "]),
    value=st.text("abcXYZ0189/+", min_size=4),
)
def test_no_value_stands_behind_its_label(label: str, sign: str, value: str) -> None:
    assert value not in redact_labelled(f"before {label}{sign}<{value}>, after")


def test_no_depth_is_too_deep() -> None:
    value: Any = "password=hunter2"
    for _ in range(10_000):
        value = [value]
    assert "hunter2" not in str(redact_labelled(value))
