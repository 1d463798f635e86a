"""Logging to standard error, for people or as JSON lines, with every secret masked."""

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

from skills.redaction import redact_known, redact_labelled

MASK = "***"
# A credential is 64 hex digits. So is a hash, which may be shown: everywhere it stands behind `sha256:`.
SECRETS = (
    (re.compile(r"(?i)\b(bearer)(\s+|%20)[\w.~+/=-]+"), rf"\1 {MASK}"),
    (re.compile(r"(?<![\w.-])eyJ[\w-]*\.[\w-]+\.[\w-]*"), MASK),
    (re.compile(r"(?i)(?<!sha256:)(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])"), MASK),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@\"']*):[^\s/\"'<>]*@"), rf"\1:{MASK}@"),
    # A password with a slash in it that was not written as %2F; what may be a port is none.
    (
        re.compile(rf"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@\"']*):(?!{re.escape(MASK)}@|\d{{1,5}}[/?#])[^\s\"'<>@]*@"),
        rf"\1:{MASK}@",
    ),
    (
        re.compile(
            r"(?i)([?&;](?:[\w.%-]*(?:passw|passphrase|pwd|secret|token|credential)[\w.%-]*|[\w.%-]*key)=)[^\s&;#\"'<>]+"
        ),
        rf"\1{MASK}",
    ),
)
# What they say below a warning is about themselves, every statement with its values among it.
LIBRARIES = ("aio_pika", "aiormq", "asyncio", "httpcore", "httpx", "sqlalchemy")
# Each of its errors is the cause of one that `bus.link` tells, with the name of the connection.
TWICE_TOLD = "aiormq.connection"
# Levels of an extra field that are shown as such; what stands deeper is its text.
DEEPEST = 20
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def mask(text: str) -> str:
    """The text without what must not be shown: bearer tokens, JWTs, credentials, passwords in URLs, tools' secrets."""
    text = redact_known(text)
    for pattern, instead in SECRETS:
        text = pattern.sub(instead, text)
    return text


class Masked(logging.Filter):
    """Masks a record before any formatter sees it: message, arguments, exception, stack and extra fields."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = mask(_message(record)), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_text = mask(record.exc_text) if record.exc_text else None
        record.exc_info = None  # a handler that makes its own text of it would show what is masked here
        record.stack_info = mask(record.stack_info) if record.stack_info else None
        for name, value in _extra(record).items():
            delattr(record, name)
            setattr(record, mask(name), redact_labelled({name: _masked(value)})[name])
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line: `ts`, `level`, `logger`, `msg`, the record's extra fields, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line |= {name: value for name, value in _extra(record).items() if name not in line}
        if trace := _trace(self, record):
            line["exception"] = trace
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except (TypeError, ValueError, RecursionError):  # a lone surrogate, a number over 64 bits, no end
            return orjson.dumps(_encodable(line)).decode()


class Lines(logging.Formatter):
    """Lines for people: local time, level, logger, message, extra fields as `name=value`, the trace below."""

    def format(self, record: logging.LogRecord) -> str:
        at = _time(record).astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
        parts = [at, f"{record.levelname.lower():<7}", f"{record.name}:", record.getMessage()]
        parts += [f"{name}={value}" for name, value in _extra(record).items()]
        trace = _trace(self, record)
        return _legible(" ".join(parts) + (f"\n{trace}" if trace else ""))


class _OnTerminal(logging.StreamHandler[TextIO]):
    """The same lines in colours."""

    STYLES: Mapping[int, str] = {logging.DEBUG: "dim", logging.WARNING: "yellow", logging.ERROR: "red"}

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # here, as few processes write to a terminal and each would pay for it

        super().__init__(stream)
        self._console = Console(file=stream, soft_wrap=True, highlight=False, markup=False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            style = self.STYLES.get(min(record.levelno, logging.ERROR), "")
            self._console.print(self.format(record), style=style)
        except Exception:
            self.handleError(record)


def configure(
    format: Literal["human", "json"] = "human",  # noqa: A002
    level: str = "info",
    stream: TextIO | None = None,
) -> None:
    """Send every log record and warning to `stream` (standard error), instead of where they went before."""
    stream = stream or sys.stderr
    formatter: logging.Formatter = JsonLines() if format == "json" else Lines()
    on_terminal = format == "human" and stream.isatty()
    handler: logging.Handler = _OnTerminal(stream) if on_terminal else logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(Masked())
    least = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=least, force=True)
    logging.captureWarnings(True)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(max(least, logging.WARNING))
    logging.getLogger(TWICE_TOLD).setLevel(logging.WARNING if least <= logging.DEBUG else logging.CRITICAL)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return f"{_text(record.msg)} {_text(record.args)}"  # with the wrong arguments it is a line like any other


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    return "\n".join(part for part in (trace, record.stack_info) if part)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in OWN}


def _masked(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return mask(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < DEEPEST and isinstance(value, Mapping):
        return {mask(_text(key)): _masked(inner, depth + 1) for key, inner in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_masked(inner, depth + 1) for inner in value]
    return mask(_text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _legible(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _encodable(value: Any, depth: int = 0) -> Any:
    """The value as any JSON encoder takes it."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    if depth <= DEEPEST and isinstance(value, Mapping):
        return {_legible(_text(key)): _encodable(inner, depth + 1) for key, inner in value.items()}
    if depth <= DEEPEST and isinstance(value, list | tuple):
        return [_encodable(inner, depth + 1) for inner in value]
    return _legible(_text(value))
