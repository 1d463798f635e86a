import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from skills import Catalog, PackContext, Problem
from skills.host import BackendError, Outgoing, bind, pack, resolve, search, search_kb, send_reply
from skills.host.bindings import BUILTIN, is_allowed
from skills.host.settings import Setting
from tests.skills.host.asking import ask
from tests.vectors import parametrize

MODULE = "a_backend_of_tests"
SOURCE = """
from skills.host import BackendError

class Search:
    async def search(self, query, *, max_results, days, topic):
        if query == "limit":
            raise BackendError("slow down", retryable=True, retry_after=3.0)
        if query == "bug":
            raise RuntimeError("token=hush")
        return [{"title": query, "url": "https://x.example", "snippet": f"{max_results} {days} {topic}"}] * 20

def search(context):
    assert context.option("flavour") == "plum"
    return Search()

def broken(context):
    raise RuntimeError("token=hush")

def leaves(context):
    raise SystemExit(3)

def wrong(context):
    return object()

value = 7
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a distribution installed that registers these backends."""

    def install(**points: str) -> None:
        info = tmp_path / "a_backend-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-backend\nVersion: 1\n")
        lines = "".join(f"{name.replace('__', '.')} = {MODULE}:{value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[skillbus.backends]\n{lines}")
        (tmp_path / f"{MODULE}.py").write_text(SOURCE)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, MODULE, raising=False)

    yield install
    sys.modules.pop(MODULE, None)


def context(config: Any = None, problems: list[Problem] | None = None, **environ: str) -> PackContext:
    report = (lambda _: None) if problems is None else problems.append
    return PackContext(config or {}, environ, report)


@parametrize("host-tools.policy", kind="resolve_search")
def test_search_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    assert resolve("search", PackContext(row["config"], row["env"])) == Setting(*row["output"])
    assert resolve("search", PackContext({}, row["env"]), original=row["config"]) == Setting(*row["output"])


@parametrize("host-tools.policy", kind="resolve_kb")
def test_kb_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    assert resolve("kb", PackContext(row["config"], row["env"])) == Setting(*row["output"])
    assert resolve("kb", PackContext({}, row["env"]), original=row["config"]) == Setting(*row["output"])


@parametrize("host-tools.policy", kind="resolve_mail")
def test_mail_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    assert resolve("mail", PackContext(row["config"], row["env"])) == Setting(*row["output"])
    assert resolve("mail", PackContext({}, row["env"]), original=row["config"]) == Setting(*row["output"])


@parametrize("host-tools.policy", kind="allowed_plugin")
def test_a_plugin_is_allowed_as_recorded(row: dict[str, Any]) -> None:
    assert is_allowed(row["input"]["name"], row["env"]) is row["output"]
    ours = {name.replace("MKLANG", "SKILLBUS"): value for name, value in row["env"].items()}
    assert is_allowed(row["input"]["name"], ours) is row["output"]


def test_the_layers_in_their_order() -> None:
    config: dict[str, Any] = {"search": {"backend": "fake"}}
    original = {"search": {"backend": "tavily"}}
    found = [
        resolve("search", context(config, SKILLBUS_SEARCH_BACKEND="searxng", MKLANG_SEARCH_BACKEND="stub")),
        resolve("search", context(config, SKILLBUS_SEARCH_BACKEND=" ", MKLANG_SEARCH_BACKEND="tavily")),
        resolve("search", context(config), original=original),
        resolve("search", context({"search": {"backend": ""}}), original=original),
        resolve("search", context(TAVILY_API_KEY="k")),
        resolve("search", context(SKILLBUS_SEARCH_API_KEY="k", SKILLBUS_SEARCH_BACKEND="none")),
        resolve("search", context()),
    ]
    assert [(each.value, each.source) for each in found] == [
        ("searxng", "env"), ("tavily", "env"), ("fake", "config"), ("tavily", "config"), ("tavily", "default"),
        ("stub", "env"), ("stub", "default"),
    ]  # fmt: skip


