from collections.abc import Iterator

import pytest

from skills.redaction import Secret, redact_known, redactor_of
from skills.redaction.known import forget


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    forget()
    yield
    forget()


def secrets(value: str) -> dict[str, Secret]:
    return {"KEY": Secret("KEY", value)}


def test_logs_know_the_values_of_every_tool_and_the_last_two_of_each() -> None:
    for tool, value in (("a", "first one"), ("b", "other tool"), ("a", "second one")):
        redactor_of(tool, secrets(value))
    text = "first one, second one, other tool, third one"
    assert redact_known(text) == "[secret], [secret], [secret], third one"
    redactor_of("a", secrets("third one"))
    assert redact_known(text) == "first one, [secret], [secret], [secret]"


def test_a_redactor_is_made_once_for_the_same_values() -> None:
    assert redactor_of("a", secrets("first one")) is redactor_of("a", secrets("first one"))
    assert redactor_of("a", {}).text("first one") == "first one"
    assert redact_known("first one") == "[secret]"
