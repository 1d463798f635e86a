"""Every recorded row of the invocation model is held by a test, or departed from here by its id, with the reason."""

import re
from pathlib import Path
from typing import Any

import pytest

from broker.pipeline.pipeline import task_id
from broker.sessions import Credential, SessionError, claimed_session
from bus import Request, Unauthenticated
from tests.skills.vectors import expand
from tests.vectors import parametrize, rows

TESTS = Path(__file__).parents[1]
SESSIONS = {row["id"] for row in rows("world", kind="session_header")}
TASKS = {row["id"] for row in rows("world", kind="task_id") if not row["output"]}

DEPARTURES = {
    **dict.fromkeys(
        SESSIONS, "the credential itself is never sent: what stands behind Bearer is a proof, which none of these is"
    ),
    **dict.fromkeys(TASKS, "the caller's message id is the key, of any form; the task's id is made from it"),
}


def test_every_kind_of_row_has_its_test() -> None:
    held = set()
    for path in TESTS.rglob("test_*.py"):
        held |= set(re.findall(r'parametrize\("world", kind="(\w+)"', path.read_text(encoding="utf-8")))
    assert held == {row["kind"] for row in rows("world")}


def test_every_departure_is_from_a_row() -> None:
    assert set(DEPARTURES) <= {row["id"] for row in rows("world")}


@parametrize("world", kind="session_header")
def test_no_header_with_a_credential_in_it_proves_a_session(row: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        claimed_session(Request("a", "SendMessage", "m", b"{}", {}, authorization=row["input"]))


@parametrize("world", kind="session_header")
def test_a_credential_is_named_as_recorded(row: dict[str, Any]) -> None:
    if not isinstance(row["output"], dict):
        return
    text = row["input"].split()[1]
    if text == text.lower():
        assert Credential(text).id == row["output"]["credential_id"]
    else:  # by the rows an unknown session; here it is not even a credential
        with pytest.raises(SessionError):
            Credential(text)


@parametrize("world", kind="task_id")
def test_a_task_of_any_message_has_an_id_of_the_recorded_form(row: dict[str, Any]) -> None:
    found = task_id("ep1", expand(row["input"], {}))
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", found)
    assert found == task_id("ep1", expand(row["input"], {})) != task_id("ep2", expand(row["input"], {}))
