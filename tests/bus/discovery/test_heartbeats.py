"""Who counts as alive, by the clock of who listens."""

from bus import State
from bus.discovery.heartbeats import MOST_SERVERS, Registry
from bus.discovery.vitals import Heartbeat


def beat(instance: str, interval: float = 10.0, **options: bool) -> Heartbeat:
    return Heartbeat("a", instance, State.CONNECTED, interval, **options)  # type: ignore[arg-type]


def test_each_has_its_own_interval() -> None:
    now = 100.0
    registry = Registry(lambda: now)
    registry.hear(beat("quick", 1.0))
    registry.hear(beat("slow", 60.0))
    now += 3.0
    assert [each.instance for each in registry.alive()] == ["slow"]
    assert [(seen.beat.instance, seen.age_seconds) for seen in registry.sightings()] == [("quick", 3.0), ("slow", 3.0)]
    registry.hear(beat("quick", 1.0))
    assert [each.instance for each in registry.alive()] == ["quick", "slow"]
    assert registry.alive("another") == []


def test_a_goodbye_is_the_end_and_a_later_beat_a_beginning() -> None:
    registry = Registry(lambda: 0.0)
    registry.hear(beat("w1"))
    registry.hear(beat("w1", leaving=True))
    assert registry.sightings() == []
    registry.hear(beat("w1"))
    assert len(registry.alive()) == 1


def test_memory_has_an_end() -> None:
    registry = Registry(lambda: 0.0)
    for number in range(MOST_SERVERS):
        registry.hear(beat(f"{number:05}"))
    registry.hear(beat("00000"))  # heard again, so no longer the one that was silent longest
    registry.hear(beat("more"))
    names = {each.instance for each in registry.alive()}
    assert len(names) == MOST_SERVERS
    assert "00001" not in names
    assert {"00000", "more"} <= names
