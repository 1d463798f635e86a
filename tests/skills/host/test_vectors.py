"""Every recorded row of the seven tools, and where ours departs from it on purpose."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from skills import Context, Directory, Done, EffectResult, PackContext, Risk, Skill
from skills.host import (
    BackendError,
    Binding,
    FileSettings,
    bind,
    calc,
    list_files,
    pack,
    read_file,
    search,
    search_kb,
    send_reply,
    tavily,
    write_file,
)
from skills.host import http as http_module
from skills.host.fakes import FakeKnowledge, FakeSearch
from skills.host.settings import Setting
from tests.skills.host.service import Service, answering
from tests.skills.vectors import Row, expand, lay_out
from tests.vectors import rows

TOOLS = {"list_files": list_files, "read_file": read_file, "write_file": write_file}
BOUND = {"search": (search, "search"), "search_kb": (search_kb, "kb"), "send_reply": (send_reply, "mail")}
ROWS = rows("host-tools")


@dataclass(frozen=True)
class Departure:
    reason: str
    output: Mapping[str, Any]
    after: Mapping[str, Any] | None = None


NO_HOST_PATH = "an error names a path of the workspace, never where the host keeps it"
NOT_WRITTEN = {"status": "error", "bytes": 0, "written": False, "existed": False}

DEPARTURES = {
    "rd-symlink-loop": Departure(NO_HOST_PATH, {"error": "read failed: Symlink loop from 'a'"}),
    "rd-long-name": Departure(NO_HOST_PATH, {"error": f"read failed: [Errno 36] File name too long: '{'n' * 300}'"}),
    "wr-parent-is-file": Departure(NO_HOST_PATH, {"error": "write failed: [Errno 17] File exists: 'f.txt'"}),
    "wr-target-is-dir-overwrite": Departure(
        f"{NO_HOST_PATH}, and no temporary name", {"error": "write failed: [Errno 21] Is a directory: 'd.txt'"}
    ),
    "wr-symlink-suffix-by-link-name": Departure(
        "a link must not lend its name to a file that may not be written",
        {
            **NOT_WRITTEN,
            "error": "suffix '.py' is not writable "
            "(allowed: .csv .html .json .jsonl .log .md .toml .tsv .txt .xml .yaml .yml)",
        },
        after={"a.py": {"content": "old", "mode": "0o644", "symlink": False}},
    ),
    "tavily-timeout": Departure("a search that took too long may go well the next time", {"retryable": True}),
}


def settings_of(row: Row, places: dict[str, str]) -> FileSettings:
    settings = FileSettings.resolve(expand(row["config"], places), expand(row["env"], places), write_default=False)
    binding = row.get("binding", {})
    if binding.get("kind") == "allow_writes":
        settings = replace(settings, write=Setting(binding["value"], "env"))
    return settings


async def answer(skill: Skill, arguments: Any, root: Path) -> Mapping[str, Any]:
    """What the caller gets: the plan's result, or what the finish phase makes of the handler's."""
    plan = skill.plan(arguments)
    if plan.result is not None:
        assert not plan.effects
        return plan.result
    assert plan.finish
    assert skill.handler is not None
    assert skill.finish is not None
    with ExitStack() as resources:
        worktree = resources.enter_context(Directory.open(root)) if root.is_dir() else None
        outcome = await skill.handler(plan.effects[0], Context("i", "e", time() + 60, worktree))
    assert isinstance(outcome, Done)
    return skill.finish(arguments, EffectResult("e1", plan.effects[0].effect, "ok", "sha256:0", outcome.output))


def look(path: Path) -> dict[str, Any] | None:
    if path.is_dir():
        return {"dir": sorted(child.name for child in path.iterdir())}
    if not path.exists():
        return None
    return {
        "content": path.read_bytes().decode(),
        "mode": oct(path.stat().st_mode & 0o777),
        "symlink": path.is_symlink(),
    }


@pytest.mark.parametrize("row", [row for row in ROWS if row["tool"] in TOOLS], ids=lambda row: row["id"])
async def test_a_file_tool_answers_as_recorded(row: Row, tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    places = {"${WORKSPACE}": str(workspace), "${OUTSIDE}": str(outside)}
    workspace.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    lay_out(workspace, row["workspace"], places)
    settings = settings_of(row, places)
    skill = TOOLS[row["tool"]](settings)
    root = Path(settings.root.value or expand(row.get("cwd", str(workspace)), places))

    departure = DEPARTURES.get(row["id"])
    for step in row.get("steps", [row]):
        expected = expand(step["output"], {**places, f"'{workspace}/": "'"})
        expected |= departure.output if departure else {}
        output = await answer(skill, expand(step["input"], places), root)
        assert output == expected
        assert list(output) == list(expected)
        assert str(tmp_path) not in str(output)
    after = (departure and departure.after) or row.get("after", {})
    assert {name: look(workspace / name) for name in after} == after
    assert (outside / "secret.txt").read_text() == "secret"
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("row", [row for row in ROWS if row["tool"] == "calc"], ids=lambda row: row["id"])
def test_calc_answers_as_recorded(row: Row) -> None:
    result = calc().plan(row["input"]).result
    assert result is not None
    text, expected = result["text"], row["output"]
    if isinstance(expected, dict) and "$sha256" in expected:
        assert hashlib.sha256(text.encode()).hexdigest() == expected["$sha256"]
    else:
        assert text == expand(expected, {})


class Bound:
    """A backend that was bound in code: it returns what the row says, or raises it."""

    def __init__(self, given: Row) -> None:
        self._given = given

    async def answer(self, *_: object, **__: object) -> Any:
        if "raise" in self._given:
            raise BackendError(self._given["raise"])
        return expand(self._given.get("value", self._given.get("rows")), {})

    search = lookup = send = answer


async def bound(row: Row, service: Service) -> Binding:
    """What the row's tool is bound to."""
    given = row.get("binding", {})
    match given.get("kind"):
        case None:
            return bind(BOUND[row["tool"]][1], PackContext(row["config"], row["env"]))  # type: ignore[arg-type]
        case "search_fake_rows":
            return Binding("fake", "env", "fake", FakeSearch(given["rows"]))
        case "kb_facts":
            return Binding("fake", "env", "fake", FakeKnowledge(given["facts"]))
        case "tavily_http":
            environ = {"TAVILY_API_KEY": "k", "SKILLBUS_SEARCH_URL": service.url}
            return bind("search", PackContext({}, environ))
        case _:
            return Binding("bound", "env", "live", Bound(given))


