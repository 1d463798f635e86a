import stat
from pathlib import Path

import pytest

import bus
import deploy
from broker import Grant, mint
from deploy.house import House
from deploy.settings import Settings


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
        assert [skill.id for skill in house.catalog][:2] == ["ailang-edit", "ailang-read"]
        credential, session = mint("ep1", [Grant("Workspace.Read", "worktree", 1, 1 << 62)], ttl=60)
        await house.ledger.add_session(session)
        broker = bus.MemoryBroker()
        async with await house.serve(broker), await bus.connect(broker, authorize=credential.authorize) as client:
            card = await client.request("tools", "GetExtendedAgentCard", {})
            assert card["name"] == "tools"
    finally:
        await house.close()


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


async def test_what_cannot_be_loaded_is_told(settings: Settings) -> None:
    house = await House.open(settings.model_copy(update={"packs": ("tests.packs:broken", "tests.packs:slow")}))
    try:
        assert [problem.pack for problem in house.catalog.problems] == ["tests.packs:broken"]
        assert "slow" in house.catalog
    finally:
        await house.close()