def test_a_name_that_nobody_knows_is_reported_without_it() -> None:
    problems: list[Problem] = []
    assert bind("mail", context({"mail": {"backend": "hush"}}, problems)).tier == "stub"
    assert [str(problem) for problem in problems] == [
        "backend 'mail' is left out: tools.mail.backend names none of fake, smtp"
    ]
    bind("mail", context({"mail": {"backend": "off"}}, problems))
    assert len(problems) == 1


def test_each_tier_tells_how_to_raise_it() -> None:
    skills = {skill.id: skill for skill in pack(context())}
    assert "TAVILY_API_KEY" in skills["search"].raise_tier
    assert "skillbus kb add" in skills["search_kb"].raise_tier
    assert "SKILLBUS_MAIL_HOST" in skills["send_reply"].raise_tier
    assert skills["calc"].raise_tier == skills["read_file"].raise_tier == ""
    offline = {skill.id: skill for skill in pack(context({"fs": {"backend": "stub"}}, TAVILY_API_KEY="k"))}
    assert "SKILLBUS_FS_BACKEND" in offline["read_file"].raise_tier
    assert (offline["search"].tier, offline["search"].raise_tier) == ("live", "")


def test_what_is_named_and_lacks_something_tells_what() -> None:
    def raising(kind: Any, **environ: str) -> str:
        return bind(kind, context(None, [], **environ)).raise_tier

    assert raising("search", SKILLBUS_SEARCH_BACKEND="searxng") == "set SKILLBUS_SEARCH_URL to the URL of the instance"
    for named in ("off", "fake", "plum"):
        assert raising("search", SKILLBUS_SEARCH_BACKEND=named, TAVILY_API_KEY="k").endswith(
            "; and take out the backend that is named now"
        )
    assert raising("mail", MKLANG_MAIL_BACKEND="fake").startswith("set SKILLBUS_MAIL_BACKEND=smtp")
    assert "take out" not in raising("search") + raising("mail", SKILLBUS_MAIL_BACKEND="stub")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (1, ["tools.search is not taken: it must be a table"]),
        ({"backend": 1}, ["tools.search.backend is not taken: it must be a string"]),
        ({"url": ["hush"]}, ["tools.search.url is not taken: it must be a string"]),
        ({"urk": "hush"}, ["tools.search.urk is not taken: known are api_key_file, backend, url"]),
        ({"api_key": "hush"},
         ["tools.search.api_key is not taken: a secret stands in the environment, or in the file of api_key_file"]),
        ({"backend": "fake", "url": "https://x.example"}, []),
    ],
)  # fmt: skip
def test_what_of_a_table_is_not_taken_is_warned_of(
    table: Any, says: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    bind("search", context({"search": table}))
    assert [record.getMessage() for record in caplog.records] == says
    assert "hush" not in caplog.text


# backends of others


async def test_a_backend_of_another_distribution_is_served(installed: Any) -> None:
    installed(search__plum="search")
    config = {"search": {"backend": "Plum", "flavour": "plum"}}
    binding = bind("search", context(config))
    assert (binding.name, binding.source, binding.tier, binding.raise_tier) == ("plum", "config", "live", "")
    skill = search(binding)
    output = await ask(skill, {"query": "q", "max_results": 2, "days": 3, "topic": "news"})
    row = {"title": "q", "url": "https://x.example", "snippet": "2 3 news"}
    assert (output["results"], output["stub"]) == ([row, row], False)
    limited = await ask(skill, {"query": "limit"})
    assert (limited["error"], limited["retryable"], limited["retry_after"]) == ("search failed: slow down", True, 3.0)
    bug = await ask(skill, {"query": "bug"})
    assert (bug["error"], bug["retryable"]) == ("search failed: the backend raised RuntimeError", False)
    assert bind("search", context(config, SKILLBUS_SEARCH_BACKEND="plum")).source == "env"
    assert bind("search", context(config, MKLANG_SEARCH_BACKEND="plum")).tier == "stub", "the original has no such name"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broken", "it can't be made (RuntimeError)"),
        ("leaves", "it can't be made (SystemExit)"),
        ("wrong", "what was made is a object without a method search"),
        ("value", f"{MODULE}:value is not a function that makes a backend"),
        ("nothing", "it can't be made (AttributeError)"),
    ],
)
def test_a_backend_that_can_not_be_made_is_reported_and_left_out(installed: Any, value: str, reason: str) -> None:
    installed(search__plum=value, search__fine="search")
    problems: list[Problem] = []
    binding = bind("search", context({"search": {"backend": "plum"}}, problems))
    assert (binding.name, binding.tier, binding.backend) == ("stub", "stub", None)
    assert problems == [Problem("search.plum", reason, "backend", "a-backend 1")]


