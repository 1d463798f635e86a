"""What a worker supplies the handlers of declared tools with: their secrets and their memories, call by call."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import canonical
from .handlers.shape import fault
from .handlers.supply import Supplier, Supply, Withheld
from .handlers.tool import Tool
from .memory import (
    Conflict,
    Limits,
    MemoryFault,
    MemoryStore,
    NoOwner,
    StoreAway,
    StoreError,
    Work,
    place_of,
)
from .pack import PackContext
from .redaction import RedactingReporter, Redactor, Secret, redactor_of
from .secrets import NotResolved, SecretsMissing, read, resolve
from .skill import Context, Done, Failed, Outcome
from .tb.satisfaction import Bound
from .tb.store import Store

ROOM = 4096
"""Bytes that are kept free of an output whose call has changed memories, as it may not become too large after that."""

MAX_TENANT = 128

_LIMITS = {"keys": 1, "total_bytes": 1024, "value_bytes": 16}


class Supplies:
    """The suppliers of bound tools, and the stores that they share.

    The table `[tools.memory]` says which store "worker" is (`store`, as a manifest writes one; without it the file
    memory.db in the state folder), whose the memories of scope "tenant" are (`tenant`), and how much a memory holds
    within one scope: `keys`, `total_bytes`, `value_bytes`. Raises ValueError for a table that says something else.
    """

    def __init__(self, context: PackContext) -> None:
        self._environ = context.environ
        self._state_dir = context.state_dir
        self._worker, self._limits, self._tenant = _configured(context.config.get("memory", {}), context.state_dir)
        self._stores: dict[Store, MemoryStore] = {}
        self._opening = asyncio.Lock()

    def of(self, bound: Bound) -> Supplier:
        """The supplier of one tool. Raises Withheld for one whose calls nothing could be supplied to."""
        owned = [name for name, grant in bound.memories.items() if grant.scope == "tenant"]
        if owned and not self._tenant:
            raise Withheld(
                f"the memory {owned[0]} is kept by tenant, and this worker has none: set tenant in [tools.memory]"
            )

        async def supply(tool: Tool, context: Context) -> Supply:
            try:
                secrets = await resolve(tool.secrets, bound.secrets, self._environ)
            except SecretsMissing as error:
                raise Withheld(str(error)) from None
            redactor = redactor_of(tool.id, secrets)
            work = await self._work(bound, tool, context, redactor) if tool.memories else None
            return await _supply(tool, context, secrets, redactor, work)

        return supply

    async def close(self) -> None:
        """Close every store."""
        for store in self._stores.values():
            await store.close()
        self._stores.clear()

    async def _work(self, bound: Bound, tool: Tool, context: Context, redactor: Redactor) -> Work:
        (named,) = {grant.store for grant in bound.memories.values()}
        modules = bound.tool.memory_modules
        try:
            places = {
                name: place_of(f"{modules[name]}.{name}", grant.scope, context, self._tenant)
                for name, grant in bound.memories.items()
            }
            store = await self._store(named)
        except (NoOwner, StoreError) as error:
            raise Withheld(str(error)) from None
        call = canonical.ref(canonical.encode([context.agent, context.session, context.invocation_id, tool.id]))
        return Work(store, call, places, lambda value: redactor.json(value) != value)

    async def _store(self, named: Store) -> MemoryStore:
        where = self._worker if named.kind == "worker" else named
        async with self._opening:
            if where not in self._stores:
                self._stores[where] = await self._opened(where)
            return self._stores[where]

    async def _opened(self, where: Store) -> MemoryStore:
        if where.kind == "sqlite":
            return await MemoryStore.open(f"sqlite:///{where.file}", self._limits)
        if where.url is None:
            raise StoreError("the worker has no folder for its memories: set state_dir")
        try:
            url = (await read(where.url, self._environ)).decode()
        except (NotResolved, UnicodeDecodeError) as error:
            why = error if isinstance(error, NotResolved) else "it is no text"
            raise StoreError(f"the URL of the store can't be resolved: {why}") from None
        if not url.startswith(("postgresql://", "postgres://")):
            raise StoreError("the URL of the store is no postgresql://user:password@host/database")
        redactor = redactor_of(f"the store {where.url}", {"URL": Secret("URL", url)})
        try:
            return await MemoryStore.open(url, self._limits)
        except StoreError as error:
            raise StoreError(redactor.text(str(error))) from None


class _Accesses(Mapping[str, Any]):
    """What a call has done with its memories by the time that this is asked: however it ends, its record tells."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getitem__(self, name: str) -> Any:
        return {"memories": lambda: self._work.accesses}[name]()

    def __iter__(self) -> Iterator[str]:
        yield "memories"

    def __len__(self) -> int:
        return 1


