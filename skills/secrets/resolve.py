"""From handles to values, at the dispatch of a call and never before; nothing is kept for the next call."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import SkillError
from ..redaction import Secret
from ..tb.provider import Provider
from .reading import COMMAND_SECONDS, MAX_VALUE, NotResolved, kind_of, read

MIN_VALUE = 4
"""Characters of a value. A shorter one stands in too much to be kept out of what a handler says."""

MAX_LINES = 1000
"""Lines of a value, as each is looked for in what a handler says."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A handle without a value; `kind` is the kind of its provider, empty where it has none."""

    handle: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.handle} ({self.kind}): {self.reason}" if self.kind else f"{self.handle}: {self.reason}"


class SecretsMissing(SkillError):
    """Some handles can't be resolved, so the call is refused; the message names them, and no value."""

    def __init__(self, missing: Iterable[Unresolved]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"secrets can't be resolved: {'; '.join(map(str, self.missing))}")


async def resolve(
    handles: Iterable[str],
    providers: Mapping[str, Provider],
    environ: Mapping[str, str],
    *,
    seconds: float = COMMAND_SECONDS,
) -> dict[str, Secret]:
    """The secrets behind the handles. Raises SecretsMissing with all that can't be had."""
    wanted = sorted(set(handles))
    found = await asyncio.gather(*(_one(handle, providers.get(handle), environ, seconds) for handle in wanted))
    missing = [each for each in found if isinstance(each, Unresolved)]
    if missing:
        raise SecretsMissing(missing)
    return {each.handle: each for each in found if isinstance(each, Secret)}


async def _one(
    handle: str, provider: Provider | None, environ: Mapping[str, str], seconds: float
) -> Secret | Unresolved:
    if provider is None:
        return Unresolved(handle, "", "the manifest binds no source for it")
    try:
        return Secret(handle, _checked(await read(provider, environ, seconds=seconds)))
    except NotResolved as error:
        return Unresolved(handle, kind_of(provider), str(error))


def _checked(given: bytes) -> str:
    if len(given) > MAX_VALUE:
        raise NotResolved(f"it is over {MAX_VALUE} bytes")
    value = given.decode(errors="replace")  # an error would carry the bytes
    if value.encode() != given or "\0" in value:
        raise NotResolved("it is not text in UTF-8")
    if len(value) < MIN_VALUE:
        raise NotResolved(f"it has less than {MIN_VALUE} characters")
    if not value.strip():
        raise NotResolved("it is blank")
    if len(value.splitlines()) > MAX_LINES:
        raise NotResolved(f"it has more than {MAX_LINES} lines")
    return value
