import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skills.host.envelope import FIELDS, observation, output_schema


def test_the_fields_come_in_their_order_before_the_payload() -> None:
    assert observation("t", {"path": "p"}) == {
        "tool": "t", "stub": False, "error": None, "status": "ok", "retryable": False, "untrusted": True, "path": "p",
    }  # fmt: skip
    assert list(observation("t", {"path": "p", "a": 1}, error="e", stub=True)) == [*FIELDS, "path", "a"]
    assert observation("t", {}, error="e")["status"] == "error"
    assert observation("t", {}, error="")["error"] is None


@given(st.text(alphabet=st.characters(codec=None)), st.text(alphabet=st.characters(codec=None)))
def test_it_is_always_json_in_utf_8(path: Any, error: str) -> None:
    envelope = observation("t", {"path": path}, error=error)
    assert json.loads(json.dumps(envelope, ensure_ascii=False).encode()) == envelope


def test_its_schema_requires_every_field() -> None:
    schema = output_schema({"path": {"type": "string"}})
    assert schema["required"] == [*FIELDS, "path"]
    assert set(schema["properties"]) == {*FIELDS, "path", "world"}
