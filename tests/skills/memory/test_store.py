import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy

from skills.memory import Conflict, Limits, MemoryStore, Place, StoreError, TooMuch, Work
from skills.memory.store import KEPT_SECONDS

HERE = Place("m.Notes", "episode", "ep1")
_calls = itertools.count(1)


async def write(store: MemoryStore, changes: dict[str, Any], place: Place = HERE, call: str = "") -> Work:
    work = Work(store, call or f"call {next(_calls)}", {"Notes": place})
    memory = work.memory("Notes", ["write"])
    for key, value in changes.items():
        await (memory.delete(key) if value is ... else memory.put(key, value))
    await work.commit({})
    return work


def reading(store: MemoryStore, place: Place = HERE) -> Any:
    return Work(store, f"call {next(_calls)}", {"Notes": place}).memory("Notes", ["read"])


async def keys(store: MemoryStore, place: Place = HERE, **asked: Any) -> list[str]:
    return [entry["key"] for entry in await reading(store, place).list(**asked)]


async def test_values_are_kept_with_versions(store: MemoryStore) -> None:
    values = {"text": "a\0b é 字", "number": 1.5, "null": None, "deep": {"list": [1, {"true": True}]}}
    await write(store, values)
    for key, value in values.items():
        assert await reading(store).get(key) == {"key": key, "value": value, "version": 1}
    assert await reading(store).get("absent") is None
    await write(store, {"text": "again"})
    assert await reading(store).get("text") == {"key": "text", "value": "again", "version": 2}


async def test_a_version_never_comes_back(store: MemoryStore) -> None:
    for _ in range(3):
        await write(store, {"a": 1})
    await write(store, {"a": ...})
    await write(store, {"a": 1, "b": 1})
    assert await reading(store).list() == [{"key": "a", "version": 4}, {"key": "b", "version": 4}]


async def test_keys_are_listed_in_the_order_of_their_bytes(store: MemoryStore) -> None:
    names = [
        "B",
        "a",
        "a/1",
        "a/10",
        "a/2",
        "a0",
        "é",
        "ß",
        "字",
        "\ue000",
        "\U0001f600",
        "z%_",
        "z",
        "Z",
        "ab\U0010ffff",
    ]
    await write(store, dict.fromkeys(names, 0))
    ordered = sorted(names, key=str.encode)
    assert await keys(store) == ordered
    assert await keys(store, prefix="a/") == ["a/1", "a/10", "a/2"]
    assert await keys(store, prefix="z%") == ["z%_"]
    assert await keys(store, prefix="\ud7ff") == []
    assert await keys(store, prefix="ab\U0010ffff") == ["ab\U0010ffff"]
    pages, after = [], ""
    while page := await keys(store, limit=4, after=after):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [4, 4, 4, 3]
    assert [key for page in pages for key in page] == ordered


async def test_search_finds_what_has_every_word(store: MemoryStore) -> None:
    await write(
        store,
        {
            "a": {"title": "The Große Straße", "tags": ["Zürich", "river"], "n": 5},
            "b": "a river runs through it; river, river",
            "c": "foo_bar@example.com it's 1e5 don't \"quoted\" AND OR NOT NEAR * ( ' :",
            "d": "river " + "filler " * 200,
            "title": 3,
        },
    )

    async def found(text: str, limit: int = 10) -> list[str]:
        return [entry["key"] for entry in await reading(store).search(text, limit)]

    assert await found("RIVER") == ["b", "a", "d"]
    assert await found("river", 1) == ["b"]
    assert await found("zurich strasse") == ["a"]
    assert await found("river absent") == []
    assert await found("title") == []  # a member's name is no part of the text
    for text in ("bar", "example", "com foo", "1E5", "don't", "NOT AND", '"quoted"', "near*", "it's (", "' : near"):
        assert "c" in await found(text), text
    assert await found("riv") == []
    assert await found("  ") == await found("!?*") == []
    (entry,) = await reading(store).search("grosse", 10)
    assert entry == {
        "key": "a",
        "version": 1,
        "value": {"title": "The Große Straße", "tags": ["Zürich", "river"], "n": 5},
    }


async def test_search_keeps_up_with_changes(store: MemoryStore) -> None:
    await write(store, {"a": "one apple", "b": "two apples", "c": "one pear"})
    await write(store, {"a": "one plum", "c": ...})
    assert await reading(store).search("apple") == []
    assert [entry["key"] for entry in await reading(store).search("one")] == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        replace(HERE, owner="ep2"), replace(HERE, owner=""), replace(HERE, owner="EP1"), replace(HERE, owner="ep1 "),
        replace(HERE, scope="agent"), replace(HERE, memory="m.notes"), replace(HERE, memory="m", owner="Notes/ep1"),
    ],
)  # fmt: skip
async def test_no_place_reaches_another(store: MemoryStore, other: Place) -> None:
    await write(store, {"k": "mine alone", "ep1/k": 1})
    await write(store, {"k": "theirs"}, other)
    theirs = reading(store, other)
    assert (await theirs.get("k"))["value"] == "theirs"
    assert await theirs.list() == [{"key": "k", "version": 1}]
    assert await theirs.search("mine") == []
    await write(store, {"k": ..., "ep1/k": ...}, other)
    assert await keys(store) == ["ep1/k", "k"]
    assert (await reading(store).get("k"))["value"] == "mine alone"


