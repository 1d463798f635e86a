"""Calls run again from the log: plan, decision and finish, with the recorded effect in place of the handler.

Nothing is executed, debited or written. What the log does not keep can't be run again, and is named instead.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from bus import BusError, InternalError
from skills import Catalog, PlannedEffect, Skill, canonical

from ..grants.facts import Facts
from ..grants.grant import Decision, Grant, decide
from ..grants.policy import DENIED
from ..ledger import records
from ..ledger.ledger import Ledger, LogEntry
from ..ledger.records import EffectRecord, Object, transition_of
from ..ledger.watch import LedgerUnavailable
from ..pipeline import outcomes
from ..pipeline.outcomes import CANCELED, Ran
from ..pipeline.planned import Asked, Planned, plan_call
from ..sessions import Session
from .links import Held, Walk
from .provenance import Provenance

Stage = Literal["log", "input", "plan", "request", "decision", "effect", "output", "end", "record"]
"""What of a call is compared, in this order: `end` is its state and outcome, `log` whether its links hold at all."""

_LABELS = {"ok": "succeeded", "failed": "failed", "indeterminate": "indeterminate", "canceled": CANCELED}
_DENIED_WITHIN = 60
"""Seconds before a denial was committed in which its request was named."""
_DECIDED_WITHIN = 5
"""Seconds between a decision and the naming of what it denied."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What came out otherwise than it was recorded; `what` says it in words."""

    stage: Stage
    what: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """A call that was run again.

    `missing` says why it could not be: its skill is not loaded, or has another contract. `untold` names what of it was
    not compared, since the log does not keep what it hangs on.
    """

    entry: LogEntry
    differences: tuple[Difference, ...] = ()
    missing: str | None = None
    untold: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether it was run again, and everything that was compared is equal byte for byte."""
        return not self.differences and self.missing is None


class Replay:
    """Runs the calls of a ledger again by the skills of a catalog."""

    def __init__(self, ledger: Ledger, catalog: Catalog) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._provenance = Provenance(ledger)
        self._sessions: dict[str, Session | None] = {}

    async def call(self, target: str, *, episode: str | None = None) -> Replayed:
        """Run the call again that `target` names, as `Provenance.why` reads it. Raises NotFound."""
        return await self._again(*await self._provenance.call(target, episode=episode))

    async def episode(self, name: str) -> AsyncIterator[Replayed]:
        """Run all calls of an episode again, in the order of its log. Raises NotFound."""
        async for walk, held in self._provenance.calls(name):
            yield await self._again(walk, held)

    async def _again(self, walk: Walk, held: Held) -> Replayed:
        entry = walk.entry
        broken = tuple(Difference("log", f"{link.name}: {link.fault}") for link in walk.links if link.fault is not None)
        if broken:
            return Replayed(entry, broken)
        skill = self._catalog.get(entry.skill or "")
        if skill is None:
            return Replayed(entry, missing=f"the skill {entry.skill} is not loaded here")
        transition = orjson.loads(entry.encoded)["transitionFn"]
        if transition_of(skill.contract).ref != transition:
            return Replayed(entry, missing=f"the contract of {entry.skill} is another: the call ran by {transition}")
        try:
            return _Call(entry, held, skill, await self._session(entry)).compare()
        except LedgerUnavailable:
            raise
        except Exception as error:  # what is not of its kind is a fault, wherever it shows
            return Replayed(entry, (Difference("log", f"it can't be read: {type(error).__name__}"),))

    async def _session(self, entry: LogEntry) -> Session | None:
        name = entry.session or ""
        if name not in self._sessions:
            self._sessions[name] = await self._ledger.session(name)
        return self._sessions[name]


class _Call:
    """One call with whole links, whose skill is here."""

    def __init__(self, entry: LogEntry, held: Held, skill: Skill, session: Session | None) -> None:
        self._entry = entry
        self._held = held
        self._skill = skill
        self._session = session
        self._header = orjson.loads(entry.encoded)
        self._record = held.json(self._header["transitionRef"])
        self._differences: list[Difference] = []
        self._untold: list[str] = []

    def compare(self) -> Replayed:
        planned = self._plan()
        if planned is not None:
            ran: Ran | None = None
            if planned.plan.effects:
                ran = self._effect(planned, planned.plan.effects[0])
            if ran is not None or not planned.plan.effects:
                self._end(planned, ran)
        return Replayed(self._entry, tuple(self._differences), untold=tuple(self._untold))

    def _differ(self, stage: Stage, what: str) -> None:
        self._differences.append(Difference(stage, what))

    def _plan(self) -> Planned | None:
        entry, kept = self._entry, self._record["input"]
        owner = self._session or Session(entry.session or "", b"", entry.episode, (), 0, 0)
        arguments = orjson.loads(self._held.bytes(kept))
        asked = Asked(owner, self._skill.id, arguments, entry.message_id or "", entry.episode, 0.0)
        try:
            planned = plan_call(asked, self._skill)
        except BusError:
            self._differ("plan", "it fails now; a plan was recorded")
            return None
        if planned.input.ref != kept:
            self._differ("input", f"its canonical form is {planned.input.ref} now, recorded is {kept}")
            return None
        recorded = self._held.bytes(self._record["plan"])
        if planned.plan_object.payload != recorded:
            self._differ("plan", _told(recorded, planned.plan_object))
            return None
        return planned

    # the effect

    def _effect(self, planned: Planned, effect: PlannedEffect) -> Ran | None:
        """What was recorded of the effect, as the pipeline had it; None where it can't have been so."""
        name = self._record["effects"][0]
        try:
            record = _read(self._held.json(name))
        except (KeyError, TypeError):
            record = None
        if record is None or not record.is_consistent or record.encode() != self._held.bytes(name):
            self._differ("effect", f"{name} is no record that keeps the law of records")
            return None
        now = self._requested(effect, record)
        if now is not None:
            self._decide(planned, effect, record, now)
        world = self._held.json(self._record["output"])["world"]
        status = world["effects"][0].get("status")
        if record.allowed:
            possible = {"ok"} if record.result_ref else {"failed", "indeterminate", "canceled"}
        else:
            possible = {"canceled" if record.denial == CANCELED else "denied"}
        if status not in possible:
            self._differ("effect", f"its record says {' or '.join(sorted(possible))}, the output {status}")
            return None
        output = self._held.json(record.result_ref) if record.result_ref else None
        return Ran(status, _LABELS.get(status, record.denial), Object(records.RECORD, record.encode()), output)

    def _requested(self, effect: PlannedEffect, record: EffectRecord) -> int | None:
        """When the effect was asked for, in Unix seconds: its request has to be what is asked for now."""
        if record.allowed:
            kept = self._held.bytes(record.request_ref)
            head = records.effect_request(effect.effect, effect.scope, effect.cost, 0, b"").payload
            at = re.match(rb"(\d{1,18}):", kept.removeprefix(head[: -len(b"0:")]))
            now = int(at[1]) if at else 0
            if outcomes.request_of(effect, now).payload == kept:
                return now
            self._differ("request", f"{record.request_ref} is not what the plan asks for")
            return None
        # the request of what never ran is not stored: only its hash is
        stored: Any = self._entry.closed_at
        closed = int(stored) if isinstance(stored, int | float) and abs(stored) < 1 << 53 else 0
        for now in range(closed, max(closed - _DENIED_WITHIN, 0), -1):
            if outcomes.request_of(effect, now).ref == record.request_ref:
                return now
        self._untold.append("request: when it was denied is not known")
        return closed

    def _decide(self, planned: Planned, effect: PlannedEffect, record: EffectRecord, now: int) -> None:
        if record.denial in (CANCELED, DENIED):
            what = "it was canceled" if record.denial == CANCELED else "the policy of the host at that time is not kept"
            self._untold.append(f"decision: {what}")
            return
        if self._session is None:
            self._differ("decision", f"its session {self._entry.session} is not in the ledger")
            return
        declared, grants = planned.declared(effect), self._session.grants
        facts = Facts.of(self._skill.contract, effect)
        times = (now,) if record.allowed else range(now, now - _DECIDED_WITHIN, -1)
        found: Decision | None = None
        for spent in _spent_before(grants, record.budget_before):
            for time in times:
                found = decide(grants, declared, time, spent, facts)
                if _recorded(found, record):
                    return
        if any(grant.constraints for grant in grants):
            self._untold.append("decision: it hangs on constraints, and not all that they are put on is kept")
            return
        label = record.denial or f"allowed:{record.budget_after}"
        said = "nothing" if found is None else f"{found.label} with {found.budget_before} left"
        self._differ("decision", f"recorded is {label} with {record.budget_before} left, the grants say {said}")

    # the end

    def _end(self, planned: Planned, ran: Ran | None) -> None:
        try:
            end = planned.end(ran)
        except InternalError:
            self._differ("output", "it fails now; an output was recorded")
            return
        recorded = self._held.bytes(self._record["output"])
        if ran is not None and ran.status == "indeterminate" and planned.plan.finish:
            # a worker that had not the skill any more has closed it without its finish phase
            bare = planned.bare(ran)
            end = bare if bare.output.payload == recorded else end
        if end.output.payload != recorded:
            self._differ("output", _told(recorded, end.output))
        ended = self._record["state"], self._record["outcome"]
        if ended != (end.state, end.outcome):
            self._differ("end", f"{end.state} ({end.outcome}) now, recorded is {ended[0]} ({ended[1]})")
        again = records.invocation_record(
            invocation=planned.invocation,
            episode=self._entry.episode,
            skill=self._skill.id,
            transition_fn=transition_of(self._skill.contract).ref,
            interpreter=self._header["interpreter"],
            input_ref=planned.input.ref,
            output_ref=end.output.ref,
            plan_ref=planned.plan_object.ref,
            effects=[ran.record.ref] if ran else [],
            ended=(end.state, end.outcome),
        )
        if not self._differences and again.payload != self._held.bytes(self._header["transitionRef"]):
            self._differ("record", _told(self._held.bytes(self._header["transitionRef"]), again))


