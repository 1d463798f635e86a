import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home
from tests.skills.tb.page import ADVANCED, EXTENDED, MONEY, SIMPLE

Skillbus = Callable[..., Ended]
BINDING = '[tools."examples.tool_simple.SearchDatasets"]\npython = "app:search"\ngrants = ["network"]\n'


@pytest.fixture
def tools(home: Home) -> Path:
    folder = home.folder / "tools"
    folder.mkdir()
    (folder / "simple.tb").write_text(SIMPLE)
    (folder / "skillbus.tools.toml").write_text(BINDING)
    return folder


def test_a_newcomer_gets_three_files_that_are_right(skillbus: Skillbus, home: Home) -> None:
    for name, options, handler in (("greet", [], "handlers.py"), ("find_it", ["--javascript"], "handlers.mjs")):
        ended = skillbus("contract", "new", name, *options)
        assert ended.out.split() == [f"{name}/{name}.tb", f"{name}/skillbus.tools.toml", f"{name}/{handler}"]
        assert (ended.code, ended.err) == (0, f"`skillbus contract check {name}` says how it stands\n")
        ended = skillbus("contract", "check", name)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.splitlines()[1].split()[1:3] == [
            "bound",
            f"./{handler}" + ended.out.split(handler)[1].split()[0],
        ]
        assert skillbus("contract", "fmt", "--check", f"{name}/{name}.tb").code == 0


def test_nothing_that_is_there_is_written_over(skillbus: Skillbus, home: Home) -> None:
    (home.folder / "greet").mkdir()
    (home.folder / "greet" / "handlers.py").write_text("mine")
    ended = skillbus("contract", "new", "greet")
    assert (ended.code, "is there already: nothing is written" in ended.err) == (1, True)
    assert [each.name for each in (home.folder / "greet").iterdir()] == ["handlers.py"]
    assert skillbus("contract", "new", "greet", "--dir", "other").code == 0
    for name in ("text", "number", "integer", "boolean"):
        ended = skillbus("contract", "new", name)
        assert ended.code == 1
        assert ended.err.endswith(", which is a built-in type; take another name\n")
        assert not (home.folder / name).exists()
    ended = skillbus("contract", "new", "Greet!")
    assert (ended.code, ended.err.startswith("error: a name to start from has")) == (1, True)


def test_a_check_shows_how_each_tool_stands(skillbus: Skillbus, tools: Path) -> None:
    (tools / "advanced.tb").write_text(ADVANCED)
    ended = skillbus("contract", "check", "tools")
    assert ended.code == 0
    assert [line.split()[:3] for line in ended.out.splitlines()] == [
        ["TOOL", "STATE", "HANDLER"],
        ["examples.tool_advanced.SummarizeWithContext", "unbound", "-"],
        ["examples.tool_simple.SearchDatasets", "bound", "app:search"],
    ]
    (tools / "skillbus.tools.toml").write_text(BINDING.replace('"network"', ""))
    ended = skillbus("contract", "check", "tools")
    assert (ended.code, "refused" in ended.out) == (1, True)
    assert ended.err.splitlines() == [
        "tool examples.tool_simple.SearchDatasets is refused: the manifest does not grant network",
        "error: 1 fault(s)",
    ]


def test_faults_have_their_place_and_exit_code_1(skillbus: Skillbus, tools: Path) -> None:
    (tools / "bad.tb").write_text(SIMPLE.replace("tool_simple", "bad").replace("as Dataset", "as Data"))
    (tools / "skillbus.tools.toml").write_text(BINDING + "depth = 1\n")
    ended = skillbus("contract", "check", "tools")
    assert ended.code == 1
    assert ended.err.splitlines()[0].startswith("tools/bad.tb:10:22: unknown type DataSearchRequest; did you mean")
    assert 'tools."examples.tool_simple.SearchDatasets".depth: unknown key' in ended.err
    ended = skillbus("contract", "check", "tools/bad.tb")
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "error: 1 fault(s)")
    (tools / "bad.tb").write_text("\x1b[31m")
    ended = skillbus("contract", "check", "tools/bad.tb")
    assert (ended.code, "\x1b" in ended.err, "bad.tb:1:1: the character U+001B" in ended.err) == (1, False, True)
    assert json.loads(skillbus("contract", "check", "tools/bad.tb", "--json").out)["faults"][0]["line"] == 1


def test_strict_names_each_extension(skillbus: Skillbus, home: Home, tools: Path) -> None:
    assert skillbus("contract", "check", "tools", "--strict").code == 0
    (tools / "orders.tb").write_text(EXTENDED)
    (tools / "money.tb").write_text(MONEY)
    assert skillbus("contract", "check", "tools").code == 0
    ended = skillbus("contract", "check", "tools", "--strict")
    assert ended.code == 1
    assert "tools/orders.tb:4:1: an import is an extension of the language\n" in ended.err
    assert "tools/money.tb:4:14: the type Integer is an extension of the language\n" in ended.err
    one = skillbus("contract", "check", "tools/money.tb", "--strict")
    assert one.err.splitlines()[-1] == "error: 1 fault(s)"
    told = json.loads(skillbus("contract", "check", "tools", "--strict", "--json").out)
    assert {each["file"] for each in told["extensions"]} == {"money.tb", "orders.tb"}


def test_warnings_stop_nothing(skillbus: Skillbus, tools: Path) -> None:
    (tools / "simple.tb").write_text(SIMPLE.replace("requires network", "requires network\n    secrets KEY"))
    (tools / "skillbus.tools.toml").unlink()
    ended = skillbus("contract", "check", "tools")
    assert (ended.code, ended.err.count("warning: tools/simple.tb:13:13: the clause needs secret_read")) == (0, 1)


