import asyncio
from decimal import Decimal
from typing import Any

import pytest

from skills import Context
from skills.memory import (
    Conflict,
    Limits,
    MemoryFault,
    MemoryStore,
    NoOwner,
    Place,
    Readable,
    ReadableAndWritable,
    TooMuch,
    Unfit,
    Work,
    Writable,
    place_of,
)

HERE = Place("m.Notes", "episode", "ep1")
OTHER = Place("m.Other", "session", "s1")


@pytest.fixture
def work(store: MemoryStore) -> Work:
    return Work(store, "c1", {"Notes": HERE, "Other": OTHER})


def public(memory: Any) -> set[str]:
    return {name for name in dir(memory) if not name.startswith("_")}


async def test_modes_give_methods_and_nothing_else(work: Work) -> None:
    assert public(work.memory("Notes", ["read"])) == {"get", "list", "search"}
    assert public(work.memory("Notes", ["write"])) == {"put", "delete"}
    assert public(work.memory("Notes", ["read", "write"])) == {"get", "list", "search", "put", "delete"}
    for mode, kind in (("read", Readable), ("write", Writable)):
        assert type(work.memory("Notes", [mode])) is kind
        with pytest.raises(AttributeError):
            work.memory("Notes", [mode]).other = 1
    assert repr(work.memory("Notes", ["read"])) == "<memory m.Notes>"
    assert type(work.memory("Notes", ["write", "read"])) is ReadableAndWritable


async def test_what_could_not_be_read_again_is_not_kept(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["read", "write"])
    for too_large in (10**400, [-(10**400)], {"a": Decimal("1e400")}):
        with pytest.raises(Unfit, match="a number is"):
            await memory.put("a", too_large)
    deep: list[Any] = []
    for _ in range(450):
        deep = [deep]
    for value in (2**1023, 5e-324, "\0", {"\0": "\0", "__proto__": 1}, deep):
        await memory.put("a", value)
    await work.commit({})
    assert (await Work(store, "c2", {"Notes": HERE}).memory("Notes", ["read"]).get("a"))["value"] == deep


async def test_nothing_is_changed_before_the_end(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["read", "write"])
    assert await memory.put("a", 1) == 1
    assert await memory.put("a", 2) == 2
    assert await memory.get("a") == {"key": "a", "value": 2, "version": 2}
    other = Work(store, "c2", {"Notes": HERE}).memory("Notes", ["read"])
    assert await other.get("a") is None
    assert await work.commit({"done": True}) == {"done": True}
    assert await other.get("a") == {"key": "a", "value": 2, "version": 2}


async def test_no_version_comes_twice_though_a_key_was_made_and_deleted_meanwhile(store: MemoryStore) -> None:
    first = Work(store, "c1", {"Notes": HERE})
    assert await first.memory("Notes", ["write"]).put("a", "mine") == 1  # as far as it can know
    for call in ("c2", "c3"):
        other = Work(store, call, {"Notes": HERE})
        memory = other.memory("Notes", ["read", "write"])
        await (memory.put("a", "theirs") if call == "c2" else memory.delete("a"))
        await other.commit({})
    await first.commit({})
    assert first.accesses[0]["written"] == [["a", 2]]
    last = Work(store, "c4", {"Notes": HERE}).memory("Notes", ["read", "write"])
    assert (await last.get("a"))["version"] == 2
    assert await last.put("b", 1) == 2  # a key that is new begins above all that are gone


async def test_a_new_key_begins_above_the_highest_that_is_gone(store: MemoryStore) -> None:
    for number, (key, value) in enumerate([("a", 1), ("a", 2), ("a", 3), ("b", 1), ("a", None), ("b", None)]):
        call = Work(store, f"c{number}", {"Notes": HERE})
        memory = call.memory("Notes", ["write"])
        await (memory.delete(key) if value is None else memory.put(key, value))
        await call.commit({})
    assert await Work(store, "last", {"Notes": HERE}).memory("Notes", ["write"]).put("c", 1) == 4