def _read(kept: Mapping[str, Any]) -> EffectRecord:
    return EffectRecord(
        kept["effect"], kept["scope"], kept["cost"], kept["budgetBefore"], kept["budgetAfter"],
        allowed=kept["allowed"], failed=kept["failed"], denial=kept["denial"], request_ref=kept["requestRef"],
        result_ref=kept["resultRef"], narrowing=kept.get("narrowing", ""), reason=kept.get("reason", ""),
        accesses_ref=kept.get("accessesRef", ""),
    )  # fmt: skip


def _recorded(decision: Decision, record: EffectRecord) -> bool:
    said = decision.allowed, decision.budget_before, decision.remaining, decision.narrowing
    if said != (record.allowed, record.budget_before, record.budget_after, record.narrowing):
        return False
    return record.allowed or (decision.label, decision.reason) == (record.denial, record.reason)


def _spent_before(grants: tuple[Grant, ...], left: int) -> list[dict[tuple[str, str], int]]:
    """What the episode can have spent if that much was left of the grant that decided, whichever it was."""
    found = [{(grant.effect, grant.scope): max(grant.budget - left, 0)} for grant in grants]
    return found or [{}]


def _told(recorded: bytes, now: Object) -> str:
    return f"{now.ref} now, recorded is {canonical.ref(recorded)}; they differ at {_place(recorded, now.payload)}"


def _place(recorded: bytes, now: bytes) -> str:
    """Where two JSON texts differ first, as a JSON pointer."""
    try:
        found = _pointer(orjson.loads(recorded), orjson.loads(now))
    except (orjson.JSONDecodeError, RecursionError):
        found = None
    return "their encoding" if found is None else found or "their root"


def _pointer(one: Any, other: Any) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            token: str = "/" + name.replace("~", "~0").replace("/", "~1")
            if name not in one or name not in other:
                return token
            if (found := _pointer(one[name], other[name])) is not None:
                return token + found
        return None
    if isinstance(one, list) and isinstance(other, list):
        for index, (each, against) in enumerate(zip(one, other, strict=False)):
            found = _pointer(each, against)
            if found is not None:
                return f"/{index}{found}"
        return None if len(one) == len(other) else f"/{min(len(one), len(other))}"
    return None if type(one) is type(other) and one == other else ""
