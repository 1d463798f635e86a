"""Walking a result back to its cause: every link of a call, and of a chain, checked by hash."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from skills import canonical
from skills.canonical import ref

from . import records
from .ledger import Ledger, LogEntry
from .planned import task_id
from .records import Entry, Object, World, genesis

MAX_SCAN = 5000
"""How many of the newest entries are looked through for a handle that no index knows."""

_CHUNK = 200


_REF = re.compile(r"sha256:[0-9a-f]{64}")
_TASK = re.compile(r"[0-9a-f]{32}")
_STATUS = {"ok": "succeeded", "failed": "failed", "indeterminate": "indeterminate"}


class NotFound(LookupError):
    """Nothing in the log answers to this handle; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Link:
    """One checked step: what it is, what it names, and what is wrong with it (None when it holds)."""

    name: str
    detail: str
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """A call, walked from its log entry back to what was asked."""

    entry: LogEntry
    links: tuple[Link, ...]

    @property
    def holds(self) -> bool:
        return all(link.fault is None for link in self.links)


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
        entry = await self._find(target, episode)
        around = await self._ledger.entries(episode=entry.episode, after=entry.index - 2)
        before = next((e for e in around if e.index == entry.index - 1), None)
        following = next((e for e in around if e.index == entry.index + 1), None)
        world = await self._ledger.world(entry.episode)
        return _walk(entry, before, following, world, await self._held([entry]))

    async def verify(self, episode: str) -> Verdict:
        """Check every entry of an episode from its beginning to its head, and its spend. Raises NotFound."""
        world = await self._ledger.world(episode)
        if world is None:
            raise NotFound(f"no episode {episode!r} in this ledger")
        entries = await self._ledger.entries(episode=episode)
        faults: list[str] = []
        for start in range(0, len(entries), _CHUNK):
            chunk = entries[start : start + _CHUNK]
            held = await self._held(chunk)
            for position, entry in enumerate(chunk, start):
                before = entries[position - 1] if position else None
                following = entries[position + 1] if position + 1 < len(entries) else None
                links = _walk(entry, before, following, world, held).links
                faults += [f"entry {entry.index}: {link.name}: {link.fault}" for link in links if link.fault]
        if len(entries) != world.revision:
            faults.append(f"the episode stands at entry {world.revision} and the log has {len(entries)}")
        if not entries and world != genesis(episode):
            faults.append("the episode's world is not that of its beginning")
        spent, debited = await self._ledger.spent(episode), await self._ledger.debits(episode)
        if spent != debited:
            faults.append(f"the spend does not add up: {_budget(spent)} spent, {_budget(debited)} debited")
        return Verdict(episode, len(entries), tuple(faults))

    # finding

    async def _find(self, target: str, episode: str | None) -> LogEntry:
        named, colon, index = target.rpartition(":")
        if colon and (index.isdecimal() or index == "head") and not _REF.fullmatch(target) and named.count(":") == 0:
            episode, target = named, index
        if (target.isdecimal() and not _TASK.fullmatch(target)) or target == "head":
            if episode is None:
                raise NotFound(f"say which episode: EPISODE:{target}, or --episode EPISODE")
            found = (
                await self._ledger.entries(episode=episode, last=1)
                if target == "head"
                else [
                    e
                    for e in await self._ledger.entries(episode=episode, after=int(target) - 1)
                    if e.index == int(target)
                ]
            )
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

    async def _held(self, entries: Sequence[LogEntry]) -> "_Held":
        """The objects that these entries lead to, a step at a time."""
        held = _Held({})
        wanted: set[str] = {name for entry in entries for name in held.refs(entry)}
        seen: set[str] = set()
        while wanted:
            held = _Held({**held.objects, **await self._ledger.objects(wanted)})
            seen |= wanted
            wanted = {name for entry in entries for name in held.refs(entry)} - seen
        return held


