"""The arguments of a call, as they are given on the command line."""

import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from .failure import Failure


def gather(texts: Sequence[str], values: Sequence[str], whole: str | None) -> Any:
    """What `--arg k=v` (strings), `--arg-json k=JSON` and `--json OBJECT|@FILE|-` say together. Raises Failure."""
    if whole is not None:
        if texts or values:
            raise Failure("give the arguments as --json, or as --arg and --arg-json, not both")
        return _parse(_source(whole), "--json")
    given: dict[str, Any] = {}
    for option, pairs in (("--arg", texts), ("--arg-json", values)):
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise Failure(f"{option} {pair!r} must be NAME=VALUE")
            if name in given:
                raise Failure(f"the argument {name!r} is given twice")
            given[name] = value if option == "--arg" else _parse(value, f"{option} {name}")
    return given


def _source(whole: str) -> str:
    if whole == "-":
        return _decoded(sys.stdin.buffer.read(), "the standard input")
    if whole.startswith("@"):
        try:
            return _decoded(Path(whole[1:]).expanduser().read_bytes(), whole[1:])
        except (OSError, ValueError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Failure(f"--json {whole}: the file can't be read: {reason}") from None
    return whole


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Failure(f"--json: {where} is not UTF-8: {error.reason} at byte {error.start}") from None


def _parse(text: str, option: str) -> Any:
    from skills import canonical

    try:
        return _plain(canonical.parse(text))
    except canonical.NotCanonical as error:
        raise Failure(f"{option}: {error}") from None


def _plain(value: Any) -> Any:
    """The value as a JSON encoder takes it: what has a fraction is a float on the wire."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
