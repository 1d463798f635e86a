"""Walking a result back to its cause: every link of a call, and of a chain, checked by hash."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from ..ledger.books import Books, LogEntry
from ..ledger.ledger import Ledger
from ..ledger.records import genesis
from ..ledger.watch import LedgerUnavailable
from .links import Held, Walk, walk
from .trailer import Trailer

MAX_SCAN = 5000
"""How many of the newest entries are looked through for a handle that no index knows."""

_CHUNK = 200

_REF = re.compile(r"sha256:[0-9a-f]{64}")
_TASK = re.compile(r"[0-9a-f]{32}")


class NotFound(LookupError):
    """Nothing in the log answers to this handle; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What checking a whole chain found: how many entries there are, and every fault in words."""

    episode: str
    entries: int
    faults: tuple[str, ...]


class Provenance:
    """Reads a ledger and trusts nothing in it but its hashes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def why(self, target: str, *, episode: str | None = None) -> Walk:
        """Walk the call that `target` names: an entry's index or `head` (with `episode`, or written EPISODE:INDEX),
        a task id, an invocation id, or the ref of an entry or of any object of a call.

        Raises NotFound.
        """
        walked, _ = await self.call(target, episode=episode)
        return walked

    async def call(self, target: str, *, episode: str | None = None) -> tuple[Walk, Held]:
        """The walk of a call as `why` does it, and the objects that it leads to. Raises NotFound."""
        entry = await self._find(target, episode)
        around = await self._ledger.books(entry.episode, after=entry.index - 2, before=entry.index + 2)
        near = {each.index: each for each in around.entries} if around else {}
        before, following = near.get(entry.index - 1), near.get(entry.index + 1)
        held = await self._held([entry])
        return walk(entry, before, following, around.world if around else None, held), held

    async def calls(self, episode: str) -> AsyncIterator[tuple[Walk, Held]]:
        """The walks of all calls of an episode, from its beginning to where it stands now. Raises NotFound."""
        books = await self._ledger.books(episode)
        if books is None:
            raise NotFound(f"no episode {episode!r} in this ledger")
        async for walked in self._walks(books):
            yield walked

    async def verify(self, episode: str) -> Verdict:
        """Check every entry of an episode from its beginning to its head, and its spend.

        Raises NotFound, and LedgerUnavailable, which is no fault.
        """
        faults: list[str] = []
        try:
            episode.encode()
        except UnicodeEncodeError:
            raise NotFound(f"no episode {episode!r} in this ledger") from None
        try:
            books = await self._ledger.books(episode)
            entries = 0 if books is None else await self._check(episode, books, faults)
        except LedgerUnavailable:
            raise  # which says nothing about what is in it
        except Exception as error:  # what is not of its kind is a fault, wherever it shows
            return Verdict(episode, 0, (*faults, f"the ledger can't be read: {type(error).__name__}: {error}"))
        if books is None:
            raise NotFound(f"no episode {episode!r} in this ledger")
        return Verdict(episode, entries, tuple(faults))

    async def trailer(self, episode: str, store: str, *, first: int = 1, last: int | None = None) -> Trailer:
        """The trailer of these entries of an episode, of all if none are named; `verify` says whether they hold.

        Raises NotFound, TrailerError.
        """
        found = await self._ledger.entries(episode=episode, last=1)
        if last is not None and found and last < found[0].index:
            found = await self._ledger.entries(episode=episode, after=last - 1, before=last + 1)
        if not found or first > found[0].index or (last is not None and found[0].index != last):
            wanted = "no entries" if last is None and first == 1 else f"no entries {first}-{last or 'head'}"
            raise NotFound(f"the episode {episode!r} has {wanted} in this ledger")
        return Trailer(store, episode, first, found[0].index, found[0].hash)

    async def belongs(self, trailer: Trailer, store: str) -> tuple[str, ...]:
        """What speaks against a trailer being of this ledger, `store`, whose log is checked as `verify` does."""
        try:
            verdict = await self.verify(trailer.episode)
            own = await self.trailer(trailer.episode, store, first=trailer.first, last=trailer.last)
        except NotFound as error:
            return (str(error),)
        if trailer.head is None and trailer.store != store:
            return (f"it names the store {trailer.store} and no World-Head; this one is {store}",)
        if trailer.head is not None and trailer.head != own.head:
            return (f"entry {own.last} of {own.episode} is {own.head} here, and {trailer.head} in the trailer",)
        return verdict.faults

    async def _check(self, episode: str, books: Books, faults: list[str]) -> int:
        world, entries = books.world, books.entries
        if books.settled != len(entries):
            faults.append(f"{books.settled} calls have an outcome and the log has {len(entries)} entries")
        async for walked, _ in self._walks(books):
            faults += [f"entry {walked.entry.index}: {each.name}: {each.fault}" for each in walked.links if each.fault]
        if len(entries) != world.revision:
            faults.append(f"the episode stands at entry {world.revision} and the log has {len(entries)}")
        if not entries and world != genesis(episode):
            faults.append("the episode's world is not that of its beginning")
        if books.spent != books.debits:
            faults.append(f"the spend does not add up: {_budget(books.spent)} spent, {_budget(books.debits)} debited")
        return len(entries)

    async def _walks(self, books: Books) -> AsyncIterator[tuple[Walk, Held]]:
        entries = books.entries
        for start in range(0, len(entries), _CHUNK):
            chunk = entries[start : start + _CHUNK]
            held = await self._held(chunk)
            for position, entry in enumerate(chunk, start):
                before = entries[position - 1] if position else None
                following = entries[position + 1] if position + 1 < len(entries) else None
                yield walk(entry, before, following, books.world, held), held

    # finding

    async def _find(self, target: str, episode: str | None) -> LogEntry:
        named, colon, last = target.rpartition(":")
        if colon and (last.isdecimal() or last == "head") and not _REF.fullmatch(target) and named.count(":") == 0:
            episode, target = named, last
        if (target.isdecimal() and not _TASK.fullmatch(target)) or target == "head":
            if episode is None:
                raise NotFound(f"say which episode: EPISODE:{target}, or --episode EPISODE")
            if target == "head":
                found = await self._ledger.entries(episode=episode, last=1)
            else:
                index = min(int(target[:20]), 1 << 62)
                found = await self._ledger.entries(episode=episode, after=index - 1, before=index + 1)
            return _first(found, f"no entry {target} in episode {episode!r}")
        if target.startswith("a2a:") and target.count(":") == 2:
            target = target.rpartition(":")[2]
        if _TASK.fullmatch(target):
            return _first(await self._ledger.entries(task_id=target), f"no committed call has the task id {target}")
        if not _REF.fullmatch(target):
            raise NotFound(
                f"{target!r} is no handle: give EPISODE:INDEX, EPISODE:head, sha256:…, a task or invocation id"
            )
        newest = await self._ledger.entries(episode=episode, last=MAX_SCAN)
        for start in range(len(newest), 0, -_CHUNK):
            chunk = newest[max(start - _CHUNK, 0) : start]
            held = await self._held(chunk)
            for entry in reversed(chunk):
                if target == entry.hash or target in held.refs(entry):
                    return entry
        raise NotFound(f"none of the newest {MAX_SCAN} entries leads to {target}")

    async def _held(self, entries: Sequence[LogEntry]) -> Held:
        """The objects that these entries lead to, a step at a time."""
        held = Held({})
        wanted: set[str] = {name for entry in entries for name in held.refs(entry)}
        seen: set[str] = set()
        while wanted:
            held = Held({**held.objects, **await self._ledger.objects(wanted)})
            seen |= wanted
            wanted = {name for entry in entries for name in held.refs(entry)} - seen
        return held


def _first(found: list[LogEntry], otherwise: str) -> LogEntry:
    if not found:
        raise NotFound(otherwise)
    return found[0]


def _budget(used: Mapping[tuple[str, str], int]) -> str:
    return json.dumps({f"{effect}={scope}": n for (effect, scope), n in used.items()}, sort_keys=True, default=str)
