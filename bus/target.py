"""Which broker is meant, and what this software calls itself there."""

from importlib.metadata import PackageNotFoundError, version

from bus.driver import Driver


def _app_id() -> str:
    try:
        return f"skillbus/{version('skillbus')}"
    except PackageNotFoundError:  # used from a checkout
        return "skillbus"


APP_ID = _app_id()

Target = str | Driver
"""An `amqp://` or `amqps://` URL, or a driver such as `MemoryBroker`."""


def driver_for(target: Target) -> Driver:
    """The driver for a target. Raises `ValueError` for another URL."""
    if not isinstance(target, str):
        return target
    from bus.amqp.connection import Amqp

    return Amqp(target)
