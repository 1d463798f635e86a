"""Stores of both kinds: each test that asks for `store` runs on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from skills.memory import MemoryStore
from tests.postgresql import PostgreSQL


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of this test process, with the database `memory`; no test may stop it."""
    with PostgreSQL() as server:
        server.create("memory")
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'memory.db'}"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    with psycopg.connect(server.url("memory")) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server.url("memory")


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[MemoryStore]:
    store = await MemoryStore.open(store_url)
    yield store
    await store.close()