async def _supply(
    tool: Tool, context: Context, secrets: Mapping[str, Secret], redactor: Redactor, work: Work | None
) -> Supply:
    reporter = RedactingReporter(redactor, context.reporter) if secrets and context.reporter is not None else None
    memories: dict[str, Any] = {}
    earlier: Outcome | None = None
    if work is not None:
        context.accesses.append(_Accesses(work))
        memories = {name: work.memory(name, modes) for name, modes in tool.memories.items()}
        if any("write" in modes for modes in tool.memories.values()):
            earlier = await _earlier(work)

    async def settle(outcome: Outcome) -> Outcome:
        if reporter is not None:
            await reporter.end()
        outcome = _checked(redactor.outcome(outcome), outcome, tool)
        if work is None:
            return outcome
        if isinstance(outcome, Failed):
            work.end()
            return outcome
        return await _kept(work, outcome, tool)

    values = {handle: secret.reveal() for handle, secret in secrets.items()}
    return Supply(values, memories, redactor.text, redactor.settled, reporter, settle, earlier)


async def _earlier(work: Work) -> Outcome | None:
    try:
        output = await work.earlier()
    except StoreAway as error:
        raise Withheld(str(error)) from None
    return None if output is None else Done(output)


def _checked(outcome: Outcome, before: Outcome, tool: Tool) -> Outcome:
    """A number that was a secret is a text now, which the contract may not have."""
    if isinstance(outcome, Failed) or outcome == before:
        return outcome
    wrong = fault(tool.output_schema, outcome.output)
    return outcome if wrong is None else Failed(f"the output is wrong once secrets are taken out of it: {wrong}")


async def _kept(work: Work, outcome: Done, tool: Tool) -> Outcome:
    """The outcome, once what the call has changed is kept; this is the last thing that may fail."""
    if work.changed and len(canonical.encode(outcome.output)) > tool.output_bytes - ROOM:
        work.end()
        return Failed(f"the output of a call that changes a memory takes at most {tool.output_bytes - ROOM} bytes")
    keeping = asyncio.ensure_future(work.commit(outcome.output))
    try:
        return Done(await asyncio.shield(keeping))
    except MemoryFault as error:
        return Failed(f"the memory was not changed: {error}", retryable=isinstance(error, (Conflict, StoreAway)))
    except asyncio.CancelledError:
        await asyncio.wait([keeping])  # so that the record tells whether it came about
        if not keeping.cancelled():
            keeping.exception()
        raise


def _configured(table: Any, state_dir: Path | None) -> tuple[Store, Limits, str]:
    worker = Store("worker") if state_dir is None else Store("sqlite", file=state_dir / "memory.db")
    if not isinstance(table, Mapping) or not table.keys() <= {"store", "tenant", *_LIMITS}:
        raise ValueError(f"tools.memory: known keys are store, tenant, {', '.join(_LIMITS)}")
    tenant = table.get("tenant", "")
    if not isinstance(tenant, str) or not tenant.isprintable() or len(tenant) > MAX_TENANT:
        raise ValueError(f"tools.memory.tenant: must be a text of at most {MAX_TENANT} characters, none of control")
    numbers: dict[str, Any] = {name: value for name, value in table.items() if name in _LIMITS}
    for name, value in numbers.items():
        if type(value) is not int or not _LIMITS[name] <= value <= 1 << 40:
            raise ValueError(f"tools.memory.{name}: must be a number from {_LIMITS[name]}")
    if numbers.get("value_bytes", 0) > 1 << 18:
        raise ValueError("tools.memory.value_bytes: must be at most 262144")
    if "store" in table:
        if not isinstance(table["store"], str):
            raise ValueError("tools.memory.store: must be a text")
        try:
            named = Store.read(table["store"], state_dir or Path())
        except ValueError as error:
            raise ValueError(f"tools.memory.store: {error}") from None
        worker = worker if named.kind == "worker" else named
    return worker, Limits(**numbers), tenant
