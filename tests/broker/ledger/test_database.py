import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from broker.chain.provenance import Provenance
from broker.ledger.ledger import Ledger, LedgerError
from broker.ledger.schema import VERSION
from broker.ledger.tasks import Filter
from broker.pipeline.pipeline import Asked, Pipeline

Ask = Callable[..., Asked]


def make_old(path: Path) -> None:
    """Turn a ledger into one of schema 1."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP INDEX ix_calls_open")
        for column in (
            "plan_ref",
            "transition_ref",
            "narrowing",
            "events",
            "updated_at",
            "input_ref",
            "deadline",
            "root_task",
        ):
            connection.execute(f"ALTER TABLE calls DROP COLUMN {column}")
        for table in ("task_events", "cancels", "push_configs", "waiters", "narrowed_grants"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE facts SET value = '1'")


def make_older(path: Path) -> None:
    """Turn a ledger into one of schema 2."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table in ("push_configs", "waiters", "narrowed_grants"):
            connection.execute(f"DROP TABLE {table}")
        for column in ("plan_ref", "transition_ref", "narrowing"):
            connection.execute(f"ALTER TABLE calls DROP COLUMN {column}")
        connection.execute("DROP INDEX ix_calls_open")
        connection.execute("UPDATE facts SET value = '2'")


def make_recent(path: Path) -> None:
    """Turn a ledger into one of schema 3."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE narrowed_grants")
        for column in ("plan_ref", "transition_ref", "narrowing"):
            connection.execute(f"ALTER TABLE calls DROP COLUMN {column}")
        connection.execute("UPDATE facts SET value = '3'")


def make_last(path: Path) -> None:
    """Turn a ledger into one of schema 4."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for column in ("plan_ref", "transition_ref"):
            connection.execute(f"ALTER TABLE calls DROP COLUMN {column}")
        connection.execute("UPDATE facts SET value = '4'")


@pytest.mark.parametrize("make", [make_old, make_older, make_recent, make_last], ids=["1", "2", "3", "4"])
async def test_a_ledger_of_an_older_schema_is_upgraded_in_place(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask, make: Callable[[Path], None]
) -> None:
    first = await pipeline.call(ask("once"))
    await ledger.close()
    make(ledger_path)
    async with await Ledger.open(str(ledger_path)) as upgraded:
        receipt = await upgraded.receipt(first.task_id)
        assert receipt is not None
        assert receipt.output == first.output
        (task,), total = await upgraded.tasks.page("ep1", Filter(), 10)
        assert (task.events, task.updated_at, total) == (0, first.closed_at, 1)
        again = Pipeline(pipeline.catalog, upgraded, pipeline._waits._worktrees, owner="w2", version="0")
        assert (await again.call(ask("once"))).output == first.output
        assert (await again.call(ask("once", {}, "m2"))).entry_index == 2
        assert (await Provenance(upgraded).verify("ep1")).faults == ()
        await again.close()
    with closing(sqlite3.connect(ledger_path)) as connection:
        assert connection.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone() == (str(VERSION),)
    async with await Ledger.open(str(ledger_path)) as reopened:
        assert len(await reopened.entries(episode="ep1")) == 2


async def test_an_upgrade_that_fails_changes_nothing(ledger: Ledger, ledger_path: Path) -> None:
    await ledger.close()
    make_old(ledger_path)
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        before = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
        connection.execute("CREATE TRIGGER no BEFORE UPDATE ON facts BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(LedgerError, match="can't be opened"):
        await Ledger.open(str(ledger_path))
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER no")
        assert connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == before