def test_no_handler_is_loaded(skillbus: Skillbus, tools: Path, home: Home) -> None:
    (tools / "app.py").write_text(f"open({str(home.folder / 'loaded')!r}, 'w')")
    (tools / "skillbus.tools.toml").write_text(BINDING.replace('"app:search"', '"./app.py:search"'))
    assert skillbus("contract", "check", "tools").code == 0
    assert not (home.folder / "loaded").exists()


def test_the_layout_is_shown_checked_and_made(skillbus: Skillbus, tools: Path) -> None:
    file = tools / "simple.tb"
    file.write_text(SIMPLE.replace("    ", "  "))
    file.chmod(0o640)
    ended = skillbus("contract", "fmt", "--diff", str(file))
    assert (ended.code, "-  query is Text\n+    query is Text\n" in ended.out) == (0, True)
    ended = skillbus("contract", "fmt", "--check", str(file))
    assert (ended.code, ended.err.splitlines()[-1].startswith("error: 1 contract(s) are not in the one")) == (1, True)
    assert "  query" in file.read_text()
    ended = skillbus("contract", "fmt", str(file))
    assert (ended.code, file.read_text(), file.stat().st_mode & 0o777) == (0, SIMPLE, 0o640)
    assert [each.name for each in tools.iterdir() if each.name.startswith(".")] == []
    assert skillbus("contract", "fmt", str(file)).err == ""
    (tools / "bad.tb").write_text("no")
    file.write_text(SIMPLE.replace("    ", "  "))
    ended = skillbus("contract", "fmt", str(file), str(tools / "bad.tb"))
    assert (ended.code, "bad.tb:1:1: a file starts with: module <name>" in ended.err) == (1, True)
    assert file.read_text() != SIMPLE


def test_the_air_of_a_contract(skillbus: Skillbus, tools: Path) -> None:
    air = json.loads(skillbus("contract", "air", "tools/simple.tb").out)
    assert air["tools"][0]["requirements"]["capabilities"] == ["network"]
    assert air["source"]["file"] == "simple.tb"
    (tools / "orders.tb").write_text(EXTENDED)
    ended = skillbus("contract", "air", "tools/orders.tb")
    assert (ended.code, "orders.tb:4:17: unknown module shop.money" in ended.err) == (1, True)
    (tools / "money.tb").write_text(MONEY)
    assert "shop.money.Money" in json.loads(skillbus("contract", "air", "tools/orders.tb").out)["schemas"]


def test_what_is_not_there_is_one_line(skillbus: Skillbus, tools: Path) -> None:
    os.mkfifo(tools / "pipe.tb")
    for arguments in (
        ("check", "nowhere"), ("air", "nowhere.tb"), ("air", "tools"), ("fmt", "nowhere.tb"),
        ("check", "tools/pipe.tb"), ("air", "tools/pipe.tb"), ("fmt", "tools/pipe.tb"),
    ):  # fmt: skip
        ended = skillbus("contract", *arguments)
        assert (ended.code, len(ended.err.splitlines()), "internal" in ended.err) == (1, 1, False)
    assert skillbus("contract", "fmt", "tools").err == "error: tools: Is a folder; name the contracts in it (*.tb)\n"


def test_no_secret_of_a_manifest_is_shown(skillbus: Skillbus, tools: Path) -> None:
    (tools / "skillbus.tools.toml").write_text(BINDING + '[secrets]\nA = "sk-ant-REDACTED"\nB = "hunter2"\n')
    for options in ((), ("--json",)):
        ended = skillbus("contract", "check", "tools", *options)
        assert ended.code == 1
        assert "abcdefgh" not in ended.out + ended.err
        assert "hunter2" not in ended.out + ended.err


def test_a_call_needs_no_parser(home: Home, session: Path) -> None:
    script = (
        "import sys; from deploy.cli.app import run; code = run(['call', 'calc', '--arg', 'expr=1']); "
        "print(code, [name for name in ('lark', 'skills.tb', 'pygments.lexer') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=home.folder,
        env=home.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_what_a_skill_requires_is_shown_and_its_sources_are_not(skillbus: Skillbus, tools: Path, home: Home) -> None:
    tool_id = "examples.tool_advanced.SummarizeWithContext"
    (tools / "advanced.tb").write_text(ADVANCED)
    (tools / "skillbus.tools.toml").write_text(
        f'[tools."{tool_id}"]\npython = "app:f"\ngrants = ["network", "secret_read", "memory_read"]\n'
        '[secrets]\nLLM_API_KEY = "env:WHERE_IT_IS"\n[memories.ProjectKnowledge]\nmodes = ["read"]\n'
    )
    credential = home.folder / "credential"
    assert skillbus("session", "new", "ep1", "--grant", f"{tool_id}=tool:1", "--out", str(credential)).code == 0
    shown = skillbus("skills", tool_id, "--tools", "tools", "--session", str(credential)).out
    assert "  requires   memory_read, network, secret_read, LLM_API_KEY, ProjectKnowledge read\n" in shown
    told = json.loads(skillbus("skills", tool_id, "--tools", "tools", "--session", str(credential), "--json").out)
    assert told["requirements"] == {
        "capabilities": ["memory_read", "network", "secret_read"],
        "secrets": ["LLM_API_KEY"],
        "memory": ["ProjectKnowledge read"],
    }
    air = json.loads(skillbus("contract", "air", "tools/advanced.tb").out)
    assert told["input"] == air["schemas"]["SearchRequest"]
    assert told["output"] == air["schemas"]["Summary"]
    assert "WHERE_IT_IS" not in shown + json.dumps(told)
