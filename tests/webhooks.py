"""A webhook's receiver on a free port of this machine: a real HTTP server that answers as it is told."""

import asyncio
import datetime
import json
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HANG = "hang"
CLOSE = "close"


@dataclass
class Posted:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """Which member of `StreamResponse` it holds."""
        (kind,) = self.json
        return str(kind)

    @property
    def place(self) -> int:
        return int(self.headers["a2a-task-seq"])


@dataclass
class Receiver:
    """Answers each request with the next of `answers`, then with 200: a status, a status with headers, HANG, CLOSE."""

    answers: deque[Any] = field(default_factory=deque)
    posted: list[Posted] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    port: int = 0
    always: Any = 200
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def places(self) -> list[int]:
        return [each.place for each in self.posted]

    async def count(self, wanted: int) -> list[Posted]:
        """Wait until so many requests have come."""
        return await self._until(lambda: len(self.posted) >= wanted)

    async def place(self, wanted: int) -> list[Posted]:
        """Wait until a notification of this place has come."""
        return await self._until(lambda: wanted in self.places)

    async def _until(self, condition: Callable[[], bool]) -> list[Posted]:
        async with asyncio.timeout(30):
            while not condition():
                self._news.clear()
                await self._news.wait()
        return self.posted

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                await self._answer(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = self.answers.popleft() if self.answers else self.always
        self.posted.append(Posted(method, path, headers, body))
        self._news.set()
        if answer == HANG:
            await asyncio.Event().wait()
        if answer == CLOSE:
            return
        status, more = answer if isinstance(answer, tuple) else (answer, {})
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in more.items()), "Content-Length: 2"]
        writer.write("\r\n".join([*lines, "", "ok"]).encode())
        await writer.drain()


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server of this name needs, and what a client needs to believe it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))
