"""The way to an agent: over the broker, or, where none is configured, through the same bus inside this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import bus

from . import screen
from .hearing import aloud, silent
from .options import check_ledger

if TYPE_CHECKING:
    from broker.sessions import Credential
    from deploy.settings import Settings

CONNECT = 5.0
"""Seconds in which a broker that is up lets a client in."""

GRACE = 5.0
"""Seconds that a call in this process gets to end after its caller has given up."""


@asynccontextmanager
async def reach(settings: "Settings", credential: "Credential") -> AsyncIterator[bus.Client]:
    """A client whose calls are signed with `credential`."""
    if settings.amqp_url is not None:
        with silent():
            async with await _connect(settings, credential, settings.amqp_url.get_secret_value()) as client:
                yield client
        return
    from deploy.house import House

    check_ledger(settings)
    with aloud():
        broker = bus.MemoryBroker()
        house = await House.open(settings)
        for problem in house.catalog.problems:
            screen.warn(str(problem))
        try:
            server = await house.serve(broker)
            try:
                async with await _connect(settings, credential, broker) as client:
                    yield client
            finally:
                await server.stop(GRACE)
        finally:
            await house.close()


async def _connect(settings: "Settings", credential: "Credential", target: bus.Target) -> bus.Client:
    return await bus.connect(
        target,
        authorize=credential.authorize,
        prefix=settings.prefix,
        limits=bus.Limits(body=settings.max_message_bytes),
        patience=bus.Patience(connect=CONNECT),
    )