async def test_a_call_commits_once(store: MemoryStore) -> None:
    async def run(value: int) -> Any:
        work = Work(store, "one call", {"Notes": HERE})
        memory = work.memory("Notes", ["read", "write"])
        before = await memory.get("count")
        await memory.put("count", (before["value"] if before else 0) + 1)
        return await work.commit({"value": value}), work.accesses

    first = await run(1)
    assert await run(2) == first  # what another worker has come to, not what this one did
    assert (await reading(store).get("count"))["value"] == 1
    work = Work(store, "one call", {"Notes": HERE})
    assert await work.earlier() == {"value": 1}
    assert work.accesses == first[1]
    assert await Work(store, "another call", {"Notes": HERE}).earlier() is None


async def test_outcomes_are_forgotten_in_time(store_url: str) -> None:
    now = 1000.0
    store = await MemoryStore.open(store_url, clock=lambda: now)
    await write(store, {"a": 1}, call="old")
    now += KEPT_SECONDS + 1
    assert await store.result("old") is not None
    await write(store, {"a": 2}, call="new")
    assert await store.result("old") is None
    await store.close()


async def test_limits(store_url: str) -> None:
    store = await MemoryStore.open(store_url, Limits(keys=3, total_bytes=60, value_bytes=40))
    await write(store, {"a": 1, "b": 2, "c": 3})
    for changes in ({"d": 4}, {"a": "x" * 35, "b": "x" * 35}):
        with pytest.raises(TooMuch, match="has room for"):
            await write(store, changes)
    assert await keys(store) == ["a", "b", "c"]
    assert (await reading(store).get("a"))["value"] == 1
    await write(store, {"a": ..., "d": "x" * 38})
    await write(store, {"d": ..., "a": "y" * 38})
    assert await keys(store) == ["a", "b", "c"]
    await write(store, {"k": 1}, replace(HERE, owner="ep2"))  # each scope has room of its own
    await store.close()
    smaller = await MemoryStore.open(store_url, Limits(keys=1, total_bytes=10))
    await write(smaller, {"a": "y" * 5, "b": ...})
    with pytest.raises(TooMuch):
        await write(smaller, {"z": 1})
    await smaller.close()


async def test_a_change_to_be_made_over_a_version(store: MemoryStore) -> None:
    await write(store, {"a": 1})
    one, two = (Work(store, name, {"Notes": HERE}) for name in ("one", "two"))
    for work in (one, two):
        assert await work.memory("Notes", ["write"]).put("a", work._call, 1) == 2
        await work.memory("Notes", ["write"]).put("b", work._call)
    await one.commit({})
    with pytest.raises(Conflict, match="'a' was changed by another call: its version is 2 and not 1"):
        await two.commit({})
    assert (await reading(store).get("b"))["value"] == "one"  # nothing of the second
    assert two.accesses[0]["written"] == []


async def test_counting_from_many_sides(store_url: str) -> None:
    """Threads of their own, each with its store: every increment is kept, by comparing versions."""

    async def count(side: int) -> int:
        store = await MemoryStore.open(store_url)
        retries = done = 0
        while done < 8:
            work = Work(store, f"{side} {done} {retries}", {"Notes": HERE})
            memory = work.memory("Notes", ["read", "write"])
            found = await memory.get("n") or {"value": 0, "version": 0}
            try:
                await memory.put("n", found["value"] + 1, found["version"])
                await work.commit({})
                done += 1
            except Conflict:
                retries += 1
        await store.close()
        return retries

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, count(side)) for side in range(4)))
    store = await MemoryStore.open(store_url)
    assert await reading(store).get("n") == {"key": "n", "value": 32, "version": 32}
    await store.close()


async def test_several_memories_change_together_and_without_deadlock(store: MemoryStore) -> None:
    places = {name: replace(HERE, memory=name) for name in ("A", "B", "C")}

    async def change(number: int, names: list[str]) -> None:
        work = Work(store, f"many {number}", {name: places[name] for name in names})
        for name in names:
            await work.memory(name, ["write"]).put("k", number)
        await work.commit({})

    orders = list(itertools.permutations("ABC")) * 3
    await asyncio.gather(*(change(number, list(order)) for number, order in enumerate(orders)))
    values = {(await reading(store, place).get("k"))["value"] for place in places.values()}
    versions = {(await reading(store, place).get("k"))["version"] for place in places.values()}
    assert len(values) == 1
    assert versions == {len(orders)}


async def test_a_store_of_another_schema_is_left_alone(store_url: str) -> None:
    store = await MemoryStore.open(store_url)
    await store._database.write(
        lambda connection: connection.execute(sqlalchemy.text("UPDATE memory_facts SET value = '9'"))
    )
    await store.close()
    with pytest.raises(StoreError, match="the store has schema 9; this Skillbus knows 1"):
        await MemoryStore.open(store_url)


async def test_many_open_an_empty_store_at_once(store_url: str) -> None:
    for store in await asyncio.gather(*(MemoryStore.open(store_url) for _ in range(6))):
        assert await keys(store) == []
        await store.close()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://user:hunter2@host/db", "postgresql://user:hunter2@[bad/db", "sqlite://"]
)
async def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        await MemoryStore.open(url)
    assert "hunter2" not in str(caught.value)


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="can't be opened") as caught:
        await MemoryStore.open("postgresql://user:hunter2@/db?host=/nowhere")
    assert "hunter2" not in str(caught.value)
