"""The topology of a real broker: looked at and made, over AMQP and, where it is known, the management API."""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import bus
from bus import topology
from bus.driver import Connection, Exchange, Queue, Scalar
from bus.target import driver_for
from bus.topology import Topology

from .management import Management, ManagementError, vhost_of
from .settings import Settings
from .topology import Plan, Seen, command, plan


class TopologyBroker:
    """A broker and what has to stand on it for some agents, as `async with`. Raises `Refused`, `ConnectionLost`.

    What the management API would tell is unseen where the settings have no `management_url`, or it can't be used:
    then `problem` says why. `policies` false leaves the policies to others.
    """

    def __init__(self, settings: Settings, agents: Iterable[str] = (), *, policies: bool = True) -> None:
        if settings.amqp_url is None:
            raise ValueError("there is no broker")
        self._url = settings.amqp_url.get_secret_value()
        self._names = bus.Names(settings.prefix)
        whole = topology.whole(self._names, tuple(agents) or (settings.agent,))
        self.description: Topology = whole if policies else replace(whole, policies=())
        self._management: Management | None = None
        if settings.management_url is not None:
            self._management = Management(settings.management_url.get_secret_value(), self._url)
        self.problem = "" if self._management is not None else "no management API is named (--management-url)"
        self.vhost = vhost_of(self._url)
        self._open = AsyncExitStack()
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        connection = await driver_for(self._url).connect("skillbus topology")
        self._open.push_async_callback(connection.close)
        if self._management is not None:
            await self._open.enter_async_context(self._management)
        self._connection = connection
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def plan(self) -> Plan:
        """What the broker and the description disagree on. Changes nothing."""
        return plan(self.description, await self._look(), prefix=self._names.prefix, vhost=self.vhost)

    async def apply(self, planned: Plan) -> None:
        """Make what a plan holds; what stands already is left as it is. Raises `Refused`, `ManagementError`."""
        await self._amqp.declare(*planned.parts)
        if self._management is not None:
            for policy in planned.policies:
                await self._management.set_policy(policy)

    @property
    def commands(self) -> tuple[str, ...]:
        """What sets the policies by hand."""
        return tuple(command(policy, self.vhost) for policy in self.description.policies)

    @property
    def _amqp(self) -> Connection:
        if self._connection is None:
            raise bus.ConnectionLost("closed")
        return self._connection

    async def _look(self) -> Seen:
        if self._management is not None:
            try:
                return await self._management.look()
            except ManagementError as error:
                self.problem = str(error)
        parts = self.description.parts
        missing = await self._amqp.missing(*parts)
        there = [part for part in parts if part not in missing]
        exchanges = {part.name: None for part in there if isinstance(part, Exchange)}
        return Seen(exchanges, {part.name: await self._arguments(part) for part in there if isinstance(part, Queue)})

    async def _arguments(self, queue: Queue) -> Mapping[str, Scalar] | str | None:
        """What AMQP tells of a queue that stands: whether it would be declared as it is, to who may declare it."""
        try:
            await self._amqp.declare(queue)
        except bus.Refused as error:
            return None if "ACCESS_REFUSED" in error.message else f"has other arguments: {error.message}"
        return queue.arguments
