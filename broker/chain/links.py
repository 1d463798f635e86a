"""The seven links of a call, each checked by hash and against the others.

Nothing stored is believed: a value of another kind than it should be is a fault like any other.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from skills import canonical
from skills.canonical import ref

from ..ledger import records
from ..ledger.ledger import LogEntry
from ..ledger.records import Entry, Object, World, genesis
from ..pipeline.planned import fingerprint, task_id


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


class Held:
    """Stored objects by the name they are stored under, which `fault` compares with their bytes."""

    def __init__(self, objects: Mapping[str, Object]) -> None:
        self.objects = objects

    def refs(self, entry: LogEntry) -> set[str]:
        """Every ref that an entry leads to, as far as the objects on the way are here."""
        header = as_object(entry.encoded)
        record = self.json(header.get("transitionRef"))
        effects = record.get("effects")
        found = [header.get("transitionRef"), header.get("transitionFn"), header.get("interpreter")]
        found += [record.get("input"), record.get("output"), record.get("plan")]
        for effect in effects if isinstance(effects, list) else ():
            kept = self.json(effect)
            found += [effect, kept.get("requestRef"), kept.get("resultRef"), kept.get("accessesRef")]
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
        return as_object(self.bytes(name))


def walk(entry: LogEntry, before: LogEntry | None, following: LogEntry | None, world: World | None, held: Held) -> Walk:
    """Check every link of an entry, given its neighbours in the log and where its episode stands."""
    header = as_object(entry.encoded)
    record = held.json(header.get("transitionRef"))
    effects = record.get("effects")
    named = ", ".join(map(str, effects if isinstance(effects, list) else ())) or "none"

    def link(name: str, detail: object, check: Callable[[], str | None]) -> Link:
        try:
            return Link(name, str(detail), check())
        except Exception as error:
            return Link(name, str(detail), f"it can't be read: {type(error).__name__}")

    return Walk(
        entry,
        (
            link("world", f"{entry.episode} at {entry.index}", lambda: _check_world(entry, following, world, record)),
            link("entry", entry.hash, lambda: _check_entry(entry, before)),
            link("record", header.get("transitionRef"), lambda: _check_record(entry, header, record, held)),
            link("input", record.get("input"), lambda: _check_input(entry, record, held)),
            link("plan", record.get("plan"), lambda: _check_plan(record, held)),
            link("effect", named + _decided(effects, held), lambda: _check_effects(entry, record, held)),
            link("output", record.get("output"), lambda: _check_output(entry, record, held)),
        ),
    )


def _decided(effects: Any, held: Held) -> str:
    """What the records of a call's effects say of the constraints that it was allowed or denied by."""
    said = ""
    for name in effects if isinstance(effects, list) else ():
        found = held.json(name)
        if found.get("reason"):
            said += f", {found.get('denial')}: {found['reason']}"
        elif found.get("narrowing"):
            said += f", narrowed by {found['narrowing']}"
    return said


def _check_world(
    entry: LogEntry, following: LogEntry | None, world: World | None, record: Mapping[str, Any]
) -> str | None:
    if world is None:
        return "the episode is not in the ledger"
    if following is not None:
        stated = as_object(following.encoded).get("prevEntryHash")
        return None if stated == entry.hash else f"the next entry continues from {stated}"
    if world != World(entry.index, str(record.get("output")), entry.hash):
        return f"the episode stands at entry {world.revision}, {world.log_head}"
    return None


def _check_entry(entry: LogEntry, before: LogEntry | None) -> str | None:
    if ref(entry.encoded) != entry.hash:
        return f"its bytes hash to {ref(entry.encoded)}"
    header = as_object(entry.encoded)
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


def _check_record(entry: LogEntry, header: Mapping[str, Any], record: Mapping[str, Any], held: Held) -> str | None:
    for name, semantic_id in (
        (header.get("transitionRef"), records.INVOCATION),
        (header.get("transitionFn"), records.TRANSITION),
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
        "state": entry.state,
        "outcome": entry.outcome,
    }
    wrong = [name for name, value in expected.items() if record.get(name) != value]
    if (entry.call_episode, entry.call_index) != (entry.episode, entry.index):
        wrong.append("place")
    if task_id(entry.episode, entry.message_id) != entry.task_id:
        wrong.append("task id")
    return f"it does not fit its entry and call: {', '.join(wrong)}" if wrong else None


def _check_input(entry: LogEntry, record: Mapping[str, Any], held: Held) -> str | None:
    fault = held.fault(record.get("input"), records.INPUT)
    if fault:
        return fault
    asked = fingerprint(entry.skill or "", held.bytes(record.get("input")))
    return None if asked == entry.fingerprint else "it is not what the call's fingerprint was taken of"


def _check_plan(record: Mapping[str, Any], held: Held) -> str | None:
    fault = held.fault(record.get("plan"), records.PLAN)
    if fault:
        return fault
    planned, recorded = held.json(record.get("plan")).get("effects"), record.get("effects")
    if not isinstance(planned, list) or not isinstance(recorded, list) or len(planned) != len(recorded):
        return "its effects are not as many as those recorded"
    return None


def _check_effects(entry: LogEntry, record: Mapping[str, Any], held: Held) -> str | None:
    planned, recorded = held.json(record.get("plan")).get("effects"), record.get("effects")
    for effect, name in zip(planned if isinstance(planned, list) else (), recorded or (), strict=False):
        fault = held.fault(name, records.RECORD)
        if fault:
            return fault
        found = held.json(name)
        if any(found.get(member) != effect.get(member) for member in ("effect", "scope", "cost")):
            return f"{name} records another effect than was planned"
        debit = (entry.cost, entry.budget_before, entry.request_ref)
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
            if debit != (found.get("cost"), found.get("budgetBefore"), found.get("requestRef")):
                return "the call's debit is not the recorded one"
        elif entry.cost != 0:
            return "the call is debited for what was not allowed"
        if found.get("resultRef"):
            fault = held.fault(found["resultRef"], records.RESULT)
            if fault:
                return fault
        if found.get("accessesRef"):
            fault = held.fault(found["accessesRef"], records.ACCESSES)
            if fault:
                return fault
    return "a call without an effect is debited" if not recorded and (entry.cost or entry.effect) else None


def _check_output(entry: LogEntry, record: Mapping[str, Any], held: Held) -> str | None:
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
    status = effects[0].get("status") if effects else None
    ends = {"ok": {"completed", "failed", "canceled"}, "denied": {"rejected", "failed"}, "canceled": {"canceled"}}
    possible = ends.get(str(status), {"failed"}) if effects else {"completed", "rejected"}
    return None if entry.state in possible else f"its effect ended {status} and the call {entry.state}"


def as_object(data: Any) -> Mapping[str, Any]:
    try:
        value = orjson.loads(data)
    except (orjson.JSONDecodeError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
