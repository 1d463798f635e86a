"""The main job, shown: governed calls on a real worktree, each checked against what it must do."""

import os
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bus
from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.sessions import Credential, mint

from .house import House
from .settings import Settings

EPISODE = "demo"
TTL = 600
CONNECT = 5.0
GREETING = "hello from the repository\n"
EDITED = "hello from an agent\n"
READ, WRITE = ("Workspace.Read", "worktree"), ("Workspace.Write", "worktree")
BUDGETS = {READ: 3, WRITE: 4}
SHOWN = 300

Check = Callable[[Mapping[str, Any]], bool]
Report = Callable[["Step"], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was shown. `faults` says in words what did not go as it must."""

    what: str
    status: str
    budget: str = ""
    entry: int | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call, and what it must come to: `ends` is the state and outcome, or the reason of a protocol error."""

    what: str
    skill: str
    arguments: Mapping[str, Any]
    ends: str
    effect: tuple[str, str] | None = None
    debit: int = 0
    holds: Check = lambda _: True
    message_id: str = field(default_factory=lambda: secrets.token_hex(16))


class Demo:
    """Shows one house at work. `report` is given each step when it is over."""

    def __init__(self, house: House, owner: bus.Client, reader: bus.Client, report: Report) -> None:
        self._house = house
        self._owner = owner
        self._reader = reader
        self._report = report
        self._committed = 0
        self.faults: list[str] = []

    async def run(self) -> None:
        """Make every call; `faults` is empty if each went as it must."""
        await self._succeed()
        edit = await self._resend()
        await self._refuse()
        await self._use_up()
        await self._without_grant(edit)
        await self._look_at_worktree()
        await self._verify()

    # what is shown

    async def _succeed(self) -> None:
        done = "completed succeeded"
        await self._call(Call("calculate", "calc", {"expr": "6 * 7"}, done, holds=lambda out: out.get("text") == "42"))
        await self._call(
            Call(
                "read a file",
                "ailang-read",
                {"path": "hello.txt"},
                done,
                READ,
                1,
                lambda out: out.get("content") == GREETING,
            )
        )
        await self._call(
            Call("write a file", "ailang-write", {"path": "todo.txt", "content": "one\n"}, done, WRITE, 1, _ok)
        )
        await self._call(
            Call("list the folder", "list_files", {"path": ""}, done, READ, 1, lambda out: out.get("count") == 2)
        )

    async def _resend(self) -> Call:
        arguments = {"path": "hello.txt", "old_text": "the repository", "new_text": "an agent"}
        edit = Call("edit a file", "ailang-edit", arguments, "completed succeeded", WRITE, 1, _ok)
        first = await self._call(edit)
        # Run twice it would say that old_text is not there any more.
        again = Call("send it again", edit.skill, arguments, edit.ends, WRITE, 0, _ok, edit.message_id)
        second = await self._call(again, resent=True)
        if first != second:
            self._fault(again, "the result is another than the first time")
        return edit

    async def _refuse(self) -> None:
        def says_why(output: Mapping[str, Any]) -> bool:
            return output.get("ok") is False and "refused" in str(output.get("refused"))

        arguments = {"path": "../outside.txt"}
        await self._call(Call("leave the worktree", "ailang-read", arguments, "rejected refused", READ, 0, says_why))

    async def _use_up(self) -> None:
        arguments = {"path": "hello.txt"}

        def is_edited(output: Mapping[str, Any]) -> bool:
            return output.get("content") == EDITED

        await self._call(Call("use the budget up", "read_file", arguments, "completed succeeded", READ, 1, is_edited))
        await self._call(Call("ask for one more", "read_file", arguments, "rejected denied:budget", READ, 0))

    async def _without_grant(self, edit: Call) -> None:
        arguments = {"path": "hello.txt", "content": "not mine\n"}
        hidden = Call("write without a grant", "ailang-write", arguments, "SKILL_NOT_FOUND", WRITE, 0)
        absent = Call("call what is not there", "no-such-skill", {}, "SKILL_NOT_FOUND")
        if await self._call(hidden, client=self._reader) != await self._call(absent, client=self._reader):
            self._fault(hidden, "the error tells an absent skill from one that is not granted")
        other = {**edit.arguments, "new_text": "someone else"}
        await self._call(
            Call(
                "its id, another call", edit.skill, other, "IDEMPOTENCY_CONFLICT", WRITE, 0, message_id=edit.message_id
            )
        )

    async def _look_at_worktree(self) -> None:
        worktree = self._house.worktrees.path(EPISODE)
        changed = _git(worktree, "status", "--porcelain").split()
        faults = [] if changed == ["M", "hello.txt", "??", "todo.txt"] else [f"git sees {' '.join(changed)}"]
        if (worktree / "hello.txt").read_text() != EDITED:
            faults.append("hello.txt is not as it was edited")
        self._tell(Step("the worktree, as git sees it", " ".join(changed), faults=tuple(faults)))

    async def _verify(self) -> None:
        verdict = await Provenance(self._house.ledger).verify(EPISODE)
        faults = list(verdict.faults)
        if verdict.entries != self._committed:
            faults.append(f"{self._committed} calls were committed and the log has {verdict.entries} entries")
        status = "chain broken" if faults else f"chain verified: {verdict.entries} entries"
        self._tell(Step("", status, faults=tuple(faults)))

    # how it is checked

    async def _call(self, call: Call, *, client: bus.Client | None = None, resent: bool = False) -> Any:
        """The output of the call, or the error's code and message."""
        before = await self._left(call.effect)
        faults: list[str] = []
        result: Any
        entry: int | None = None
        try:
            response = await (client or self._owner).send(self._house.settings.agent, _message(call))
        except bus.BusError as error:
            ended, result = error.reason, (error.code, error.message)
        else:
            task = response["task"]
            artifact = task["artifacts"][0]
            part, metadata = artifact["parts"][0], artifact["metadata"]
            output = part["data"] if "data" in part else {"text": part["text"]}
            entry, result = metadata["entry"], (metadata["entry"], output)
            ended = f"{task['status']['state'].removeprefix('TASK_STATE_').lower()} {metadata['outcome']}"
            self._committed += not resent
            if not call.holds(output):
                faults.append(f"its output is {str(output)[:SHOWN]}")
        after = await self._left(call.effect)
        if ended != call.ends:
            faults.append(f"it ended {ended!r} and not {call.ends!r}")
        if before - after != call.debit:
            faults.append(f"it took {before - after} from the budget and not {call.debit}")
        budget = f"{call.effect[0]} {before} → {after}" if call.effect else ""
        self._tell(Step(f"{call.what}: {call.skill}", ended, budget, entry, tuple(faults)))
        return result

    async def _left(self, effect: tuple[str, str] | None) -> int:
        return BUDGETS[effect] - (await self._house.ledger.spent(EPISODE)).get(effect, 0) if effect else 0

    def _fault(self, call: Call, text: str) -> None:
        self._tell(Step(f"{call.what}: {call.skill}", "not as it must be", faults=(text,)))

    def _tell(self, step: Step) -> None:
        self.faults += [f"{step.what or 'the chain'}: {fault}" for fault in step.faults]
        self._report(step)


async def show(settings: Settings, report: Report) -> list[str]:
    """Run the demo over the broker of the settings, in process if they name none; what did not go as it must."""
    with tempfile.TemporaryDirectory(prefix="skillbus-demo-") as name:
        folder = Path(name)
        repository = _make_repository(folder / "repository")
        async with _stage(settings, folder) as (house, target):
            await house.worktrees.create(EPISODE, repo=repository)
            owner = await _session(house, list(BUDGETS))
            reader = await _session(house, [READ])
            prefix = house.settings.prefix
            async with (
                await bus.connect(target, authorize=owner.authorize, prefix=prefix) as one,
                await bus.connect(target, authorize=reader.authorize, prefix=prefix) as other,
            ):
                demo = Demo(house, one, other, report)
                await demo.run()
                return demo.faults


def _ok(output: Mapping[str, Any]) -> bool:
    return output.get("ok") is True


def _message(call: Call) -> dict[str, Any]:
    return {
        "messageId": call.message_id,
        "role": "ROLE_USER",
        "parts": [{"data": dict(call.arguments)}],
        "metadata": {"skill_id": call.skill},
    }


async def _session(house: House, effects: list[tuple[str, str]]) -> Credential:
    grants = [Grant(effect, scope, BUDGETS[effect, scope], 1 << 62) for effect, scope in effects]
    credential, session = mint(EPISODE, grants, ttl=TTL)
    await house.ledger.add_session(session)
    return credential


@asynccontextmanager
async def _stage(settings: Settings, folder: Path) -> AsyncIterator[tuple[House, bus.Target]]:
    """A house of its own in `folder`, served under names that no real worker has; nothing of it stays on the broker."""
    own = _own_settings(settings, folder)
    url = settings.amqp_url
    target: bus.Target = bus.MemoryBroker() if url is None else url.get_secret_value()
    house = await House.open(own, environ={})
    try:
        server = await house.serve(target, patience=bus.Patience(connect=CONNECT))
        try:
            yield house, target
        finally:
            await server.stop()
            if isinstance(target, str):
                await bus.remove(target, own.agent, prefix=own.prefix, shared=True)
    finally:
        await house.close()


def _own_settings(settings: Settings, folder: Path) -> Settings:
    name = f"demo-{secrets.token_hex(4)}"
    return settings.model_copy(
        update={
            "state_dir": folder / "state",
            "ledger": str(folder / "state" / "ledger.db"),
            "workspaces": folder / "state" / "workspaces",
            "signing_key": folder / "state" / "signing.pem",
            # Below the user's own prefix, where the broker's permissions may end.
            "prefix": settings.prefix if settings.amqp_url is None else f"{settings.prefix[:17]}.{name}",
            "agent": name,
            "packs": (),
            "only_packs": None,
            "tools": {},
        }
    )


def _make_repository(path: Path) -> Path:
    path.mkdir()
    (path / "hello.txt").write_text(GREETING)
    _git(path, "init", "--quiet")
    _git(path, "add", "hello.txt")
    _git(path, "commit", "--quiet", "-m", "Say hello")
    return path


def _git(folder: Path, *arguments: str) -> str:
    # Nothing of the user's own git is asked: no name, no hooks, no signing.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Skillbus",
        "GIT_AUTHOR_EMAIL": "demo@localhost",
        "GIT_COMMITTER_NAME": "Skillbus",
        "GIT_COMMITTER_EMAIL": "demo@localhost",
    }
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
