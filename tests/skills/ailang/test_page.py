"""What the page says of the configuration is what is read."""

import re
import tomllib
from pathlib import Path

from skills import PackContext
from skills.ailang import AilangSettings, pack
from skills.ailang import settings as module
from skills.ailang.stub import NO_BINARY, NO_CORPUS

PAGE = (Path(__file__).parents[3] / "docs" / "ailang.md").read_text(encoding="utf-8")


def test_its_table_is_one_that_can_be_used() -> None:
    found = re.search(r"<!-- a table -->\n```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    table = tomllib.loads(found[1])["tools"]
    assert set(table["ailang"]) == set(module._KEYS)
    settings = AilangSettings.resolve(table, {})
    assert settings.files == "native"
    assert settings.allow_caps == {"Env", "Net"}


def test_it_names_every_key_and_every_tool() -> None:
    rows = re.findall(r"^\| `([a-z0-9_-]+)`", PAGE, re.MULTILINE)
    assert [row for row in rows if row in module._KEYS] == list(module._KEYS)
    assert [row for row in rows if row not in module._KEYS][:8] == [
        "ailang-read", "ailang-write", "ailang-edit", "ailang-check", "ailang-run", "builtins-search",
        "examples-search", "ailang-cli",
    ]  # fmt: skip
    for skill in pack(PackContext()):
        assert {effect.name for effect in skill.contract.effects} <= set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE))


def test_it_quotes_what_a_stub_says() -> None:
    quoted = PAGE.replace("\n", " ")
    for text in (NO_BINARY, NO_CORPUS):
        assert text.split(":")[0] in quoted