class _Held:
    """Stored objects by the name they are stored under, which `fault` compares with their bytes."""

    def __init__(self, objects: Mapping[str, Object]) -> None:
        self.objects = objects

    def refs(self, entry: LogEntry) -> set[str]:
        """Every ref that an entry leads to, as far as the objects on the way are here."""
        header = _object(entry.encoded)
        record = self.json(header.get("transitionRef"))
        effects = record.get("effects")
        found = [header.get("transitionRef"), header.get("transitionFn"), header.get("interpreter")]
        found += [record.get("input"), record.get("output"), record.get("plan")]
        for effect in effects if isinstance(effects, list) else ():
            kept = self.json(effect)
            found += [effect, kept.get("requestRef"), kept.get("resultRef")]
        return {name for name in found if isinstance(name, str) and name}

    def fault(self, name: Any, semantic_id: str) -> str | None:
        found = self.objects.get(name) if isinstance(name, str) else None
        if found is None:
            return f"the object {name} is missing"
        if found.ref != name:
            return f"the bytes of {name} hash to {found.ref}"
        if found.semantic_id != semantic_id:
            return f"{name} is kept as {found.semantic_id}, not {semantic_id}"
        return None

    def bytes(self, name: Any) -> bytes:
        found = self.objects.get(name) if isinstance(name, str) else None
        return found.payload if found else b""

    def json(self, name: Any) -> Mapping[str, Any]:
        return _object(self.bytes(name))


def _walk(
    entry: LogEntry, before: LogEntry | None, following: LogEntry | None, world: World | None, held: _Held
) -> Walk:
    header = _object(entry.encoded)
    record = held.json(header.get("transitionRef"))
    effects = record.get("effects")
    named = ", ".join(map(str, effects if isinstance(effects, list) else ())) or "none"
    return Walk(
        entry,
        (
            Link("world", f"{entry.episode} at {entry.index}", _check_world(entry, following, world, record)),
            Link("entry", entry.hash, _check_entry(entry, before)),
            Link("record", str(header.get("transitionRef")), _check_record(entry, header, record, held)),
            Link("input", str(record.get("input")), _check_input(entry, record, held)),
            Link("plan", str(record.get("plan")), _check_plan(record, held)),
            Link("effect", named, _check_effects(entry, record, held)),
            Link("output", str(record.get("output")), _check_output(entry, record, held)),
        ),
    )


def _check_world(
    entry: LogEntry, following: LogEntry | None, world: World | None, record: Mapping[str, Any]
) -> str | None:
    if world is None:
        return "the episode is not in the ledger"
    if following is not None:
        stated = _object(following.encoded).get("prevEntryHash")
        return None if stated == entry.hash else f"the next entry continues from {stated}"
    if world != World(entry.index, str(record.get("output")), entry.hash):
        return f"the episode stands at entry {world.revision}, {world.log_head}"
    return None


def _check_entry(entry: LogEntry, before: LogEntry | None) -> str | None:
    if ref(entry.encoded) != entry.hash:
        return f"its bytes hash to {ref(entry.encoded)}"
    header = _object(entry.encoded)
    expected = before.hash if before else genesis(entry.episode).log_head
    if entry.index > 1 and before is None:
        return f"entry {entry.index - 1} is missing"
    if header.get("prevEntryHash") != expected:
        return f"it continues from {header.get('prevEntryHash')}, the entry before it is {expected}"
    if before is not None and ref(before.encoded) != before.hash:
        return f"the entry before it hashes to {ref(before.encoded)}"
    try:
        rebuilt = Entry(
            entry.index, header["transitionFn"], header["interpreter"], header["prevEntryHash"], header["transitionRef"]
        )
    except KeyError as missing:
        return f"it has no {missing}"
    return None if rebuilt.encode() == entry.encoded else "its fields are not those of an entry at its place"


def _check_record(entry: LogEntry, header: Mapping[str, Any], record: Mapping[str, Any], held: _Held) -> str | None:
    for name, semantic_id in (
        (header.get("transitionRef"), records.INVOCATION),
        (header.get("transitionFn"), "world/transition-source/v1"),
        (header.get("interpreter"), "world/interpreter/v1"),
    ):
        fault = held.fault(name, semantic_id)
        if fault:
            return fault
    if entry.message_id is None:
        return "the call is not in the ledger"
    expected = {
        "invocationId": records.invocation_id(entry.episode, entry.task_id),
        "episodeId": entry.episode,
        "skillId": entry.skill,
        "transitionFn": header.get("transitionFn"),
        "interpreter": header.get("interpreter"),
    }
    wrong = [name for name, value in expected.items() if record.get(name) != value]
    if entry.call_episode != entry.episode:
        wrong.append("episode")
    if task_id(entry.episode, entry.message_id) != entry.task_id:
        wrong.append("task id")
    return f"it does not fit its entry and call: {', '.join(wrong)}" if wrong else None


