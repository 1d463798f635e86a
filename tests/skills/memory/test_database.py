"""What becomes of a store when its database goes, and of changes when their process is killed."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from skills.memory import MemoryStore, Place, StoreAway, Work
from tests.postgresql import PostgreSQL

HERE = Place("m.Notes", "episode", "ep1")
WRITER = """
import asyncio, itertools, sys
from skills.memory import Conflict, MemoryStore, Place, Work

async def main():
    store = await MemoryStore.open(sys.argv[1])
    for number in itertools.count(1) if sys.argv[3] == "ever" else range(int(sys.argv[3])):
        while True:
            work = Work(store, f"{sys.argv[2]} {number}", {"N": Place("m.Notes", "episode", "ep1")})
            memory = work.memory("N", ["read", "write"])
            found = await memory.get("n") or {"value": 0, "version": 0}
            try:
                await memory.put("n", found["value"] + 1, found["version"])
                await memory.put(f"copy {found['value'] % 5}", found["value"] + 1)
                await memory.put("m", found["value"] + 1)
                await work.commit({})
                break
            except Conflict:
                work.end()
        print(number, flush=True)
    await store.close()

asyncio.run(main())
"""


def writer(url: str, name: str, count: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", WRITER, url, name, count], stdout=subprocess.PIPE, text=True)


async def put(store: MemoryStore, call: str, value: int) -> None:
    work = Work(store, call, {"N": HERE})
    await work.memory("N", ["write"]).put("k", value)
    await work.commit({})


async def test_processes_share_a_store(store_url: str) -> None:
    running = [writer(store_url, name, "15") for name in ("one", "two")]
    for process in running:
        out, _ = await asyncio.to_thread(process.communicate, timeout=60)
        assert (process.returncode, len(out.split())) == (0, 15)
    store = await MemoryStore.open(store_url)
    found, version = await store.get(HERE, "n")
    assert found is not None
    assert (found.value, version) == ("30", 30)
    await store.close()


async def test_a_process_that_is_killed_leaves_nothing_half(store_url: str) -> None:
    for times in range(1, 3):
        process = writer(store_url, f"killed {times}", "ever")
        assert process.stdout is not None
        for _ in range(3 * times):
            await asyncio.to_thread(process.stdout.readline)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    store = await MemoryStore.open(store_url)
    values = {}
    for key in ("n", "m"):
        found, version = await store.get(HERE, key)
        assert found is not None
        values[key] = (found.value, version)
    assert values["n"] == values["m"]
    assert int(values["n"][0]) >= 9
    await store.close()


async def test_a_server_that_goes_and_comes_back() -> None:
    with PostgreSQL() as server:
        server.create("memory")
        store = await MemoryStore.open(server.url("memory"))
        await put(store, "c1", 1)
        server.stop()
        with pytest.raises(StoreAway, match="can't be used now"):
            await put(store, "c2", 2)
        with pytest.raises(StoreAway):
            await Work(store, "c3", {"N": HERE}).memory("N", ["read"]).get("k")
        server.start()
        await put(store, "c2", 2)
        found, version = await store.get(HERE, "k")
        assert found is not None
        assert (found.value, version) == ("2", 2)
        await store.close()


async def test_a_file_that_is_no_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    store = await MemoryStore.open(url)
    await put(store, "c1", 1)
    with closing(sqlite3.connect(tmp_path / "memory.db", isolation_level=None)) as connection:
        connection.execute("DROP TABLE memory_commits")
    with pytest.raises(StoreAway):
        await put(store, "c2", 22_22)
    assert "no such table: memory_commits" in caplog.text
    assert "2222" not in caplog.text
    assert await Work(store, "c3", {"N": HERE}).memory("N", ["read"]).get("k") is not None
    await store.close()
