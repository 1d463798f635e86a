import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import State
from deploy.readiness import Readiness


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.readiness.BEAT", 0.01)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


async def heard(systemd: socket.socket, wanted: str) -> list[str]:
    """What systemd hears up to this, without the watchdog's beats in between."""
    said: list[str] = []
    while wanted not in said:
        text = (await asyncio.to_thread(systemd.recv, 1024)).decode()
        if text not in said:
            said.append(text)
    return said


async def test_systemd_hears_how_the_worker_is(systemd: socket.socket, tmp_path: Path) -> None:
    state, paused = State.CONNECTED, None
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    telling = asyncio.create_task(Readiness(lambda: state, lambda: paused, environ=environ).run())
    assert await heard(systemd, "WATCHDOG=1") == ["READY=1", "STATUS=taking calls", "WATCHDOG=1"]
    state, paused = State.PAUSED, "the ledger can't be reached"
    await heard(systemd, "STATUS=paused: the ledger can't be reached")
    assert await heard(systemd, "WATCHDOG=1") == ["WATCHDOG=1"], "it is alive all the same"
    state, paused = State.DOWN, None
    await heard(systemd, "STATUS=down")
    telling.cancel()
    assert (await heard(systemd, "STOPPING=1"))[-1] == "STOPPING=1"


async def test_the_file_is_there_while_calls_are_taken(tmp_path: Path) -> None:
    state, file = State.CONNECTED, tmp_path / "ready"
    telling = asyncio.create_task(Readiness(lambda: state, lambda: None, file=file, environ={}).run())
    async with asyncio.timeout(20):
        for now in (State.CONNECTED, State.BLOCKED, State.CONNECTED):
            state = now
            while file.exists() is not (now is State.CONNECTED):  # noqa: ASYNC110 - a file tells of nothing
                await asyncio.sleep(0.01)
        touched = file.stat().st_mtime_ns
        while file.stat().st_mtime_ns == touched:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert not file.exists()


async def test_a_supervisor_that_can_not_be_told_is_no_reason_to_end(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": "@nobody-listens-here"}
    nowhere = tmp_path / "none" / "ready"
    telling = asyncio.create_task(Readiness(lambda: State.CONNECTED, lambda: None, file=nowhere, environ=environ).run())
    done, _ = await asyncio.wait({telling}, timeout=0.1)
    assert not done
    telling.cancel()
