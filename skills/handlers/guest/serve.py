"""The loop of a Python host: calls come over one socket, and what comes of them goes back over it."""

import asyncio
import logging
import os
import socket
import sys
from typing import Any

from .context import Rejected
from .function import Function, HandlerFailed, Unloadable
from .wire import decode, encode

LINE = 128 << 20
"""Bytes of the longest line that is read: as many entries of a memory as are asked for at once, in ASCII."""


class Host:
    """One handler, served over one socket, until the other end closes it."""

    def __init__(self, function: Function, limit: int, home: str) -> None:
        self._function, self._limit, self._home = function, limit, home
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._questions = 0

    async def serve(self, connection: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=LINE)
        await self._send({"is": "ready"})
        while line := await reader.readline():
            message = decode(line)
            match message["do"]:
                case "call":
                    number = message["call"]
                    self._calls[number] = asyncio.create_task(self._call(number, message))
                case "cancel":
                    if (task := self._calls.get(message["call"])) is not None:
                        task.cancel()
                case "answer":
                    self._answered(message)

    async def _call(self, number: int, message: dict[str, Any]) -> None:
        values = message["context"]
        end: dict[str, Any]
        try:
            os.chdir(values["worktree"] or self._home)
            output = await self._function.run(message["input"], values, _Channel(self, number))
            end = {"is": "done", "output": output}
        except HandlerFailed as failed:
            end = {"is": "failed", "text": str(failed), "where": failed.where, "retryable": failed.retryable}
        except OSError as error:
            end = {"is": "failed", "text": f"the handler was not called: {error}", "retryable": False}
        except asyncio.CancelledError:
            end = {"is": "canceled"}
        finally:
            self._calls.pop(number, None)
        line = encode({**end, "call": number})
        if len(line) > self._limit:
            what = "output" if end["is"] == "done" else "error's text"
            text = f"the {what} takes {len(line)} bytes; the limit is {self._limit}"
            line = encode({"is": "failed", "text": text, "retryable": False, "call": number})
        self._writer.write(line)
        await self._writer.drain()

    async def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(encode(message))
        await self._writer.drain()

    async def tell(self, number: int, message: dict[str, Any]) -> None:
        await self._send({**message, "call": number})

    async def ask(self, number: int, message: dict[str, Any]) -> Any:
        self._questions += 1
        question = self._questions
        try:
            line = encode({**message, "is": "ask", "call": number, "question": question})
        except (TypeError, ValueError, RecursionError) as error:
            raise Rejected("invalid", f"it is not JSON: {error}") from None
        if len(line) > self._limit:
            raise Rejected("too_large", f"it takes {len(line)} bytes; the limit is {self._limit}")
        future = self._asked[question] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(line)
            await self._writer.drain()
            return await future
        finally:
            del self._asked[question]

    def _answered(self, message: dict[str, Any]) -> None:
        future = self._asked.get(message["question"])
        if future is None or future.done():
            return
        if "rejected" in message:
            future.set_exception(Rejected(message["rejected"], message["text"]))
        else:
            future.set_result(message["answer"])


class _Channel:
    def __init__(self, host: Host, number: int) -> None:
        self._host, self._number = host, number

    async def tell(self, message: dict[str, Any]) -> None:
        await self._host.tell(self._number, message)

    async def ask(self, message: dict[str, Any]) -> Any:
        return await self._host.ask(self._number, message)


def main(arguments: list[str]) -> None:
    """Serve until the worker closes the socket, whose descriptor the first argument names."""
    descriptor, folder, source, name, takes, limit = arguments
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    try:
        function = Function.load(folder, source, name, takes)
    except Unloadable as error:
        connection.sendall(encode({"is": "unloadable", "text": str(error)}))
        os._exit(1)
    asyncio.run(_serve(Host(function, int(limit), folder), connection))


async def _serve(host: Host, connection: socket.socket) -> None:
    try:
        await host.serve(connection)
    finally:
        sys.stdout.flush()
        os._exit(0)  # whatever a handler has left behind does not hold the process
