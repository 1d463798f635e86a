import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
PACK = ("--pack", "tests.packs:slow")


def raw(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    task: dict[str, Any] = json.loads(ended.out)["task"]
    return task


def metadata(task: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = task["artifacts"][0]["metadata"]
    return found


def test_a_call_shows_its_envelope(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("call", "write_file", "--arg", "path=a.txt", "--arg", "content=hi")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "write_file: completed, ok  entry 1"
    assert "  written    true" in lines
    (output,) = (line for line in lines if line.startswith("output  sha256:"))
    assert output.endswith(" bytes)")
    (world,) = (line for line in lines if line.startswith("world   plan sha256:"))
    assert lines[lines.index(world) + 1].startswith("        e1 ok sha256:")


def test_several_lines_stay_several_lines_and_control_characters_command_nothing(
    skillbus: Skillbus, session: Path, home: Home
) -> None:
    (home.workspaces / "ep1" / "a.txt").write_text("one\ntwo\x1b[31m\u202ered\n")
    out = skillbus("call", "ailang-read", "--arg", "path=a.txt").out
    assert "  content        one\n                 two\\x1b[31m" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("skill", "arguments"),
    [
        ("calc", {"expr": "2 ** 70"}),
        ("calc", {"expr": "0.1 + 0.2"}),
        ("calc", {"expr": "1 / 0"}),
        ("list_files", {"path": ""}),
        ("ailang-read", {"path": "../x"}),
        ("ailang-write", {"path": "é.txt", "content": 'quote " and \u2028'}),
    ],
)
def test_json_out_is_exactly_the_bytes_that_the_log_names(
    skillbus: Skillbus, session: Path, skill: str, arguments: dict[str, str]
) -> None:
    options = ("call", skill, "--json", json.dumps(arguments), "--message-id", "m1")
    ended = skillbus(*options, "--json-out")
    assert ended.code == 0, ended.err
    assert ended.out.endswith("}\n")
    digest = hashlib.sha256(ended.out.removesuffix("\n").encode()).hexdigest()
    assert metadata(raw(skillbus(*options, "--raw")))["output"] == f"sha256:{digest}"
    assert json.loads(ended.out)["world"]["plan"].startswith("sha256:")


def test_an_output_that_is_not_what_the_log_names_is_a_fault(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bus import Client

    send = Client.send

    async def tampered(self: Client, *arguments: Any, **options: Any) -> dict[str, Any]:
        response = await send(self, *arguments, **options)
        response["task"]["artifacts"][0]["parts"][0]["text"] = "43"
        return response

    monkeypatch.setattr(Client, "send", tampered)
    for option in ([], ["--json-out"], ["--quiet"]):
        ended = skillbus("call", "calc", "--arg", "expr=6*7", *option)
        assert ended.code == 3
        assert ended.out == ""
        assert "the log names sha256:" in ended.err


def test_a_reply_that_is_no_result_is_an_error(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(*_: Any, **__: Any) -> dict[str, Any]:
        return {"message": {"messageId": "1", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}}

    monkeypatch.setattr("bus.Client.send", other)
    ended = skillbus("call", "calc")
    assert ended.code == 1
    assert "is not the result of a Skillbus call" in ended.err
    assert json.loads(skillbus("call", "calc", "--raw").out)["message"]["parts"] == [{"text": "hello"}]


def test_a_refusal_is_a_result_and_strict_makes_it_an_exit_code(skillbus: Skillbus, session: Path) -> None:
    options = ("call", "ailang-read", "--arg", "path=/etc/passwd")
    ended = skillbus(*options)
    assert ended.code == 0
    assert ended.out.startswith("ailang-read: rejected, error, refused  entry 1\n")
    assert 'path "/etc/passwd" refused' in ended.out
    strict = skillbus(*options, "--strict")
    assert strict.code == 3
    assert strict.out.startswith("ailang-read: rejected")
    assert strict.err == "error: --strict: ailang-read ended rejected (refused), and its status is error\n"
    assert skillbus(*options, "--strict", "--raw").code == 3


@pytest.mark.parametrize(
    ("skill", "options"),
    [
        ("read_file", ["--arg", "path=nowhere.txt"]),  # the tool says error
        ("ailang-read", ["--arg", "path=nowhere.txt"]),  # the tool says ok: false
        ("slow", ["--arg", "marker=marks", "--arg-json", "fail=true", *PACK]),  # the handler fails
    ],
)
def test_strict_sees_every_way_of_going_wrong(
    skillbus: Skillbus, session: Path, skill: str, options: list[str]
) -> None:
    assert skillbus("call", skill, *options, "--message-id", "m1").code == 0
    assert skillbus("call", skill, *options, "--message-id", "m1", "--strict").code == 3


def test_strict_lets_what_went_well_pass(skillbus: Skillbus, session: Path) -> None:
    assert skillbus("call", "calc", "--arg", "expr=1", "--strict", "--quiet") == Ended(0, "", "")


def test_a_used_up_budget_denies(skillbus: Skillbus, session: Path) -> None:
    mark = ("call", "slow", "--arg", "marker=marks", *PACK)
    assert skillbus(*mark).out.startswith("slow: completed, ok  entry 1\n")
    denied = skillbus(*mark)
    assert denied.code == 0
    assert denied.out.startswith("slow: rejected, error, denied:budget  entry 2\n")
    assert len(Path("marks").read_text().splitlines()) == 1


def test_a_call_sent_again_runs_nothing_again(skillbus: Skillbus, session: Path) -> None:
    call = ("call", "slow", "--arg", "marker=marks", *PACK, "--message-id", "m1", "--raw")
    first, second = raw(skillbus(*call)), raw(skillbus(*call))
    assert first == second
    assert len(Path("marks").read_text().splitlines()) == 1
    other = skillbus("call", "slow", "--arg", "marker=others", *PACK, "--message-id", "m1")
    assert other.code == 1
    assert "IDEMPOTENCY_CONFLICT" in other.err
    assert "--message-id m1" in other.err
    assert not Path("others").exists()


def test_what_the_host_logs_of_a_failure_is_said(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("call", "slow", "--arg", "marker=marks", "--arg-json", "fail=true", *PACK)
    assert ended.out.startswith("slow: failed, error  entry 1\n  the handler failed\n")
    assert "warning: call a2a:ep1:" in ended.err
    assert "asked to fail" in ended.err


def test_a_context_is_kept(skillbus: Skillbus, session: Path) -> None:
    assert raw(skillbus("call", "calc", "--arg", "expr=1", "--context", "c1", "--raw"))["contextId"] == "c1"
    assert raw(skillbus("call", "calc", "--arg", "expr=1", "--raw"))["contextId"] == "ep1"


def test_arguments_come_from_stdin(home: Home, session: Path) -> None:
    ended = home.run("call", "calc", "--json", "-", "--json-out", stdin='{"expr": "6*7"}')
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["text"] == "42"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["nothing"], "SKILL_NOT_FOUND: no such skill. It is absent or not granted"),
        (["send_reply"], "SKILL_NOT_FOUND: no such skill. It is absent or not granted"),
        (["calc", "--timeout", "0"], "--timeout is more than 0"),
        (["calc", "--timeout", "2d"], "--timeout is more than 0 and at most a day"),
        (["calc", "--raw", "--quiet"], "one of --json-out, --raw and --quiet"),
        (["calc", "--json", "{}", "--arg", "a=1"], "not both"),
        (["calc", "--arg-json", "a=184467440737095516160"], "cannot be written as JSON"),
        (["calc", "--context", "c" * 300], "INVALID_PARAMS: message.contextId"),
        (["calc", "--message-id", "m" * 300], "INVALID_REQUEST: a message id has at most 255 bytes"),
        (["calc", "--agent", "No!"], "--agent: must be of a-z"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    skillbus: Skillbus, session: Path, options: list[str], says: str
) -> None:
    ended = skillbus("call", *options)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1
    assert ended.err.startswith("error: ")


def test_a_deadline_that_passes_says_how_to_get_the_result(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("call", "slow", "--arg", "marker=marks", "--arg-json", "seconds=30", *PACK, "--timeout", "0.2")
    assert ended.code == 1
    assert "DEADLINE_EXCEEDED" in ended.err.splitlines()[-1]
    assert "--message-id" in ended.err


def test_a_call_makes_no_ledger(skillbus: Skillbus, session: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ended = skillbus("call", "calc", "--state-dir", str(other))
    assert ended.code == 1
    assert f"there is no ledger {other}/ledger.db yet" in ended.err
    assert not other.exists()


def test_a_file_that_is_no_ledger_is_an_error(skillbus: Skillbus, session: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_text("this is no database, but it is long enough to be taken for one " * 20)
    ended = skillbus("call", "calc", "--ledger", str(file))
    assert ended.code == 1
    assert "can't be opened: file is not a database" in ended.err


def test_a_session_of_another_ledger_is_unknown(skillbus: Skillbus, session: Path, tmp_path: Path) -> None:
    other = ("--state-dir", str(tmp_path / "other"))
    assert skillbus("session", "new", "ep1", "-g", "A=b:1", *other).code == 0
    ended = skillbus("call", "calc", *other)
    assert ended.code == 1
    assert "UNAUTHENTICATED" in ended.err
    assert "skillbus session list --all" in ended.err


def test_a_pack_that_is_left_out_is_warned_of(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("call", "calc", "--arg", "expr=1", "--quiet", "--pack", "tests.packs:broken")
    assert ended.code == 0
    assert ended.err == ("warning: pack 'tests.packs:broken' is left out: RuntimeError: this pack can't be made\n")


def test_a_call_needs_no_git(home: Home, session: Path) -> None:
    ended = home.run("call", "write_file", "--arg", "path=a.txt", "--arg", "content=x", "--strict", PATH="/nonexistent")
    assert ended.code == 0, ended.err


def test_an_interrupt_ends_quietly(home: Home, session: Path) -> None:
    import signal

    from tests.deploy.conftest import until

    marks = home.folder / "marks"
    with home.start("call", "slow", "--arg", f"marker={marks}", "--arg-json", "seconds=30", *PACK) as process:
        until(marks.exists, "the call")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=25)  # its call would take 30
    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)


def test_what_a_pack_does_not_take_is_a_warning_and_the_call_runs(skillbus: Skillbus, session: Path) -> None:
    Path("skillbus.toml").write_text('packs = ["os:system"]\n[tools]\nfs = 1\n')
    ended = skillbus("call", "calc", "--arg", "expr=6*7")
    assert ended.code == 0
    assert "warning: tools.fs is not taken: it must be a table\n" in ended.err
    assert "warning: pack 'os:system' is left out: TypeError: " in ended.err


def test_a_call_names_the_task_that_it_is_part_of(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bus import Client

    send, seen = Client.send, []

    async def watched(self: Client, *arguments: Any, **options: Any) -> dict[str, Any]:
        seen.append(options["headers"])
        return await send(self, *arguments, **options)

    monkeypatch.setattr(Client, "send", watched)
    assert skillbus("call", "calc", "--arg", "expr=1", "--root-task", "t-1").code == 0
    assert skillbus("call", "calc", "--arg", "expr=1").code == 0
    assert seen == [{"a2a-root-task": "t-1"}, {}]
