"""Mail by SMTP (RFC 5321), each message to one address."""

import asyncio
import hashlib
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from pathlib import Path
from typing import Any, Self

import aiosmtplib
from pydantic import SecretStr

from ..redaction import Redactor, Secret
from .backends import BackendContext, Outgoing, Unconfigured

PORTS = {"starttls": 587, "tls": 465, "none": 25}
NOBODY = "customer"  # whom a call names that names no address
QUIT_SECONDS = 2.0
MAX_SAID = 300  # characters of what a server says
UNKNOWN = "the server did not say whether it took the message; it may have been sent"

_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)")


@dataclass(frozen=True, slots=True)
class Smtp:
    """The backend `smtp`: it answers `sent` when the server has taken the message.

    A message has the same Message-ID whenever it is sent again, so that it can be found and thrown away twice.
    """

    host: str
    port: int
    sender: str
    security: str = "starttls"
    username: str = ""
    password: SecretStr | None = None
    subject: str = "Reply"
    default_to: str = ""
    trust: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def configured(cls, context: BackendContext) -> Self:
        """By `[tools.mail]` and `SKILLBUS_MAIL_*`. Raises Unconfigured."""
        host, security = context.option("host"), context.option("security").lower() or "starttls"
        if not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", host):
            raise Unconfigured("set SKILLBUS_MAIL_HOST to the name of the mail server")
        if security not in PORTS:
            raise Unconfigured("SKILLBUS_MAIL_SECURITY must be starttls, tls or none")
        sender, default_to = context.option("sender"), context.option("default_to")
        if not is_address(sender):
            raise Unconfigured("set SKILLBUS_MAIL_SENDER to the address that mail comes from")
        if default_to and not is_address(default_to):
            raise Unconfigured("SKILLBUS_MAIL_DEFAULT_TO must be an address")
        subject = context.option("subject") or "Reply"
        if not subject.isprintable() or len(subject) > 200:
            raise Unconfigured("SKILLBUS_MAIL_SUBJECT must be one line of at most 200 characters")
        username, password = context.option("username"), context.secret("password")
        if bool(username) != (password is not None):
            raise Unconfigured("set both SKILLBUS_MAIL_USERNAME and SKILLBUS_MAIL_PASSWORD, or neither")
        if username and security == "none":
            raise Unconfigured("a login needs SKILLBUS_MAIL_SECURITY starttls or tls")
        trust = None if security == "none" else _trust(context.option("ca_file"))
        port = _port(context.option("port"), PORTS[security])
        return cls(host, port, sender, security, username, password, subject, default_to, trust)

    async def send(self, message: Outgoing) -> Any:
        """What became of the message; nothing that a server does raises."""
        to = self.default_to if message.to == NOBODY and self.default_to else message.to
        if to == NOBODY:
            return self._failure("there is no address of 'customer' here: give `to` an e-mail address")
        if not is_address(to):
            return self._failure(f"{message.to[:100]!r} is not one e-mail address of ASCII characters")
        letter = self._letter(to, message)
        client = aiosmtplib.SMTP(
            hostname=self.host,
            port=self.port,
            local_hostname=_domain(self.sender),
            timeout=message.seconds,
            use_tls=self.security == "tls",
            start_tls=self.security == "starttls",
            tls_context=self.trust,
        )
        handed_over = False
        try:
            async with asyncio.timeout(message.seconds):
                await client.connect()
                if self.password is not None:
                    await client.login(self.username, self.password.get_secret_value())
                await client.mail(self.sender)
                await client.rcpt(to)
                handed_over = True
                await client.data(letter.as_bytes())
            with suppress(Exception):
                await asyncio.wait_for(client.quit(), QUIT_SECONDS)
        except aiosmtplib.SMTPAuthenticationError as error:
            # What it says may repeat what it was given.
            return self._failure(f"the server refused the login ({error.code})", retryable=_passes(error.code))
        except aiosmtplib.SMTPResponseException as error:
            if handed_over and not 400 <= error.code < 600:
                return self._failure(UNKNOWN)  # no refusal: what it took the message for nobody can tell
            return self._failure(self._said(error), retryable=_passes(error.code))
        except (TimeoutError, OSError, aiosmtplib.SMTPException) as error:
            if handed_over:
                return self._failure(UNKNOWN)
            return self._failure(*_reason(error))
        finally:
            client.close()
        return {
            "sent": True,
            "recorded": True,
            "delivery": "smtp",
            "note": f"The mail server took it as {letter['Message-ID']}.",
        }

    def _letter(self, to: str, message: Outgoing) -> EmailMessage:
        letter = EmailMessage(policy=SMTP)
        letter["From"], letter["To"], letter["Subject"] = self.sender, to, self.subject
        letter["Date"] = format_datetime(localtime())
        letter["Message-ID"] = message_id(message.key, self.sender)
        letter["Auto-Submitted"] = "auto-generated"  # so that no robot answers (RFC 3834)
        # Whatever the text holds, it is lines of printable ASCII on its way.
        letter.set_content(message.body, cte="quoted-printable")
        return letter

    def _failure(self, error: str, retryable: bool = False) -> dict[str, Any]:
        return {"sent": False, "recorded": False, "delivery": "smtp", "error": error, "retryable": retryable}

    def _said(self, error: aiosmtplib.SMTPResponseException) -> str:
        """What the server said; not the password, should it repeat that, on one line or over several."""
        lines = error.message.splitlines()
        redactor = Redactor([Secret("password", self.password.get_secret_value())] if self.password else [])
        whole = "".join(lines)
        said = redactor.text(whole) if redactor.holds(whole) else " ".join(lines)
        return f"{error.code} {' '.join(said.split())[:MAX_SAID]}".strip()


def is_address(text: str) -> bool:
    """Whether the text is one plain e-mail address: no name, no comment, no second one, nothing that ends a line."""
    match = _ADDRESS.fullmatch(text)
    return (
        match is not None
        and len(match[1]) <= 253
        and all(len(label) <= 63 and label.strip("-") == label for label in match[1].split("."))
    )


def message_id(key: str, sender: str) -> str:
    """The Message-ID of a call: the same for the same key, and telling nothing of it."""
    return f"<{hashlib.sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()[:40]}@{_domain(sender)}>"


def _domain(address: str) -> str:
    return address.rpartition("@")[2]


def _passes(code: int) -> bool:
    """Whether a refusal is for now only (RFC 5321, section 4.2.1)."""
    return 400 <= code < 500


def _reason(error: Exception) -> tuple[str, bool]:
    """What to tell of a failure before the message was handed over, and whether it may pass."""
    if isinstance(error, TimeoutError):
        return "timed out", True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "the certificate of the mail server is not trusted", False
        if isinstance(cause, ssl.SSLError):
            return "the mail server does not speak TLS as it should", False
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError):
        return "the mail server can't be reached", True
    if "STARTTLS" in str(error):
        return "the mail server offers no STARTTLS", False
    return f"the mail server can't be used ({type(error).__name__})", False


def _trust(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the home of nobody
        raise Unconfigured("SKILLBUS_MAIL_CA_FILE must be a file of certificates in PEM form") from None


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 0 < int(text) < 65_536:
        raise Unconfigured("SKILLBUS_MAIL_PORT must be a number from 1 to 65535")
    return int(text)