def test_a_backend_that_nobody_chose_is_not_loaded(installed: Any) -> None:
    installed(search__plum="broken")
    problems: list[Problem] = []
    assert bind("search", context({"search": {"backend": "fake"}}, problems)).tier == "fake"
    assert problems == []
    assert MODULE not in sys.modules


def test_nobody_takes_the_name_of_another(installed: Any) -> None:
    installed(search__fake="search", mail__smtp="search", kb__off="search", plain="search", other__x="search")
    problems: list[Problem] = []
    assert len(list(pack(context({}, problems)))) == 7
    assert sorted((problem.pack, problem.reason.partition(":")[0]) for problem in problems) == [
        ("kb.off", "its name is taken"),
        ("mail.smtp", "its name is taken"),
        ("other.x", "its name must be search., kb. or mail. and a-z 0-9 _ -"),
        ("plain", "its name must be search., kb. or mail. and a-z 0-9 _ -"),
        ("search.fake", "its name is taken"),
    ]
    assert bind("search", context({"search": {"backend": "fake"}})).tier == "fake"


def test_of_two_with_one_name_the_second_is_left_out(installed: Any, tmp_path: Path) -> None:
    installed(search__plum="search")
    info = tmp_path / "b_backend-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: b-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[skillbus.backends]\nsearch.plum = {MODULE}:wrong\n")
    problems: list[Problem] = []
    binding = bind("search", context({"search": {"backend": "plum", "flavour": "plum"}}, problems))
    assert binding.tier == "live"
    assert problems == [Problem("search.plum", "its name is taken", "backend", "b-backend 1")]


def test_the_operator_lets_in_whom_he_lists(installed: Any) -> None:
    installed(search__plum="search")
    config = {"search": {"backend": "plum", "flavour": "plum"}}
    assert bind("search", context(config, SKILLBUS_ALLOWED_PLUGINS="x, search.plum")).tier == "live"
    for listed in ("plum", "*", ",", "SEARCH.PLUM"):
        problems: list[Problem] = []
        assert bind("search", context(config, problems, MKLANG_ALLOWED_PLUGINS=listed)).tier == "stub"
        assert problems[0].reason == "SKILLBUS_ALLOWED_PLUGINS does not list it"


def test_the_catalog_tells_of_a_backend_that_is_left_out(installed: Any) -> None:
    installed(search__plum="broken")
    catalog = Catalog.load(context({"search": {"backend": "plum"}}), only={"host"})
    assert "search" in catalog
    assert [str(problem) for problem in catalog.problems] == [
        "backend 'search.plum' of a-backend 1 is left out: it can't be made (RuntimeError)"
    ]


def test_variables_that_nobody_reads_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    bind("mail", context(SKILLBUS_MAIL_HOTS="hush", SKILLBUS_MAIL_PASSWORD="x", SKILLBUS_MAIL_PASSWORD_FILE="x"))
    bind("kb", context(SKILLBUS_KB_FILE=""))
    bind("search", context(SKILLBUS_SEARCH_BAKEND="hush"))
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "SKILLBUS_MAIL_HOTS is not taken", "SKILLBUS_SEARCH_BAKEND is not taken",
    ]  # fmt: skip
    assert "SKILLBUS_SEARCH_API_KEY, SKILLBUS_SEARCH_API_KEY_FILE, SKILLBUS_SEARCH_BACKEND" in caplog.text
    assert "hush" not in caplog.text


