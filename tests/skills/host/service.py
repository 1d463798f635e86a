"""A web service on a free port that answers what a test tells it, faults included."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Service:
    """Speaks HTTP/1.1, one request a connection. `asked` is set when a request has come."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _raw: bytes = b""
    _hangs: bool = False
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)

    def answer(self, body: bytes, *, status: int = 200, reason: str = "OK", **headers: str) -> None:
        """Answer every request with this."""
        head = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self.answer_raw(f"HTTP/1.1 {status} {reason}\r\n{lines}\r\n".encode("latin-1") + body)

    def answer_raw(self, data: bytes) -> None:
        """Answer every request with these bytes, then close."""
        self._raw = data

    def hang(self) -> None:
        """Answer no request."""
        self._hangs = True

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.splitlines()
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ", 2)
            self.requests.append(Request(method, path, headers, body))
            self.asked.set()
            if self._hangs:
                await reader.read()  # until the caller goes away
            writer.write(self._raw)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # nobody listens any more
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._waiting.discard(task)

    async def end(self) -> None:
        for task in tuple(self._waiting):
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)


@asynccontextmanager
async def answering() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service.url = f"http://127.0.0.1:{port}/search"
    try:
        yield service
    finally:
        server.close()
        await service.end()
        await server.wait_closed()
