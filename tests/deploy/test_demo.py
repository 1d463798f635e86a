import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from deploy import demo
from deploy.house import House
from deploy.settings import Settings
from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
SHOWN = [
    "✓ calculate: calc completed succeeded #1",
    "✓ read a file: ailang-read completed succeeded Workspace.Read 3 → 2 #2",
    "✓ write a file: ailang-write completed succeeded Workspace.Write 4 → 3 #3",
    "✓ list the folder: list_files completed succeeded Workspace.Read 2 → 1 #4",
    "✓ edit a file: ailang-edit completed succeeded Workspace.Write 3 → 2 #5",
    "✓ send it again: ailang-edit completed succeeded Workspace.Write 2 → 2 #5",
    "✓ leave the worktree: ailang-read rejected refused Workspace.Read 1 → 1 #6",
    "✓ use the budget up: read_file completed succeeded Workspace.Read 1 → 0 #7",
    "✓ ask for one more: read_file rejected denied:budget Workspace.Read 0 → 0 #8",
    "✓ write without a grant: ailang-write SKILL_NOT_FOUND Workspace.Write 2 → 2",
    "✓ call what is not there: no-such-skill SKILL_NOT_FOUND",
    "✓ its id, another call: ailang-edit IDEMPOTENCY_CONFLICT Workspace.Write 2 → 2",
    "✓ the worktree, as git sees it M hello.txt ?? todo.txt",
    "chain verified: 8 entries",
]


def lines(ended: Ended) -> list[str]:
    return [" ".join(line.split()) for line in ended.out.splitlines()]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary ones are made in."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_the_main_job_in_one_process(home: Home, temporary: Path) -> None:
    ended = home.run("demo", TMPDIR=str(temporary), MKLANG_FS_BACKEND="stub", GIT_DIR="/nowhere")
    assert (ended.code, ended.err) == (0, "")
    assert lines(ended) == ["The main job, in this process: call, envelope, budget, log entry", *SHOWN]
    assert list(temporary.iterdir()) == []
    assert not (home.folder / "state").exists()


@pytest.mark.rabbitmq
async def test_the_main_job_over_rabbitmq(
    home: Home, temporary: Path, rabbitmq_url: str, unique_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[demo.Step] = []
    names: list[str] = []
    serve = House.serve

    async def watched(self: House, *arguments: Any, **options: Any) -> Any:
        names.extend((self.settings.prefix, self.settings.agent))
        return await serve(self, *arguments, **options)

    monkeypatch.setattr(House, "serve", watched)
    settings = Settings(amqp_url=rabbitmq_url, prefix=unique_prefix, state_dir=home.folder / "state")
    assert await demo.show(settings, shown.append) == []
    assert [step.status for step in shown][-1] == "chain verified: 8 entries"
    assert [step.entry for step in shown if step.entry] == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    prefix, agent = names
    assert re.fullmatch(rf"{unique_prefix}\.demo-[0-9a-f]{{8}}", prefix)
    async with await aio_pika.connect(rabbitmq_url) as connection:
        for name in (f"{prefix}.q.{agent}", f"{prefix}.dead"):
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.get_queue(name)
        for name in (f"{prefix}.requests", f"{prefix}.dead"):
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.get_exchange(name)
    assert list(temporary.iterdir()) == []


@pytest.mark.rabbitmq
def test_the_command_over_rabbitmq(home: Home, rabbitmq_url: str, unique_prefix: str) -> None:
    ended = home.run("demo", "--amqp-url", rabbitmq_url, "--prefix", unique_prefix)
    assert (ended.code, ended.err) == (0, "")
    assert lines(ended) == ["The main job, over RabbitMQ: call, envelope, budget, log entry", *SHOWN]


def test_a_broker_that_is_not_there_is_said_once(home: Home, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = home.run("demo", "--amqp-url", "amqp://127.0.0.1:1", TMPDIR=str(temporary))
    assert ended.code == 1
    assert ended.err.startswith("error: UNAVAILABLE: no connection within 5 s")
    assert len(ended.err.splitlines()) == 1
    assert list(temporary.iterdir()) == []


def test_without_git_there_is_no_demo(home: Home) -> None:
    ended = home.run("demo", PATH="/nonexistent")
    assert ended.code == 1
    assert "git is not installed" in ended.err


async def test_what_does_not_go_as_it_must_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expectation of the demo is spoilt once, and each is missed by name."""
    call = demo.Demo._call
    spoilt = ""

    async def spoil(self: demo.Demo, wanted: demo.Call, **options: Any) -> Any:
        if f"{wanted.what}: {wanted.skill}" == spoilt:
            wanted = replace(wanted, ends="completed never", debit=wanted.debit + 1, holds=lambda _: False)
        return await call(self, wanted, **options)

    monkeypatch.setattr(demo.Demo, "_call", spoil)
    settings = Settings(state_dir=home.folder / "state")
    for line in SHOWN[:12]:
        spoilt = re.sub(r"^✓ (.*?: \S+) .*", r"\1", line)
        faults = await demo.show(settings, lambda _: None)
        assert faults
        assert all(fault.startswith(f"{spoilt}: it") for fault in faults)


def test_a_spoilt_demo_ends_with_1(skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EDITED", "hello from nobody\n")
    ended = skillbus("demo")
    assert ended.code == 1
    assert "✗ use the budget up: read_file" in ended.out
    assert "not as it must be: hello.txt is not as it was edited" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: 2 thing(s) did not go as they must")
