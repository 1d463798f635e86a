import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]


def test_each_setting_tells_where_it_came_from(skillbus: Skillbus, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.folder / "skillbus.toml").write_text('agent = "tools"\nslots = 8\n')
    monkeypatch.setenv("SKILLBUS_SLOTS", "16")
    found = {s["name"]: s for s in json.loads(skillbus("config", "--json").out)}
    assert (found["agent"]["value"], found["agent"]["origin"]) == ("tools", "skillbus.toml")
    assert (found["slots"]["value"], found["slots"]["origin"]) == ("16", "SKILLBUS_SLOTS")
    assert (found["prefix"]["value"], found["prefix"]["origin"]) == ("a2a", "default")
    assert found["ledger"]["value"] == str(home.ledger)
    rows = [line.split() for line in skillbus("config").out.splitlines()]
    assert rows[0] == ["SETTING", "FROM", "VALUE"]
    assert ["slots", "SKILLBUS_SLOTS", "16"] in rows
    assert "name of the agent" in skillbus("config", "--verbose").out


def test_the_page_tells_of_every_setting_and_its_file_is_one(skillbus: Skillbus, home: Home) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    found = {s["name"]: s for s in json.loads(skillbus("config", "--json").out)}
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(found)
    (file,) = re.findall(r"<!-- a file -->\n```toml\n(.*?)```", page, re.DOTALL)
    (home.folder / "skillbus.toml").write_text(file)
    found = {s["name"]: s for s in json.loads(skillbus("config", "--json").out)}
    assert {s["name"] for s in found.values() if s["origin"] == "skillbus.toml"} == set(tomllib.loads(file))


def test_secrets_are_masked(skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLBUS_AMQP_URL", "amqps://me:hush@rabbit/?password=hush")
    for options in ([], ["--json"], ["--verbose"]):
        ended = skillbus("config", *options)
        assert ended.code == 0
        assert "hush" not in ended.out + ended.err
        assert "amqps://me:***@rabbit/?password=***" in ended.out


def test_a_ledger_by_url_is_refused_without_its_secrets(skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLBUS_LEDGER", "postgresql://u:hush@h:port/db?password=hush")
    ended = skillbus("config")
    assert (ended.code, ended.out) == (1, "")
    assert "PostgreSQL is not supported for now" in ended.err
    assert "hush" not in ended.err


def test_wrong_settings_are_one_line(skillbus: Skillbus, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.folder / "skillbus.toml").write_text('slot = 8\nagent = "No"\n')
    monkeypatch.setenv("SKILLBUS_SLOTZ", "16")
    ended = skillbus("config")
    assert (ended.code, ended.out) == (1, "")
    assert len(ended.err.splitlines()) == 1
    for name in ("slot", "SKILLBUS_SLOTZ", "agent"):
        assert name in ended.err


def test_a_file_can_be_named(skillbus: Skillbus, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('prefix = "mine"\n')
    assert re.search(rf"^prefix +{re.escape(str(file))} ", skillbus("config", "--config", str(file)).out, re.MULTILINE)
    ended = skillbus("config", "--config", "nowhere.toml")
    assert ended.code == 1
    assert "nowhere.toml: there is no such file" in ended.err
