"""A mail server on a free port: aiosmtpd, and faults that a test asks for."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "mailer", "hush-hush-hush"


@dataclass
class Post:
    """What has come, and what is answered instead of what a mail server would."""

    port: int = 0
    letters: list[EmailMessage] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    logins: list[bool] = field(default_factory=list)
    instead: dict[str, str] = field(default_factory=dict)

    async def handle_MAIL(self, server: Any, session: Session, envelope: Envelope, address: str, options: Any) -> str:
        envelope.mail_from = address
        return self.instead.get("MAIL", "250 OK")

    async def handle_RCPT(self, server: Any, session: Session, envelope: Envelope, address: str, options: Any) -> str:
        envelope.rcpt_tos.append(address)
        return self.instead.get("RCPT", "250 OK")

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        if "DATA" in self.instead:
            return self.instead["DATA"]
        assert isinstance(envelope.original_content, bytes)
        self.envelopes.append(envelope)
        letter = message_from_bytes(envelope.original_content, policy=policy.SMTP)
        assert isinstance(letter, EmailMessage)
        self.letters.append(letter)
        return "250 taken"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        good = (given.login, given.password) == (USER.encode(), PASSWORD.encode())
        self.logins.append(good)
        return AuthResult(success=good, handled=good)


@asynccontextmanager
async def post_office(
    *, security: str = "none", trust: "Trust | None" = None, login: bool = False
) -> AsyncIterator[Post]:
    """A server that speaks as `security` says; with `login` it asks for one."""
    post = Post()
    context = trust.server if trust is not None else None
    starttls = security == "starttls"

    def make() -> SMTP:
        return SMTP(
            post,
            hostname="localhost",
            tls_context=context if starttls else None,
            require_starttls=starttls,
            auth_required=login,
            auth_require_tls=starttls,
            authenticator=post.authenticate if login else None,
            loop=asyncio.get_running_loop(),
        )

    async with _listening(make, context if security == "tls" else None) as port:
        post.port = port
        yield post


@asynccontextmanager
async def silent(*lines: bytes, then_close: bool = False) -> AsyncIterator[int]:
    """A server that says one line for each that it gets, the first unasked; then nothing more, or it closes."""
    writers: set[asyncio.StreamWriter] = set()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(OSError):
            for line in lines:
                writer.write(line + b"\r\n")
                await writer.drain()
                await reader.readline()
            if not then_close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await server.wait_closed()


@asynccontextmanager
async def _listening(make: Callable[[], SMTP], context: ssl.SSLContext | None) -> AsyncIterator[int]:
    made: list[SMTP] = []

    def protocol() -> SMTP:
        made.append(make())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        handlers = [each._handler_coroutine for each in made if each._handler_coroutine is not None]
        for each in made:
            if each.transport is not None:
                each.transport.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()


@dataclass(frozen=True)
class Trust:
    """A certificate for localhost that signs itself: what the server shows, and the file that trusts it."""

    server: ssl.SSLContext
    file: Path

    @classmethod
    def make(cls, folder: Path, host: str = "localhost") -> "Trust":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        form = serialization.PrivateFormat.PKCS8
        secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        both = folder / "server.pem"
        both.write_bytes(secret + pem)
        file = folder / "ca.pem"
        file.write_bytes(pem)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(both)
        return cls(context, file)
