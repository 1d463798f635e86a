"""The way to an agent: over the broker, or, where none is configured, through the same bus inside this process."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import bus

from . import screen
from .options import check_ledger

if TYPE_CHECKING:
    from broker.sessions import Credential
    from deploy.settings import Settings

CONNECT = 5.0
"""Seconds in which a broker that is up lets a client in."""

GRACE = 5.0
"""Seconds that a call in this process gets to end after its caller has given up."""


@asynccontextmanager
async def reach(
    settings: "Settings", credential: "Credential", *, patience: float = CONNECT
) -> AsyncIterator[bus.Client]:
    """A client whose calls are signed with `credential`."""
    if settings.amqp_url is not None:
        logging.getLogger().addHandler(logging.NullHandler())  # what goes wrong is said once, by the error
        client = await bus.connect(
            settings.amqp_url.get_secret_value(),
            authorize=credential.authorize,
            prefix=settings.prefix,
            limits=bus.Limits(body=settings.max_message_bytes),
            patience=bus.Patience(connect=min(patience, CONNECT)),
        )
        async with client:
            yield client
        return
    from deploy.house import House

    check_ledger(settings)
    logging.getLogger().addHandler(_Aloud(logging.WARNING))
    logging.getLogger("skills.catalog").disabled = True  # the same is told of the catalog itself
    broker = bus.MemoryBroker()
    house = await House.open(settings)
    for problem in house.catalog.problems:
        screen.warn(str(problem))
    try:
        async with await house.serve(broker):
            client = await bus.connect(
                broker,
                authorize=credential.authorize,
                prefix=settings.prefix,
                limits=bus.Limits(body=settings.max_message_bytes),
            )
            async with client:
                yield client
    finally:
        await house.close(GRACE)


class _Aloud(logging.Handler):
    """In this process its own host is who sits here: what a host logs is said."""

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        screen.warn(record.getMessage() + (f": {type(cause).__name__}: {cause}" if cause else ""))
