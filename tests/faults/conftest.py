import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bus
from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.sessions import Credential, mint
from broker.worktrees.worktrees import Worktrees

PACK = "tests.faults.pack:pack"
ROOT = Path(__file__).parents[2]
FOREVER = 2**40


@dataclass
class Site:
    """One ledger and one agent's name, and the worker processes that serve it."""

    url: str
    folder: Path
    agent: str
    ledger: Ledger
    _processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def worktrees(self) -> Worktrees:
        return Worktrees(self.folder / "workspaces")

    async def session(self, episode: str = "ep1", **budgets: int) -> Credential:
        """A session with `budgets` by effect (dots written as `_`), and its episode's worktree."""
        await self.worktrees.create(episode)
        grants = []
        for name, budget in budgets.items():
            effect = name.replace("_", ".")
            grants.append(Grant(effect, "test" if effect.startswith("Test.") else "worktree", budget, FOREVER))
        credential, session = mint(episode, grants, ttl=3600)
        await self.ledger.add_session(session)
        return credential

    async def worker(self, *arguments: str, url: str = "", pack: str = PACK) -> asyncio.subprocess.Process:
        """A worker as users run it, ready to take calls; `url` is another way to the same broker."""
        command = str(Path(sys.executable).with_name("skillbus"))
        return await self._start(command, "worker", "--pack", pack, "--ready-fd", "1", *arguments, url=url)

    async def dying_worker(self) -> asyncio.subprocess.Process:
        """A worker that is killed between its first commit and the reply."""
        ledger, workspaces = self.folder / "ledger.db", self.folder / "workspaces"
        return await self._start(
            sys.executable, "-m", "tests.faults.dying", self.url, self.agent, str(ledger), str(workspaces), PACK
        )

    async def _start(self, *command: str, url: str = "") -> asyncio.subprocess.Process:
        settings = {
            "SKILLBUS_AMQP_URL": url or self.url,
            "SKILLBUS_AGENT": self.agent,
            "SKILLBUS_STATE_DIR": str(self.folder),
            "SKILLBUS_LEASE_SECONDS": "2",
            "SKILLBUS_DECLARE": "true",
            "PYTHONPATH": str(ROOT),
        }
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **settings}
        )
        self._processes.append(process)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, "the worker ended before it was ready"
        return process

    def client(self, credential: Credential, *, url: str = "", **options: Any) -> Any:
        """A connected client, as an async context manager."""
        return _Connected(url or self.url, credential, options)

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def sound(self, episode: str = "ep1") -> int:
        """The number of entries of an episode's log, every one of them verified."""
        verdict = await Provenance(self.ledger).verify(episode)
        assert verdict.faults == ()
        return verdict.entries


class _Connected:
    def __init__(self, url: str, credential: Credential, options: dict[str, Any]) -> None:
        self._url, self._credential, self._options = url, credential, options

    async def __aenter__(self) -> bus.Client:
        self._client = await bus.connect(self._url, authorize=self._credential.authorize, **self._options)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def message(skill: str, arguments: Any, message_id: str) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "role": "ROLE_USER",
        "parts": [{"data": arguments}],
        "metadata": {"skill_id": skill},
    }


def outcome(answer: dict[str, Any]) -> tuple[str, str]:
    """The state and the outcome in an answer."""
    task = answer["task"]
    return task["status"]["state"].removeprefix("TASK_STATE_").lower(), task["artifacts"][0]["metadata"]["outcome"]


def output(answer: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = answer["task"]["artifacts"][0]["parts"][0]["data"]
    return data


async def _site(url: str, folder: Path, name: str) -> AsyncIterator[Site]:
    async with await Ledger.open(str(folder / "ledger.db")) as ledger:
        site = Site(url, folder, name, ledger)
        try:
            yield site
        finally:
            await site.close()


@pytest.fixture
async def site(rabbitmq_url: str, tmp_path: Path, unique_prefix: str) -> AsyncIterator[Site]:
    async for site in _site(rabbitmq_url, tmp_path, unique_prefix):
        yield site


@pytest.fixture
async def fragile_site(rabbitmq_node: Any, tmp_path: Path, unique_prefix: str) -> AsyncIterator[Site]:
    """A site on a broker of its own, which the test may kill."""
    async for site in _site(rabbitmq_node.url, tmp_path, unique_prefix):
        yield site
