"""The connection to RabbitMQ that the tools of a process share: it lives on a loop in a thread of its own."""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import bus
from deploy.cli.credential import find_credential
from deploy.settings import Settings

CONNECT = 5.0  # seconds in which a broker that is up lets a client in
LEAVE = 10.0  # seconds for a connection to be closed, one that is just being made included

log = logging.getLogger(__name__)


class NotConfigured(Exception):
    """A setting is missing; the message says which."""


class Line:
    """A client of the agent that the settings name, connected by the first call; any number of threads may call."""

    def __init__(self) -> None:
        self._settings = Settings()
        if self._settings.amqp_url is None:
            raise NotConfigured("set SKILLBUS_AMQP_URL to the broker's URL")
        self._url = self._settings.amqp_url
        self._credential = find_credential(None)
        self._client: bus.Client | None = None
        self._connecting = asyncio.Lock()
        self._sending: set[asyncio.Task[Any]] = set()
        self._closed = self._ending = False
        self._gate = threading.Lock()  # nothing is given to the loop once it is to end: it would wait for ever
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="skillbus", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The agent's response. Raises BusError."""
        with self._gate:
            if self._ending:
                raise bus.ConnectionLost("the connection was closed before the call was sent")
            future = asyncio.run_coroutine_threadsafe(self._send(message, timeout), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # who waited for it may have been interrupted
            raise

    def close(self) -> None:
        """Close the connection and end the thread; calls that are under way fail."""
        with self._gate:
            self._ending = True
            closing = asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        try:
            closing.result(LEAVE)
        except TimeoutError:
            log.warning("the connection was not closed within %g s", LEAVE)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LEAVE)
            if not self._thread.is_alive():
                self._loop.close()

    async def _send(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is run by one
        self._sending.add(task)
        try:
            client = await self._connected()
            return await client.send(self._settings.agent, message, timeout=timeout)
        finally:
            self._sending.discard(task)

    async def _connected(self) -> bus.Client:
        async with self._connecting:
            if self._closed:
                raise bus.ConnectionLost("the connection was closed before the call was sent")
            if self._client is None:
                self._client = await bus.connect(
                    self._url.get_secret_value(),
                    authorize=self._credential.authorize,
                    prefix=self._settings.prefix,
                    limits=bus.Limits(body=self._settings.max_message_bytes),
                    patience=bus.Patience(connect=CONNECT),
                )
            return self._client

    async def _leave(self) -> None:
        async with self._connecting:
            self._closed = True
            if self._client is not None:
                await self._client.close()
        if self._sending:  # their calls have failed now, and those who wait for them are told
            await asyncio.wait(self._sending)


_lock = threading.Lock()
_line: Line | None = None


def line() -> Line:
    """The line of this process. Raises NotConfigured, Failure, SettingsError for what the environment lacks."""
    global _line
    with _lock:
        if _line is None:
            _line = Line()
        return _line


def close() -> None:
    """Close the line of this process, if there is one; the next call opens another."""
    global _line
    with _lock:
        ending, _line = _line, None
    if ending is not None:
        ending.close()


def _forget() -> None:
    """A forked process has its parent's line, but not the thread that it lives on."""
    global _line, _lock
    _line, _lock = None, threading.Lock()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
