"""A worker that ends with SIGKILL after it has committed a call and before it replies."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import bus
from broker.agent.agent import SkillAgent
from broker.ledger.ledger import Ledger
from broker.ledger.operations import Closing, Receipt
from broker.pipeline.pipeline import Pipeline
from broker.worktrees.worktrees import Worktrees
from bus.destination import Policy
from skills import Catalog, PackContext


class DiesAfterCommit(Ledger):
    async def commit(self, closing: Closing) -> Receipt:
        await super().commit(closing)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


async def main(url: str, agent_name: str, ledger_path: str, workspaces: str, pack: str) -> None:
    catalog = Catalog.load(PackContext(), installed=False, named=[pack])
    assert not catalog.problems, catalog.problems
    async with await DiesAfterCommit.open(ledger_path) as ledger:
        pipeline = Pipeline(catalog, ledger, Worktrees(Path(workspaces)), owner="dying", version="0")
        agent = SkillAgent(agent_name, pipeline, ledger, version="0", push=Policy(["127.0.0.0/8"], http=True))
        async with await bus.serve(url, agent_name, agent):
            print("ready", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
