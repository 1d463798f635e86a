"""The examples of docs/policy.md, as they stand there."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.settings import Settings
from skills import Contract, PackContext
from skills.ailang import pack as ailang
from skills.host import pack as host
from tests.deploy.conftest import Ended, Home

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
Skillbus = Callable[..., Ended]


def block(name: str) -> str:
    (found,) = re.findall(rf"<!-- {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("command", block("grants").splitlines())
def test_the_commands_mint(skillbus: Skillbus, command: str) -> None:
    program, *arguments = shlex.split(command)
    ended = skillbus(*arguments)
    assert (program, ended.code) == ("skillbus", 0)
    assert "of no use" not in ended.err
    asked = set(arguments[arguments.index("--grant") + 1].partition("?")[2].split("&"))
    (session,) = json.loads(skillbus("session", "list", "--json").out)
    held = set(session["grants"][0]["constraints"].split("&"))
    assert {each for each in asked if not each.startswith("for=")} == {e for e in held if not e.startswith("before=")}
    assert len(asked) == len(held)


def test_the_file_of_grants_mints(skillbus: Skillbus, home: Home) -> None:
    (home.folder / "grants.toml").write_text(block("a file of grants"))
    assert skillbus("session", "new", "ep1", "--grants", "grants.toml", "--strict").code == 0
    listed = skillbus("session", "list").out
    assert "Workspace.Write=worktree:10?path=docs/**&path=!docs/legal/**&max-bytes=65536&reversible" in listed


def test_the_policy_is_one(home: Home) -> None:
    (home.folder / "skillbus.toml").write_text(block("a policy"))
    policy = Settings(home.folder / "skillbus.toml").policy
    assert policy.deny == ("send_reply", "beta_*")
    assert policy.deny_irreversible
    assert set(re.findall(r"^\| `(deny\w*)` \|", PAGE, re.MULTILINE)) == set(type(policy).model_fields)


def test_the_contract_is_one() -> None:
    held: dict[str, Any] = {}
    exec(block("a contract"), held)
    assert isinstance(held["CONTRACT"], Contract)


def test_the_table_of_quantities_is_what_the_contracts_say() -> None:
    told = {
        row[0]: row[1:] for row in re.findall(r"^\| `([\w-]+)` \|" + r" ([^|]*?) ?\|" * 5 + "$", PAGE, re.MULTILINE)
    }
    contracts = {skill.id: skill.contract for make in (host, ailang) for skill in make(PackContext({}, {}))}
    measured = {name: contract.measures for name, contract in contracts.items() if contract.measures}
    assert told.keys() == measured.keys()
    for name, cells in told.items():
        quantities = dict(zip(("operation", "path", "bytes", "recipients", "results"), cells, strict=True))
        assert {quantity for quantity, cell in quantities.items() if cell} == measured[name].keys()
        for quantity, where in measured[name].items():
            if where.isdigit():
                assert quantities[quantity] == where
