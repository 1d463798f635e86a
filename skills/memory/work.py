"""What one call does with its memories: it reads what stands there, and changes everything or nothing when it ends."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from .entry import Change, Entry, Versions
from .errors import Conflict, TooMuch, Unfit
from .limits import check_key, check_limit, check_prefix, check_version, encode_value
from .place import Place
from .store import MemoryStore
from .words import words_of

MOST_LISTED = 1000
MOST_FOUND = 100


@dataclass(slots=True)
class _Use:
    """How one memory was used so far."""

    place: Place
    changes: dict[str, Change] = field(default_factory=dict)
    read: dict[tuple[str, int], None] = field(default_factory=dict)

    @property
    def accesses(self) -> int:
        return len(self.read) + len(self.changes)

    def as_json(self, versions: Mapping[str, int]) -> dict[str, Any]:
        put = {
            key: versions[key] for key, change in self.changes.items() if change.value is not None and key in versions
        }
        gone = {key: versions[key] for key, change in self.changes.items() if change.value is None and key in versions}
        return {
            "memory": self.place.memory,
            "scope": self.place.scope,
            "read": sorted([key, version] for key, version in self.read),
            "written": sorted(map(list, put.items())),
            "deleted": sorted(map(list, gone.items())),
        }


class Work:
    """The memories of one call, `places` by their names in its contract.

    Nothing is changed before `commit`, which is called when the handler has done what it should. A call that fails or
    is killed has changed nothing. `call` names the call, the same however often it is run. `holds_secret` says of a
    JSON value whether it must not be kept.
    """

    def __init__(
        self,
        store: MemoryStore,
        call: str,
        places: Mapping[str, Place],
        holds_secret: Callable[[Any], bool] = lambda value: False,
    ) -> None:
        self._store, self._call = store, call
        self._holds_secret = holds_secret
        self._uses = {name: _Use(place) for name, place in places.items()}
        self._lock = asyncio.Lock()
        self._ended = False
        self._settled: list[dict[str, Any]] | None = None

    def memory(self, name: str, modes: Collection[str]) -> Any:
        """What the handler gets of a memory: an object with the methods that these modes give, and no others."""
        use = self._uses[name]
        if {"read", "write"} <= set(modes):
            return ReadableAndWritable(self, use)
        return Readable(self, use) if "read" in modes else Writable(self, use)

    async def earlier(self) -> dict[str, Any] | None:
        """The output of this call if it has committed before, by a worker that ended before it could say so."""
        kept = await self._store.result(self._call)
        return None if kept is None else self._take(kept)

    async def commit(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """Make the changes, all or none; the output of the call. Nothing can be asked of its memories any more.

        It is another output than was given if another run of the same call was first. Raises MemoryFault.
        """
        async with self._lock:
            self._ended = True
            changes = {use.place: use.changes for use in self._uses.values() if use.changes}
            if not changes:
                return dict(output)

            def result(versions: Versions) -> str:
                return orjson.dumps({"output": output, "accesses": self._accesses(versions)}).decode()

            return self._take(await self._store.commit(self._call, changes, result))

    def end(self) -> None:
        """Change nothing, and let nothing be asked any more."""
        self._ended = True

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return any(use.changes for use in self._uses.values())

    @property
    def accesses(self) -> list[dict[str, Any]]:
        """For the call's record: of each memory that was used, which keys with which versions were read and changed.

        The version 0 says that there was no such key. A deleted key has the version that it had.
        """
        return self._accesses({}) if self._settled is None else self._settled

    def _accesses(self, versions: Versions) -> list[dict[str, Any]]:
        uses = [use for use in self._uses.values() if use.accesses]
        return [use.as_json(versions.get(use.place, {})) for use in uses]

    def _take(self, kept: str) -> dict[str, Any]:
        said = orjson.loads(kept)
        self._settled = said["accesses"]
        output: dict[str, Any] = said["output"]
        return output

    # what the handler asks for

    async def get(self, use: _Use, key: Any) -> dict[str, Any] | None:
        """The entry of a key, as this call has left it."""
        self._check()
        self._check_key(key)
        mine = use.changes.get(key)
        if mine is not None:
            return None if mine.value is None else _told(Entry(key, mine.version, mine.value))
        found, _ = await self._store.get(use.place, key)
        self._note(use, [(key, found.version if found else 0)])
        return None if found is None else _told(found)

    async def keys(self, use: _Use, prefix: Any, limit: Any, after: Any) -> list[dict[str, Any]]:
        """Keys with their versions, as this call has left them."""
        self._check()
        check_prefix(prefix, "a prefix", self._store.limits)
        check_prefix(after, "the key to go on after", self._store.limits)
        check_limit(limit, MOST_LISTED)
        # those that this call has deleted have to be made up for
        mine = {key: change for key, change in use.changes.items() if key.startswith(prefix) and key > after}
        gone = sum(change.value is None for change in mine.values())
        found = await self._store.keys(use.place, prefix, limit + gone, after)
        listed = {entry.key: entry.version for entry in found if entry.key not in mine}
        last = found[-1].key if len(found) == limit + gone else None
        mine_here = {k: c.version for k, c in mine.items() if c.value is not None and (last is None or k <= last)}
        shown = sorted({**listed, **mine_here}.items())[:limit]
        self._note(use, [(key, version) for key, version in shown if key not in mine_here])
        return [{"key": key, "version": version} for key, version in shown]

    async def search(self, use: _Use, text: Any, limit: Any) -> list[dict[str, Any]]:
        """Entries that have all words of a text, the best first: of those that this call has not changed itself."""
        self._check()
        if not isinstance(text, str):
            raise Unfit("what is searched for is a text")
        check_limit(limit, MOST_LISTED)
        limit = min(limit, MOST_FOUND)
        found = await self._store.search(use.place, text, limit + len(use.changes))
        found = [entry for entry in found if entry.key not in use.changes][:limit]
        self._note(use, [(entry.key, entry.version) for entry in found])
        return [_told(entry) for entry in found]

    async def put(self, use: _Use, key: Any, value: Any, version: Any) -> int:
        """Have a value stand under a key when the call ends; its version, if no other call comes between."""
        self._check_key(key)
        encoded = encode_value(value, self._store.limits)
        if self._holds_secret(value):
            raise Unfit("a memory keeps no value of a secret")
        words = tuple(words_of(value))
        async with self._lock:
            now, last, over = await self._before(use, key, check_version(version))
            made = max(now, last) + 1
            use.changes[key] = Change(made, over, encoded, words)
            return made

    async def delete(self, use: _Use, key: Any, version: Any) -> bool:
        """Have nothing stand under a key when the call ends; whether something did."""
        self._check_key(key)
        async with self._lock:
            now, last, over = await self._before(use, key, check_version(version))
            use.changes[key] = Change(max(now, last), over)
            return now > 0

    async def _before(self, use: _Use, key: str, version: int | None) -> tuple[int, int, int | None]:
        """The version that stands under a key, the last one that stood there, and over which one the call began."""
        self._check()
        mine = use.changes.get(key)
        if mine is None:
            self._count(1)
            found, last = await self._store.get(use.place, key)
            now, over = found.version if found else 0, version
            self._check()
        else:
            now, last, over = mine.version if mine.value is not None else 0, mine.version, mine.over
        if version is not None and version != now:
            raise Conflict(f"the version of {key!r} is {now} and not {version}")
        return now, last, over

    def _note(self, use: _Use, seen: list[tuple[str, int]]) -> None:
        self._check()
        self._count(sum(each not in use.read for each in seen))
        use.read.update(dict.fromkeys(seen))

    def _count(self, more: int) -> None:
        if sum(use.accesses for use in self._uses.values()) + more > self._store.limits.accesses:
            raise TooMuch(f"one call may read and change {self._store.limits.accesses} keys at most")

    def _check_key(self, key: Any) -> None:
        check_key(key, self._store.limits)
        if self._holds_secret(key):
            raise Unfit("a memory keeps no value of a secret")

    def _check(self) -> None:
        if self._ended:
            raise Unfit("the call has ended")


class _Memory:
    __slots__ = ("__use", "__work")

    def __init__(self, work: Work, use: _Use) -> None:
        self.__work, self.__use = work, use

    def __repr__(self) -> str:
        return f"<memory {self.__use.place.memory}>"

    def _asked(self) -> tuple[Work, _Use]:
        return self.__work, self.__use


class Readable(_Memory):
    """A memory as a call may read it."""

    __slots__ = ()

    async def get(self, key: str) -> dict[str, Any] | None:
        """`{"key", "value", "version"}`, or None where there is none."""
        work, use = self._asked()
        return await work.get(use, key)

    async def list(self, prefix: str = "", limit: int = 100, after: str = "") -> Sequence[Mapping[str, Any]]:
        """`{"key", "version"}` of keys that begin with `prefix` and stand behind `after`, in the order of their bytes.

        The last key of a page is the `after` of the next one.
        """
        work, use = self._asked()
        return await work.keys(use, prefix, limit, after)

    async def search(self, text: str, limit: int = 10) -> Sequence[Mapping[str, Any]]:
        """The entries that have all words of the text, the best first, as `get` gives them."""
        work, use = self._asked()
        return await work.search(use, text, limit)


class Writable(_Memory):
    """A memory as a call may change it. It gives nothing of what stands in it but versions."""

    __slots__ = ()

    async def put(self, key: str, value: Any, version: int | None = None) -> int:
        """Write a JSON value, over this version alone unless it is None (0: nothing stands there); the new version."""
        work, use = self._asked()
        return await work.put(use, key, value, version)

    async def delete(self, key: str, version: int | None = None) -> bool:
        """Take a key away; whether there was one. `version` is as in `put`."""
        work, use = self._asked()
        return await work.delete(use, key, version)


class ReadableAndWritable(Readable, Writable):
    """A memory as a call may read and change it."""

    __slots__ = ()


def _told(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "value": orjson.loads(entry.value), "version": entry.version}