def _check_input(entry: LogEntry, record: Mapping[str, Any], held: _Held) -> str | None:
    fault = held.fault(record.get("input"), records.INPUT)
    if fault:
        return fault
    asked = ref((entry.skill or "").encode() + b"\0" + held.bytes(record.get("input")))
    return None if asked == entry.fingerprint else "it is not what the call's fingerprint was taken of"


def _check_plan(record: Mapping[str, Any], held: _Held) -> str | None:
    fault = held.fault(record.get("plan"), records.PLAN)
    if fault:
        return fault
    planned, recorded = held.json(record.get("plan")).get("effects"), record.get("effects")
    if not isinstance(planned, list) or not isinstance(recorded, list) or len(planned) != len(recorded):
        return "its effects are not as many as those recorded"
    return None


def _check_effects(entry: LogEntry, record: Mapping[str, Any], held: _Held) -> str | None:
    planned, recorded = held.json(record.get("plan")).get("effects"), record.get("effects")
    for effect, name in zip(planned if isinstance(planned, list) else (), recorded or (), strict=False):
        fault = held.fault(name, records.RECORD)
        if fault:
            return fault
        found = held.json(name)
        if any(found.get(member) != effect.get(member) for member in ("effect", "scope", "cost")):
            return f"{name} records another effect than was planned"
        if found.get("allowed"):
            fault = held.fault(found.get("requestRef"), records.REQUEST)
            if fault:
                return fault
            head = re.match(rb"\d+:", held.bytes(found["requestRef"]))
            payload = canonical.encode(effect.get("payload"))
            if not head or not held.bytes(found["requestRef"]).endswith(b":" + payload):
                return f"{found['requestRef']} asks for something else than was planned"
            if (entry.effect, entry.scope) != (found.get("effect"), found.get("scope")):
                return "the call's debit names another effect"
        if found.get("resultRef"):
            fault = held.fault(found["resultRef"], records.RESULT)
            if fault:
                return fault
    return None


def _check_output(entry: LogEntry, record: Mapping[str, Any], held: _Held) -> str | None:
    fault = held.fault(record.get("output"), records.OUTPUT)
    if fault:
        return fault
    world = held.json(record.get("output")).get("world")
    if not isinstance(world, dict) or world.get("plan") != record.get("plan"):
        return "its world block names another plan"
    effects = world.get("effects")
    if not isinstance(effects, list) or [e.get("record") for e in effects] != record.get("effects"):
        return "its world block names other effects"
    if entry.output_ref != record.get("output"):
        return f"the call's row names the output {entry.output_ref}"
    plan = held.json(record.get("plan"))
    stated = _outcomes(effects, plan, held)
    return (
        None
        if (str(entry.state), str(entry.outcome)) in stated
        else f"the call's row says {entry.state}, {entry.outcome}"
    )


def _outcomes(effects: list[Any], plan: Mapping[str, Any], held: _Held) -> list[tuple[str, str]]:
    """The states and outcomes that a call with these effects can have ended in."""
    if not effects:
        refused = isinstance(plan.get("result"), dict)
        return [("completed", "succeeded"), ("rejected", "refused")] if refused else []
    status, record = effects[0].get("status"), held.json(effects[0].get("record"))
    if status == "denied":
        return [("rejected", str(record.get("denial")))]
    if status == "ok":
        return [("completed", "succeeded"), ("failed", "failed")]
    if status == "canceled":
        return [("canceled", "canceled")]
    return [("failed", _STATUS.get(str(status), ""))]


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _first(found: list[LogEntry], otherwise: str) -> LogEntry:
    if not found:
        raise NotFound(otherwise)
    return found[0]


def _budget(used: Mapping[tuple[str, str], int]) -> str:
    return json.dumps({f"{effect}={scope}": n for (effect, scope), n in sorted(used.items())})
