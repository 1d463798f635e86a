"""A TCP proxy in front of a broker, so that a test can break connections as a network would."""

import asyncio
import ssl
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards bytes both ways until it is told to cut."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = urlsplit(url)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.refusing = False
        self.accepted = 0

    @property
    def url(self) -> str:
        """The broker's URL with the proxy's address."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = self._upstream.netloc.rpartition("@")[0]
        scheme = "amqps" if self._tls else "amqp"
        return urlunsplit(self._upstream._replace(scheme=scheme, netloc=f"{user}@127.0.0.1:{port}"))

    def cut(self) -> int:
        """Break all connections. Returns how many."""
        cut = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        return cut

    def freeze(self) -> None:
        """Forward nothing more, not even that one side has closed the connection."""
        self._open.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._open.set()

    async def inject(self, data: bytes) -> None:
        """Send bytes to all clients as if the broker had. Only safe while the broker is quiet."""
        for writer in self._writers:
            if getattr(writer, "to_client", False):
                writer.write(data)
                await writer.drain()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        host, port = self._upstream.hostname, self._upstream.port
        up_reader, up_writer = await asyncio.open_connection(host, port)
        writer.to_client = True  # type: ignore[attr-defined]
        self._writers |= {writer, up_writer}
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        await self._open.wait()
        self._writers.discard(sink)
        sink.transport.abort()