def serve_as_recorded(service: Service, given: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if "raise" in given:
        monkeypatch.setattr(http_module, "SECONDS", 0.05)
        service.hang()
    elif "http_error" in given:
        status, reason = given["http_error"]
        service.answer(b"{}", status=status, reason=reason)
    else:
        body = given["body"]
        service.answer(body.encode() if isinstance(body, str) else json.dumps(body).encode())


@pytest.mark.parametrize("row", [row for row in ROWS if row["tool"] in BOUND], ids=lambda row: row["id"])
async def test_a_tool_with_a_backend_answers_as_recorded(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http_module.SECONDS == 15.0
    assert tavily.URL == "https://api.tavily.com/search"
    make, _ = BOUND[row["tool"]]
    departure = DEPARTURES.get(row["id"])
    async with answering() as service:
        if row.get("binding", {}).get("kind") == "tavily_http":
            serve_as_recorded(service, row["binding"], monkeypatch)
        skill = make(await bound(row, service))
        for step in row.get("steps", [row]):
            expected = expand(step["output"], {}) | (dict(departure.output) if departure else {})
            output = await answer(skill, expand(step["input"], {}), tmp_path)
            assert output == expected
            assert list(output) == list(expected)
        recorded = row.get("http", [])
        assert [request.method for request in service.requests] == [each["method"] for each in recorded]
        assert [json.loads(request.body) for request in service.requests] == [each["body"] for each in recorded]
        for request, each in zip(service.requests, recorded, strict=True):
            assert each["headers"].items() <= request.headers.items()
            assert (each["url"], each["timeout"]) == (tavily.URL, 15.0)


@pytest.mark.parametrize("row", rows("host-tools.policy", kind="metadata"), ids=lambda row: row["id"])
def test_the_risk_of_a_tool_is_as_recorded(row: Row) -> None:
    risks = {skill.id: skill.contract.risk for skill in pack(PackContext())}
    name = row["output"].pop("name")
    assert name == row["input"]["tool"]
    assert risks.get(name, Risk()).model_dump() == row["output"]


def test_every_departure_is_a_recorded_row() -> None:
    assert DEPARTURES.keys() <= {row["id"] for row in ROWS}
