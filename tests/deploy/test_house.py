import asyncio
import stat
from pathlib import Path

import pytest

import bus
import deploy
from broker import Grant, SigningKey, mint
from broker.agent.card import jwks, verify
from deploy.house import House
from deploy.settings import Settings, SettingsError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", agent="tools", instance="w1")


def test_the_map_leads_everywhere() -> None:
    for name in deploy.__all__:
        assert getattr(deploy, name).__name__ == name
    assert sorted(deploy._MODULES) == deploy.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = deploy.nothing


async def test_a_house_serves_its_agent(settings: Settings) -> None:
    house = await House.open(settings)
    try:
        assert [skill.id for skill in house.catalog][:2] == ["ailang-check", "ailang-cli"]
        credential, session = mint("ep1", [Grant("Workspace.Read", "worktree", 1, 1 << 62)], ttl=60)
        await house.ledger.add_session(session)
        broker = bus.MemoryBroker()
        async with await house.serve(broker), await bus.connect(broker, authorize=credential.authorize) as client:
            card = await client.request("tools", "GetExtendedAgentCard", {})
            assert card["name"] == "tools"
            key = SigningKey.load(settings.state_dir / "signing.pem")
            assert verify(card, jwks(key)) == key.kid
    finally:
        await house.close()


@pytest.mark.parametrize(
    ("changes", "broker", "url"),
    [
        ({"amqp_url": "amqp://me:hush@rabbit/v%2Fh?heartbeat=5"}, None, "amqp://rabbit:5672/v%2Fh?agent=tools"),
        ({"amqp_url": "amqps://rabbit", "prefix": "p"}, None, "amqps://rabbit:5671/%2F?agent=tools&prefix=p"),
        ({}, "amqp://me:hush@127.0.0.1:9999", "amqp://127.0.0.1:9999/%2F?agent=tools"),
        ({"public_url": "amqps://mq.example/v"}, "amqp://127.0.0.1", "amqps://mq.example:5671/v?agent=tools"),
        ({}, None, ""),
    ],
)
async def test_the_card_says_where_the_agent_is_called(
    settings: Settings, changes: dict[str, str], broker: str | None, url: str
) -> None:
    house = await House.open(Settings(state_dir=settings.state_dir, agent="tools", **changes), broker=broker)
    try:
        assert [each["url"] for each in house.agent.card([])["supportedInterfaces"]] == [url]
    finally:
        await house.close()


async def test_workers_can_share_a_signing_key_and_others_may_not_read_it(settings: Settings, tmp_path: Path) -> None:
    shared = tmp_path / "shared.pem"
    kid = SigningKey.load_or_create(shared).kid
    house = await House.open(settings.model_copy(update={"signing_key": shared}))
    await house.close()
    assert verify(house.agent.card([]), jwks(SigningKey.load(shared))) == kid
    shared.chmod(0o640)
    with pytest.raises(SettingsError, match=r"signing_key: .* is open to others .mode 0640.: chmod 600"):
        await House.open(settings.model_copy(update={"signing_key": shared}))


async def test_the_state_is_private_and_each_process_has_a_name_of_its_own(settings: Settings) -> None:
    one, other = await House.open(settings), await House.open(settings)
    try:
        assert stat.S_IMODE(settings.state_dir.stat().st_mode) == 0o700
        for file in settings.state_dir.glob("ledger.db*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert one.instance != other.instance
        assert one.instance.startswith("w1-")
    finally:
        await one.close()
        await other.close()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, bus.TaskNotFound),
        ({"push_notifications": False}, bus.PushNotificationNotSupported),
    ],
)
async def test_push_notifications_can_be_switched_off(
    settings: Settings, changes: dict[str, bool], error: type[bus.BusError]
) -> None:
    house = await House.open(settings.model_copy(update=changes))
    try:
        assert house.agent.card([])["capabilities"]["pushNotifications"] is (error is bus.TaskNotFound)
        credential, session = mint("ep1", [Grant("Workspace.Read", "worktree", 1, 1 << 62)], ttl=60)
        await house.ledger.add_session(session)
        broker = bus.MemoryBroker()
        async with await house.serve(broker), await bus.connect(broker, authorize=credential.authorize) as client:
            with pytest.raises(error):
                await client.request("tools", "ListTaskPushNotificationConfigs", {"taskId": "absent"})
        if changes:
            await asyncio.wait_for(house.notify(), 20)
    finally:
        await house.close()


async def test_what_cannot_be_loaded_is_told(settings: Settings) -> None:
    house = await House.open(settings.model_copy(update={"packs": ("tests.packs:broken", "tests.packs:slow")}))
    try:
        assert [problem.pack for problem in house.catalog.problems] == ["tests.packs:broken"]
        assert "slow" in house.catalog
    finally:
        await house.close()


async def test_a_policy_that_names_nothing_here_is_warned_of(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    for deny, warned in (["send_replly"], True), (["send_*"], False):
        caplog.clear()
        house = await House.open(Settings(state_dir=settings.state_dir, policy={"deny": deny}))
        await house.close()
        assert ("no skill that is loaded is called" in caplog.text) is warned