async def test_a_page_is_full_though_the_call_has_deleted_keys(store: MemoryStore, work: Work) -> None:
    for key in "abcd":
        await work.memory("Notes", ["write"]).put(key, 1)
    await work.commit({})
    memory = Work(store, "c2", {"Notes": HERE}).memory("Notes", ["read", "write"])
    await memory.delete("a")
    await memory.delete("c")
    assert [entry["key"] for entry in await memory.list(limit=2)] == ["b", "d"]
    assert [entry["key"] for entry in await memory.list(limit=1)] == ["b"]


async def test_what_a_key_is_compared_with_is_what_its_first_change_said(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["write"])
    await memory.put("a", 1)
    await memory.put("a", 2, 1)  # its own version, which stands nowhere else
    await work.commit({})
    late = Work(store, "late", {"Notes": HERE})
    await late.memory("Notes", ["write"]).put("b", 1, 0)
    await late.memory("Notes", ["write"]).put("b", 2)
    other = Work(store, "other", {"Notes": HERE})
    await other.memory("Notes", ["write"]).put("b", 3)
    await other.commit({})
    with pytest.raises(Conflict):
        await late.commit({})


async def test_a_call_that_fails_has_changed_nothing(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["read", "write"])
    await memory.put("a", 1)
    work.end()
    for asked in (memory.get("a"), memory.list(), memory.search("a"), memory.put("a", 1), memory.delete("a")):
        with pytest.raises(Unfit, match="the call has ended"):
            await asked
    assert await Work(store, "c2", {"Notes": HERE}).memory("Notes", ["read"]).list() == []
    assert await store.result("c1") is None


async def test_a_call_sees_its_own_changes(store: MemoryStore) -> None:
    first = Work(store, "c0", {"Notes": HERE})
    for key in "abcdef":
        await first.memory("Notes", ["write"]).put(key, f"word {key}")
    await first.commit({})
    memory = Work(store, "c1", {"Notes": HERE}).memory("Notes", ["read", "write"])
    assert await memory.delete("b") is True
    assert await memory.delete("b") is False
    assert await memory.delete("x") is False
    assert await memory.get("b") is None
    assert await memory.put("bb", 1) == 1
    assert await memory.put("c", "new word") == 2
    assert await memory.put("z", 1) == 1
    assert [entry["key"] for entry in await memory.list()] == ["a", "bb", "c", "d", "e", "f", "z"]
    assert [entry["key"] for entry in await memory.list(limit=3)] == ["a", "bb", "c"]
    assert [entry["key"] for entry in await memory.list(limit=3, after="c")] == ["d", "e", "f"]
    assert [entry["key"] for entry in await memory.list(limit=3, after="f")] == ["z"]
    assert [entry["key"] for entry in await memory.search("word")] == ["a", "d", "e", "f"]
    assert await memory.put("b", 1) == 2  # the version goes on where it was deleted


async def test_comparing_versions(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["read", "write"])
    with pytest.raises(Conflict, match="the version of 'a' is 0 and not 3") as caught:
        await memory.put("a", 1, 3)
    assert caught.value.kind == "conflict"
    assert await memory.put("a", 1, 0) == 1
    with pytest.raises(Conflict):
        await memory.put("a", 1, 0)
    assert await memory.put("a", 2, 1) == 2
    with pytest.raises(Conflict):
        await memory.delete("a", 1)
    assert await memory.delete("a", 2) is True
    assert await memory.put("a", 3, 0) == 3
    await work.commit({})
    assert await store.get(HERE, "a") != (None, 0)


