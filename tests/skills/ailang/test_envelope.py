"""The four shapes, on bytes; the recorded ones go through real pipes in test_adapter.py as well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.ailang.envelope import NotRecognised, read_envelope
from skills.process import Finished
from tests.skills.ailang.transcripts import of_kind
from tests.skills.vectors import Row

POLICY = 'policy: {"ok":true,"decision":{"ok":true}}\n'
LIMIT = 'policy-result: {"reason":"timeout","stage":"execute"}\n'


def read(status: int, stdout: str, stderr: str) -> dict[str, object]:
    return read_envelope(Finished(status, stdout.encode(), stderr.encode(), cut=False))


@pytest.mark.parametrize("row", of_kind("run-envelope"), ids=lambda row: row["id"])
def test_a_recorded_envelope(row: Row) -> None:
    if not row["expect"]["recognised"]:
        with pytest.raises(NotRecognised):
            read(row["exit_code"], row["stdout"], row["stderr"])
        return
    envelope = read(row["exit_code"], row["stdout"], row["stderr"])
    assert (envelope["admitted"], envelope["exit_code"]) == (row["expect"]["admitted"], row["exit_code"])
    assert (envelope["limit"] is not None) == row["expect"]["limit"]


@pytest.mark.parametrize(
    ("status", "stdout", "stderr"),
    [
        (0, "", ""),
        (1, "", ""),
        (2, '{"decision":{"ok":true}}', ""),
        (0, '{"decision":{"ok":false}}', ""),
        (2, '{"decision":false}', ""),
        (2, '{"decision":{"ok":false}} x', ""),
        (-9, "", ""),
        (0, "", "policy: \n"),
        (0, "", "policy: []\n"),
        (0, "", " " + POLICY),
        (0, "", 'policy: {"ok":1,"decision":{"ok":true}}\n'),
        (3, "", LIMIT),
        (3, "", POLICY + LIMIT + LIMIT),
        (3, "", POLICY + "policy-result: nonsense\n"),
        (3, "", POLICY + 'policy-result: {"reason":"","stage":"x"}\n'),
        (3, "", POLICY + 'policy-result: {"reason":1,"stage":"x"}\n'),
        (0, "", POLICY + LIMIT),
        (1, "", "Error: x.ail is outside fs_sandbox\n"),
    ],
)
def test_anything_else_is_not_guessed_at(status: int, stdout: str, stderr: str) -> None:
    with pytest.raises(NotRecognised):
        read(status, stdout, stderr)


def test_what_was_written_is_kept_as_it_was() -> None:
    envelope = read_envelope(Finished(7, b"a\r\n\xff", f"b\n{POLICY}c".encode(), cut=False))
    assert envelope == {
        "admitted": True, "exit_code": 7, "decision": {"ok": True}, "limit": None, "stdout": "a\r\n\ufffd",
        "stderr": f"b\n{POLICY}c",
    }  # fmt: skip


@given(
    st.integers(-9, 9),
    st.text(max_size=9) | st.just('{"decision":{"ok":false}}'),
    st.lists(st.sampled_from([POLICY, LIMIT, "x\n", "policy: x\n"])),
)
def test_no_output_is_taken_for_more_than_it_says(status: int, stdout: str, stderr: list[str]) -> None:
    try:
        envelope = read(status, stdout, "".join(stderr))
    except NotRecognised:
        return
    if envelope["admitted"]:
        assert stderr.count(POLICY) == 1
        assert (envelope["limit"] is not None) == (LIMIT in stderr)
        assert LIMIT not in stderr or status == 3
    else:
        assert (stderr, stdout) == ([], '{"decision":{"ok":false}}')
        assert status
