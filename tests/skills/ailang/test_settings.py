from pathlib import Path
from typing import Any

import pytest

from skills.ailang import AilangSettings, AilangSettingsError


def resolve(table: Any, environ: dict[str, str] | None = None, state_dir: Path | None = None) -> AilangSettings:
    return AilangSettings.resolve({"ailang": table}, environ or {}, state_dir)


def refusal(table: Any) -> str:
    with pytest.raises(AilangSettingsError) as raised:
        resolve(table)
    return str(raised.value)


def test_without_a_table_nothing_is_configured(tmp_path: Path) -> None:
    settings = AilangSettings.resolve({}, {"XDG_STATE_HOME": str(tmp_path)})
    assert settings == AilangSettings(state=tmp_path / "skillbus" / "ailang")
    assert resolve({}, {}, tmp_path).state == tmp_path / "ailang"


def test_a_whole_table(tmp_path: Path) -> None:
    table = {
        "binary": "/opt/ailang", "sha256": "sha256:" + "0" * 64, "examples": "/opt/examples", "state": str(tmp_path),
        "run_allow_caps": ["Declassify", "Env", "Net"], "run_net_allow": ["127.0.0.1:7655", "[::1]:1"],
        "run_net_allow_http": True,
    }  # fmt: skip
    assert resolve(table) == AilangSettings(
        Path("/opt/ailang"), "sha256:" + "0" * 64, Path("/opt/examples"), "binary", tmp_path,
        frozenset({"Declassify", "Env", "Net"}), ("127.0.0.1:7655", "[::1]:1"), net_allow_http=True,
    )  # fmt: skip
    assert resolve({**table, "files": "native"}).files == "native"


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/at/my/own")
    assert resolve({"examples": "~/.ailang/examples"}).examples == Path("/at/my/own/.ailang/examples")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ([], "tools.ailang must be a table"),
        ({"binry": "/x"}, "tools.ailang.binry is not known; known are binary, sha256, examples,"),
        ({"binary": 1}, "tools.ailang.binary must be an absolute path"),
        ({"binary": "ailang"}, "tools.ailang.binary must be an absolute path"),
        ({"binary": "~nobody-here/ailang"}, "tools.ailang.binary must be an absolute path"),
        ({"examples": " "}, "tools.ailang.examples must be an absolute path"),
        ({"state": "/a\0"}, "tools.ailang.state must be an absolute path"),
        ({"binary": "/x", "sha256": "0" * 64}, "tools.ailang.sha256 must be sha256: and 64 lower-case"),
        ({"sha256": "sha256:" + "0" * 64}, "tools.ailang.sha256 is set, and tools.ailang.binary is not"),
        ({"files": "binary"}, 'tools.ailang.files is "binary", and tools.ailang.binary is not set'),
        ({"files": "x"}, "tools.ailang.files must be native or binary"),
        ({"run_allow_caps": "Env"}, "tools.ailang.run_allow_caps must be an array of strings"),
        ({"run_net_allow": [1]}, "tools.ailang.run_net_allow must be an array of strings"),
        ({"run_net_allow_http": 1}, "tools.ailang.run_net_allow_http must be true or false"),
        ({"run_allow_caps": ["IO"]}, 'run_allow_caps names "IO"; it admits only Declassify, Env, Net (IO and FS are'),
        ({"run_allow_caps": ["Env", "Env"]}, 'run capabilities: run_allow_caps names "Env" twice'),
        ({"run_allow_caps": ["Net"]}, "run_allow_caps Net needs at least one run_net_allow HOST:PORT"),
        ({"run_net_allow": ["127.0.0.1:1"]}, "run_net_allow is set but run_allow_caps does not name Net"),
        ({"run_net_allow_http": True}, "run_net_allow_http is set but run_allow_caps does not name Net"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(table: Any, why: str) -> None:
    assert why in refusal(table)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    assert refusal({"x": 1, "files": 2, "run_allow_caps": ["FS"]}).count("; ") >= 2


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("127.0.0.1", "is not HOST:PORT (a bare host would open every loopback port; name one port, e.g. 127.0.0.1:76"),
        ("", "is not HOST:PORT"),
        (":80", "is not HOST:PORT"),
        ("::1:80", "is not HOST:PORT"),
        ("[::1]", "is not HOST:PORT"),
        ("localhost:80", "names a host by name; only a loopback IP literal is admitted (127.0.0.1:PORT or [::1]:PORT)"),
        ("127.1:80", "names a host by name"),
        ("[fe80::1%lo]:80", "is not a loopback address"),
        ('[::1%"\x7f]:80', "is not a loopback address"),
        ("10.0.0.1:80", "is not a loopback address; a run's Net reaches loopback only"),
        ("0.0.0.0:80", "is not a loopback address"),
        ("169.254.169.254:80", "is not a loopback address"),
        ("127.0.0.1:0", "has an invalid port (want 1-65535)"),
        ("127.0.0.1:65536", "has an invalid port"),
        ("127.0.0.1:x", "has an invalid port"),
        ("127.0.0.1:", "has an invalid port"),
        ("127.0.0.1:٣", "has an invalid port"),
        ("127.0.0.1:080", 'is not in canonical form; write "127.0.0.1:80"'),
        ("[0:0:0:0:0:0:0:1]:80", 'is not in canonical form; write "[::1]:80"'),
        ("[127.0.0.1]:80", 'is not in canonical form; write "127.0.0.1:80"'),
    ],
)
def test_only_a_loopback_pair_is_reached(pair: str, why: str) -> None:
    said = refusal({"run_allow_caps": ["Net"], "run_net_allow": [pair]})
    assert f'run capabilities: run_net_allow "{pair}" {why}' in said


def test_a_pair_is_named_once() -> None:
    said = refusal({"run_allow_caps": ["Net"], "run_net_allow": ["127.0.0.1:1", "127.0.0.1:1"]})
    assert said == 'run capabilities: run_net_allow names "127.0.0.1:1" twice'
