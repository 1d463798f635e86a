from pathlib import Path

import pytest

from skills import PackContext
from skills.host import pack, runtime, tools_block

BLOCK = "tools:\n  search: {backend: fake}\n  kb:\n    backend: fake\n  fs:\n    backend: stub\n    write: false\n"


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "SYSTEM", tmp_path / "etc" / "runtime.yaml")


def write(path: Path, text: str | bytes = BLOCK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_it_is_found_where_the_original_looks(tmp_path: Path) -> None:
    assert tools_block({"HOME": str(tmp_path)}) == {}
    places = [
        (tmp_path / "etc" / "runtime.yaml", {}),
        (tmp_path / ".config" / "mklang" / "runtime.yaml", {"HOME": str(tmp_path)}),
        (tmp_path / "xdg" / "mklang" / "runtime.yaml", {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}),
        (tmp_path / "own" / "runtime.yaml", {"MKLANG_CONFIG_DIR": str(tmp_path / "own")}),
        (tmp_path / "config" / "runtime.yaml", {"MKLANG_CONFIG_DIR": str(tmp_path / "own")}),
        (tmp_path / "named.yaml", {"MKLANG_CONFIG": str(tmp_path / "named.yaml")}),
    ]
    for number, (path, environ) in enumerate(places):
        write(path, f"tools: {{search: {{backend: '{number}'}}}}")
        assert tools_block(environ) == {"search": {"backend": str(number)}}


def test_it_stands_below_our_own_configuration_and_the_environment(tmp_path: Path) -> None:
    named = str(write(tmp_path / "r.yaml"))

    def tiers(config: dict[str, object], **environ: str) -> dict[str, str]:
        return {skill.id: skill.tier for skill in pack(PackContext(config, {"MKLANG_CONFIG": named, **environ}))}

    below = tiers({})
    assert (below["search"], below["search_kb"], below["send_reply"]) == ("fake", "fake", "stub")
    assert (below["read_file"], below["calc"]) == ("stub", "live")
    assert tiers({"kb": {"backend": "stub"}})["search_kb"] == "stub"
    assert tiers({}, SKILLBUS_KB_BACKEND="off")["search_kb"] == "stub"
    assert tiers({"fs": {"backend": "local"}})["read_file"] == "live"
    context = PackContext({"fs": {"backend": "local"}}, {"MKLANG_CONFIG": named})
    write_file = next(skill for skill in pack(context) if skill.id == "write_file")
    refused = write_file.plan({"path": "a.md", "content": ""})
    assert "writes are disabled" in str(refused.result)


def test_it_knows_only_what_the_original_knows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = write(tmp_path / "r.yaml", "tools: {search: {backend: searxng}, mail: {backend: smtp}}")
    tiers = {skill.id: skill.tier for skill in pack(PackContext({}, {"MKLANG_CONFIG": str(named)}))}
    assert (tiers["search"], tiers["send_reply"]) == ("stub", "stub")
    assert "tools.search.backend of runtime.yaml names none of fake, tavily" in caplog.text


UNREADABLE: list[str | bytes] = [
    *("", "[1", "hush: [", "tools: 7", "tools: [a]", "- a", "!!python/object/apply:os.system [true]"),
    *(b"\xff\xfe\x00hush", "tools: {1: 2, search: hush}", "a: &a [*a]", "[" * 5_000, "x" * (1 << 20) + "y"),
]


@pytest.mark.parametrize("text", UNREADABLE, ids=range(len(UNREADABLE)))
def test_what_can_not_be_read_counts_for_nothing(
    text: str | bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named = write(tmp_path / "r.yaml", text)
    tiers = {skill.id: skill.tier for skill in pack(PackContext({}, {"MKLANG_CONFIG": str(named)}))}
    assert tiers["search"] == "stub"
    assert "hush" not in caplog.text


@pytest.mark.parametrize("name", ["MKLANG_CONFIG", "MKLANG_CONFIG_DIR", "XDG_CONFIG_HOME", "HOME"])
def test_the_home_of_nobody_holds_no_file(name: str) -> None:
    assert tools_block({name: "~nobody-here/x"}) == {}
    assert len(list(pack(PackContext({}, {name: "~nobody-here/x"})))) == 7


def test_a_file_that_is_named_and_not_there_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tools_block({"MKLANG_CONFIG": str(tmp_path / "none.yaml")}) == {}
    assert "none.yaml is not taken: No such file or directory" in caplog.text