async def test_what_a_call_did_is_told(store: MemoryStore, work: Work) -> None:
    assert work.accesses == []
    before = Work(store, "c0", {"Notes": HERE})
    for key in ("a", "b", "c"):
        await before.memory("Notes", ["write"]).put(key, f"word {key}")
    await before.commit({})
    notes = work.memory("Notes", ["read", "write"])
    await notes.get("a")
    await notes.get("absent")
    await notes.search("word b")
    await notes.put("a", 2)
    await notes.get("a")  # its own, which is no access
    await notes.put("new", 1)
    await notes.delete("c")
    read = [["a", 1], ["absent", 0], ["b", 1]]
    assert work.accesses == [{"memory": "m.Notes", "scope": "episode", "read": read, "written": [], "deleted": []}]
    await work.commit({})
    assert work.accesses == [
        {
            "memory": "m.Notes",
            "scope": "episode",
            "read": read,
            "written": [["a", 2], ["new", 1]],
            "deleted": [["c", 1]],
        }
    ]


async def test_a_version_that_another_call_took_is_told_as_it_became(store: MemoryStore) -> None:
    one, two = (Work(store, name, {"Notes": HERE}) for name in ("one", "two"))
    assert await one.memory("Notes", ["write"]).put("a", 1) == 1
    assert await two.memory("Notes", ["write"]).put("a", 2) == 1
    await two.commit({})
    await one.commit({})
    assert one.accesses[0]["written"] == [["a", 2]]
    assert (await store.get(HERE, "a"))[1] == 2


async def test_what_only_reads_commits_nothing(store: MemoryStore, work: Work) -> None:
    await work.memory("Notes", ["read"]).list()
    assert await work.commit({"x": 1}) == {"x": 1}
    assert await store.result("c1") is None


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get", ("",)), ("get", (1,)), ("get", ("a\0",)), ("get", ("a\n",)), ("get", ("\ud800",)),
        ("get", ("k" * 513,)),
        ("put", ("k", float("nan"))), ("put", ("k", object())), ("put", ("k", {1: 2})), ("put", ("k", "\ud800")),
        ("put", ("k", "x" * (1 << 16))), ("put", ("k", 1, -1)), ("put", ("k", 1, True)), ("put", ("k", 1, "1")),
        ("put", ("k", 1, 1 << 53)), ("delete", ("k", 1.0)), ("list", (None,)), ("list", ("", 0)), ("list", ("", 1001)),
        ("list", ("", True)), ("list", ("", 1, 5)), ("search", (5,)), ("search", ("x", "1")),
    ],
)  # fmt: skip
async def test_what_no_memory_takes(work: Work, method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(MemoryFault) as caught:
        await getattr(work.memory("Notes", ["read", "write"]), method)(*arguments)
    assert caught.value.kind in ("invalid", "too_large")
    assert len(str(caught.value)) < 200


async def test_a_call_has_so_many_accesses(store: MemoryStore) -> None:
    store.limits = Limits(accesses=5)
    work = Work(store, "c1", {"Notes": HERE, "Other": OTHER})
    for key in "abc":
        await work.memory("Notes", ["write"]).put(key, 1)
        await work.memory("Notes", ["write"]).put(key, 2)
    for key in "xy":
        await work.memory("Other", ["read"]).get(key)
    await work.memory("Other", ["read"]).get("x")
    for asked in (work.memory("Other", ["read"]).get("z"), work.memory("Notes", ["write"]).put("z", 1)):
        with pytest.raises(TooMuch, match="at most"):
            await asked
    await work.commit({})


async def test_many_requests_of_one_call_at_once(store: MemoryStore, work: Work) -> None:
    memory = work.memory("Notes", ["read", "write"])
    versions = await asyncio.gather(*(memory.put("a", number) for number in range(20)))
    assert sorted(versions) == list(range(1, 21))
    await work.commit({})
    assert (await store.get(HERE, "a"))[1] == 20


def test_the_owner_comes_from_the_call() -> None:
    context = Context("i", "ep1", 0.0, session="s1", agent="tools")
    assert place_of("m.N", "session", context) == Place("m.N", "session", "s1")
    assert place_of("m.N", "episode", context) == Place("m.N", "episode", "ep1")
    assert place_of("m.N", "agent", context) == Place("m.N", "agent", "tools")
    with pytest.raises(NoOwner, match="the call has no tenant"):
        place_of("m.N", "tenant", context)
    assert place_of("m.N", "tenant", context, "acme").owner == "acme"
