"""A store against a model of it: whatever calls do, in whatever order they end, both say the same."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skills.memory import Conflict, MemoryStore, Place, Work
from skills.memory.words import split

PLACES = (Place("m.N", "episode", "a"), Place("m.N", "episode", "b"), Place("m.N", "agent", "a"))
KEYS = st.sampled_from(["a", "a/1", "é"])
VALUES = st.sampled_from([None, 0, "one two", "two three", {"x": ["three", {"y": "one"}]}, "THREE"])
SLOTS = st.integers(0, 2)
COMPARE = st.sampled_from(["any", "any", "right", "right", "wrong"])


class Calls(RuleBasedStateMachine):
    """Three calls that overlap, each in one of the places."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{Path(self.folder.name, 'memory.db')}"
        self.store = self.runner.run(MemoryStore.open(url))
        self.kept: dict[Place, dict[str, tuple[int, Any]]] = {place: {} for place in PLACES}
        self.floors = dict.fromkeys(PLACES, 0)
        self.begun = 0

    @initialize()
    def begin_all(self) -> None:
        self.calls: list[dict[str, Any]] = [self._begun(PLACES[0]) for _ in range(3)]

    def _begun(self, place: Place) -> dict[str, Any]:
        self.begun += 1
        work = Work(self.store, f"call {self.begun}", {"N": place})
        memory = work.memory("N", ["read", "write"])
        return {"work": work, "place": place, "memory": memory, "mine": {}, "over": {}}

    def _seen(self, call: dict[str, Any]) -> dict[str, tuple[int, Any]]:
        """What stands in the memory as this call sees it."""
        seen = dict(self.kept[call["place"]])
        for key, change in call["mine"].items():
            seen.pop(key, None)
            if change[0] == "put":
                seen[key] = change[1:]
        return seen

    def _last(self, call: dict[str, Any], key: str) -> int:
        if key in call["mine"]:
            return int(call["mine"][key][1])
        kept = self.kept[call["place"]]
        return kept[key][0] if key in kept else self.floors[call["place"]]

    @rule(slot=SLOTS, key=KEYS, value=VALUES, compare=COMPARE)
    def put(self, slot: int, key: str, value: Any, compare: str) -> None:
        call = self.calls[slot]
        now = self._seen(call).get(key, (0, None))[0]
        version = {"any": None, "right": now, "wrong": now + 7}[compare]
        asked = call["memory"].put(key, value, version)
        if compare == "wrong":
            self._refused(asked)
            return
        call["over"].setdefault(key, version if key not in call["mine"] else None)
        made = self._last(call, key) + 1
        assert self.runner.run(_awaited(asked)) == made
        call["mine"][key] = ("put", made, value)

    @rule(slot=SLOTS, key=KEYS, compare=COMPARE)
    def delete(self, slot: int, key: str, compare: str) -> None:
        call = self.calls[slot]
        now = self._seen(call).get(key, (0, None))[0]
        version = {"any": None, "right": now, "wrong": now + 7}[compare]
        asked = call["memory"].delete(key, version)
        if compare == "wrong":
            self._refused(asked)
            return
        call["over"].setdefault(key, version)
        last = self._last(call, key)
        assert self.runner.run(_awaited(asked)) is (now > 0)
        call["mine"][key] = ("delete", last)

    @rule(
        slot=SLOTS, place=st.sampled_from([*PLACES[:1] * 6, *PLACES]), well=st.sampled_from([True, True, True, False])
    )
    def end(self, slot: int, place: Place, well: bool) -> None:
        call, self.calls[slot] = self.calls[slot], self._begun(place)
        if not well:
            call["work"].end()
            return
        kept = self.kept[call["place"]]
        lost = [key for key, over in call["over"].items() if over is not None and over != kept.get(key, (0, None))[0]]
        if lost:
            self._refused(call["work"].commit({}))
            return
        self.runner.run(call["work"].commit({}))
        floor = self.floors[call["place"]]
        for key, change in call["mine"].items():
            now = kept.pop(key, (0, None))[0]
            if change[0] == "put":
                # the floor moves with each end in the order of the call's changes, as in the store
                kept[key] = (max(change[1], (now or floor) + 1), change[2])
            else:
                floor = max(floor, now)
        self.floors[call["place"]] = floor

    @rule(slot=SLOTS, key=KEYS)
    def get(self, slot: int, key: str) -> None:
        call = self.calls[slot]
        found = self.runner.run(call["memory"].get(key))
        seen = self._seen(call).get(key)
        assert found == (None if seen is None else {"key": key, "value": seen[1], "version": seen[0]})

    @rule(slot=SLOTS, prefix=st.sampled_from(["", "a", "a/", "é"]), limit=st.integers(1, 4), after=KEYS | st.just(""))
    def list(self, slot: int, prefix: str, limit: int, after: str) -> None:
        call = self.calls[slot]
        found = self.runner.run(call["memory"].list(prefix, limit, after))
        seen = sorted(self._seen(call).items(), key=lambda item: item[0].encode())
        shown = [{"key": key, "version": at[0]} for key, at in seen if key.startswith(prefix) and key > after]
        assert found == shown[:limit]

    @rule(slot=SLOTS, text=st.sampled_from(["one", "two", "three", "one two", "three one"]))
    def search(self, slot: int, text: str) -> None:
        call = self.calls[slot]
        found = self.runner.run(call["memory"].search(text))
        wanted = {
            key for key, (_, value) in self.kept[call["place"]].items()
            if key not in call["mine"] and set(split(text)) <= set(split(str(value)))
        }  # fmt: skip
        assert {entry["key"] for entry in found} == wanted

    @precondition(lambda self: hasattr(self, "calls"))
    @invariant()
    def each_place_is_as_it_should_be(self) -> None:
        for place, kept in self.kept.items():
            found = self.runner.run(self.store.keys(place, "", 100, ""))
            assert {entry.key: entry.version for entry in found} == {key: at[0] for key, at in kept.items()}

    def _refused(self, asked: Any) -> None:
        try:
            self.runner.run(_awaited(asked))
        except Conflict:
            return
        raise AssertionError("there was no conflict")

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()


async def _awaited(asked: Any) -> Any:
    return await asked


TestCalls = Calls.TestCase
TestCalls.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