def test_a_table_called_like_a_tool_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    tuple(pack(context({"search_kb": {"file": "kb.db"}, "search": {}, "clock": {}})))
    assert caplog.messages == ["tools.search_kb is not taken: the table of this tool is tools.kb"]


def test_a_backend_of_others_knows_what_it_takes(installed: Any, caplog: pytest.LogCaptureFixture) -> None:
    installed(search__plum="search")
    config = {"search": {"flavour": "plum"}}
    asked = context(config, SKILLBUS_SEARCH_BACKEND="plum", SKILLBUS_SEARCH_TASTE="sour")
    assert bind("search", asked).tier == "live"
    assert caplog.messages == []


async def test_the_fakes_are_deterministic() -> None:
    skills = {skill.id: skill for skill in pack(context(
        {"search": {"backend": "fake"}, "kb": {"backend": "fake"}, "mail": {"backend": "fake"}}
    ))}  # fmt: skip
    for name, arguments in (("search", {"query": "it's"}), ("search_kb", {"q": "x"}), ("send_reply", {"body": "b"})):
        first = await ask(skills[name], arguments)
        assert (first["stub"], first["error"]) == (True, None)
        assert await ask(skills[name], arguments) == first
    binding = bind("mail", context({"mail": {"backend": "fake"}}))
    for invocation in ("one", "one", "two"):
        await ask(send_reply(binding), {"to": "ada", "body": "hello"}, invocation=invocation)
    assert [(each.to, each.body, key) for key, each in binding.backend.outbox.items()] == [
        ("ada", "hello", "one"), ("ada", "hello", "two"),
    ]  # fmt: skip
    assert isinstance(binding.backend.outbox["one"], Outgoing)
    assert search_kb(bind("kb", context())).tier == "stub"
    assert issubclass(BackendError, Exception)


# the page

PAGE = (Path(__file__).parents[3] / "docs" / "host-tools.md").read_text()


def test_the_table_of_the_page_is_taken_as_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = tomllib.loads(text)
    tools = config["tools"]
    tools["mail"]["password_file"] = str(tmp_path / "mail")
    tools["kb"]["file"] = str(tmp_path / "kb.db")
    (tmp_path / "kb.db").touch()
    (tmp_path / "mail").write_text("hush")
    tiers = {skill.id: skill.tier for skill in pack(PackContext(tools))}
    assert set(tiers.values()) == {"live"}
    assert caplog.records == []


async def test_the_backend_of_the_page_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (source,) = re.findall(r"<!-- a backend -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    info = tmp_path / "page-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[skillbus.backends]\nkb.tickets = page_of_tests:tickets\n")
    (tmp_path / "page_of_tests.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bind("kb", context({"kb": {"backend": "tickets"}})).tier == "stub"
    skill = search_kb(bind("kb", context({"kb": {"backend": "tickets", "url": "https://t.example"}})))
    assert (await ask(skill, {"query": "login"}))["facts"] == ["https://t.example/1: login"]
    busy = await ask(skill, {"query": "busy"})
    assert (busy["error"], busy["retryable"], busy["retry_after"]) == (
        "kb lookup failed: the ticket system is busy", True, 5,
    )  # fmt: skip


def test_the_page_tells_of_every_setting() -> None:
    options = {option for builtins in BUILTIN.values() for builtin in builtins.values() for option in builtin.options}
    assert [option for option in sorted(options) if f"`{option}`" not in PAGE] == []
    for kind, builtins in BUILTIN.items():
        assert f"SKILLBUS_{kind.upper()}_BACKEND" in PAGE
        assert [name for name in builtins if f"`{name}`" not in PAGE] == []
