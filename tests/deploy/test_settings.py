import re
import stat
from pathlib import Path
from typing import Any

import pytest

from bus import errors, names
from deploy import settings as module
from deploy.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "skillbus.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def lines_of(*arguments: Any, **flags: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        Settings(*arguments, **flags)
    assert str(caught.value) == "\n".join(caught.value.lines)
    return list(caught.value.lines)


def origin(settings: Settings, name: str) -> str:
    return next(row.origin for row in settings.describe() if row.name == name)


def test_the_defaults(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", f"{here}/state")
    settings = Settings()
    assert settings.amqp_url is None
    assert (settings.agent, settings.prefix, settings.instance) == ("skillbus", "a2a", None)
    assert settings.state_dir == here / "state" / "skillbus"
    assert settings.ledger == f"{here}/state/skillbus/ledger.db"
    assert settings.workspaces == here / "state" / "skillbus" / "workspaces"
    assert (settings.slots, settings.lease_seconds, settings.grace_seconds) == (64, 15, 30)
    assert settings.max_message_bytes == 1 << 20
    assert (settings.push_notifications, settings.push_allow, settings.push_http) == (True, (), False)
    assert (settings.packs, settings.only_packs, settings.tools) == ((), None, {})
    assert (settings.log_format, settings.log_level) == ("human", "info")
    assert {row.origin for row in settings.describe()} == {"default"}
    assert all(row.description for row in settings.describe())


def test_without_xdg_the_state_is_below_the_home(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(here))
    assert Settings().state_dir == here / ".local" / "state" / "skillbus"


@pytest.mark.parametrize(
    "url", ["amqp://me:hush@host", "amqp://hush@host", "amqp://host?password=hush", "https://host", "amqp://host/a@b"]
)
def test_the_public_url_holds_no_secret(url: str) -> None:
    (line,) = lines_of(public_url=url)
    assert line.startswith("--public-url: ")
    assert "hush" not in line
    assert Settings(public_url="").public_url is None
    assert Settings(public_url="amqps://host:1/v").public_url == "amqps://host:1/v"


def test_a_later_layer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write('agent = "file"\nprefix = "file"\nslots = 1\n')
    monkeypatch.setenv("SKILLBUS_PREFIX", "env")
    monkeypatch.setenv("SKILLBUS_SLOTS", "2")
    settings = Settings(slots=3, log_level=None)
    assert (settings.agent, settings.prefix, settings.slots) == ("file", "env", 3)
    names = ("agent", "prefix", "slots", "log_level")
    assert [origin(settings, name) for name in names] == ["skillbus.toml", "SKILLBUS_PREFIX", "--slots", "default"]


def test_the_file_is_the_one_that_is_named_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("skillbus.toml", "by-environment.toml", "by-flag.toml"):
        write(f'agent = "{name}"\n', name)
    assert Settings().agent == "skillbus.toml"
    monkeypatch.setenv("SKILLBUS_CONFIG", "by-environment.toml")
    assert Settings().agent == "by-environment.toml"
    assert Settings(Path("by-flag.toml")).agent == "by-flag.toml"


def test_a_named_file_must_be_there(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    assert lines_of("absent.toml") == ["absent.toml: there is no such file"]
    monkeypatch.setenv("SKILLBUS_CONFIG", str(here))
    assert lines_of() == [f"{here}: there is no such file"]


def test_a_file_that_is_not_toml_says_where() -> None:
    write("agent = \n")
    assert lines_of() == ["skillbus.toml: not TOML: Invalid value (at line 1, column 9)"]


def test_unknown_keys_are_named_with_their_place_and_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    write("slot = 1\n")
    monkeypatch.setenv("SKILLBUS_AMPQ_URL", "amqp://user:secret@host")
    lines = lines_of(state_dri="x", zzzzzz=1)
    assert lines[:3] == [
        "skillbus.toml: unknown key slot; did you mean slots?",
        "unknown environment variable SKILLBUS_AMPQ_URL; did you mean SKILLBUS_AMQP_URL?",
        "unknown option --state-dri; did you mean --state-dir?",
    ]
    assert lines[3].startswith("unknown option --zzzzzz; known are --amqp-url, --agent, ")
    assert len(lines) == 4


@pytest.mark.parametrize(
    "name",
    [
        "SKILLBUS_SESSION",
        "SKILLBUS_TEST_AMQP_URL",
        "SKILLBUS_FS_ROOT",
        "SKILLBUS_FS_BACKEND",
        "SKILLBUS_SEARCH_API_KEY_FILE",
        "SKILLBUS_KB_FILE",
        "SKILLBUS_MAIL_DEFAULT_TO",
        "SKILLBUS_ALLOWED_PLUGINS",
        "SKILLBUS_PORT",
        "SKILLBUS_SERVICE_HOST",
        "SKILLBUS_SERVICE_PORT_HTTP",
        "SKILLBUS_GATEWAY_PORT_8080_TCP_ADDR",
    ],
)
def test_what_is_no_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:5672")
    Settings()


def test_what_a_backend_of_another_may_read_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKILLBUS_SEARCH_FLAVOUR", "plum")
    assert lines_of()[0].startswith("unknown environment variable SKILLBUS_SEARCH_FLAVOUR")
    info = tmp_path / "a_backend-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[skillbus.backends]\nsearch.plum = plums:backend\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    Settings()
    monkeypatch.setenv("SKILLBUS_MAIL_FLAVOUR", "plum")
    (line,) = lines_of()
    assert line.startswith("unknown environment variable SKILLBUS_MAIL_FLAVOUR")


def test_lists_and_tables_are_json_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLBUS_PACKS", '["my.pack:skills", "other:pack"]')
    monkeypatch.setenv("SKILLBUS_TOOLS", '{"fs": {"root": "/srv"}}')
    settings = Settings(only_packs=("host",))
    assert settings.packs == ("my.pack:skills", "other:pack")
    assert settings.tools == {"fs": {"root": "/srv"}}
    assert settings.only_packs == ("host",)


def test_tables_for_the_packs_stand_in_the_file() -> None:
    write('packs = ["my.pack:skills"]\n[tools.fs]\nroot = "/srv"\n[tools.mine]\nanything = [1, 2]\n')
    settings = Settings()
    assert settings.tools == {"fs": {"root": "/srv"}, "mine": {"anything": [1, 2]}}
    assert settings.packs == ("my.pack:skills",)


def test_wrong_values_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    write('slots = "many"\nagent = "No Such"\npacks = ["fine:pack", 3]\n')
    monkeypatch.setenv("SKILLBUS_LEASE_SECONDS", "0")
    monkeypatch.setenv("SKILLBUS_TOOLS", "{")
    monkeypatch.setenv("SKILLBUS_LOG_FORMAT", "xml")
    assert sorted(lines_of(max_message_bytes=1, ledger="mysql://host/db", only_packs="host")) == [
        "--ledger: must be the path of a SQLite file",
        "--max-message-bytes: input should be greater than or equal to 1024",
        "--only-packs: must be JSON",
        "SKILLBUS_LEASE_SECONDS: input should be greater than or equal to 0.5",
        "SKILLBUS_LOG_FORMAT: input should be 'human' or 'json'",
        "SKILLBUS_TOOLS: must be JSON",
        "skillbus.toml: agent: must be of a-z 0-9 . _ - and begin with a letter or digit",
        "skillbus.toml: packs[1]: input should be a valid string",
        "skillbus.toml: slots: input should be a valid integer, unable to parse string as an integer",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amqp_url", "https://user:hunter2@host"),
        ("amqp_url", "user:hunter2@host"),
        ("amqp_url", "amqp://"),
        ("amqp_url", ["hunter2"]),
        ("amqp_url", "amqp://u:hunter2/x@h/"),
        ("amqp_url", "amqp://u:hunter2@h:port/"),
        ("amqp_url", "amqp://u:hunter2@h:99999/"),
        ("amqp_url", "amqp://u:hunter2@h:0/"),
        ("amqp_url", "amqp://u:hunter2@[::1"),
        ("amqp_url", "amqp://u:hunter2@[zz]/"),
        ("amqp_url", "amqp://u:hunter2@/"),
        ("amqp_url", "amqp://u:hunter2@a..b/"),
        ("amqp_url", "amqp://u:hunter2@xn--a/"),
        ("amqp_url", "amqp://u:12/hunter2@h/"),
        ("amqp_url", "amqp://u:hun#ter2@h/"),
        ("amqp_url", "amqp://u:hunter2%@h/"),
        ("amqp_url", "amqp://u:hunter2 @h/"),
        ("amqp_url", "amqp://u:hunter2\udcff@h/"),
        ("amqp_url", "amqp://h/?heartbeat=hunter2"),
        ("amqp_url", "amqp://h/?timeout=hunter2"),
        ("ledger", "postgresql://u:p@h:port/db?password=hunter2"),
        ("ledger", "postgresql+asyncpg://u:hunter2@h/db"),
        ("ledger", "hunter2\0"),
        ("state_dir", "hunter2\0"),
        ("workspaces", "hunter2\0"),
        ("ledger", "mysql://user:hunter2@host/db"),
        ("agent", "hunter2 hunter2"),
        ("push_allow", '["hunter2 hunter2"]'),
        ("push_allow", "hunter2"),
        ("packs", '["hunter2"]'),
        ("packs", "hunter2"),
        ("tools", '"hunter2"'),
        ("slots", "hunter2"),
        ("log_level", "hunter2"),
    ],
)
def test_no_error_repeats_a_value(name: str, value: Any) -> None:
    lines = lines_of(**{name: value})
    assert len(lines) == 1
    assert lines[0].startswith(f"--{name.replace('_', '-')}: ")
    assert "hunter2" not in lines[0]


def test_a_url_is_kept_whole_and_never_shown_whole() -> None:
    url = "amqp://user:hunter2@host:5671/vhost"
    settings = Settings(
        amqp_url=url,
        tools={"web": {"api_key": "hunter2", "url": "https://me:hunter2@host"}, "list": [{"token": "hunter2"}]},
    )
    assert settings.amqp_url is not None
    assert settings.amqp_url.get_secret_value() == url
    shown = {row.name: row.value for row in settings.describe()}
    assert shown["amqp_url"] == "amqp://user:***@host:5671/vhost"
    assert shown["tools"] == '{"web":{"api_key":"***","url":"https://me:***@host"},"list":[{"token":"***"}]}'
    for text in (repr(settings), str(settings), repr(settings.describe())):
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://h/?password=hunter2&heartbeat=5", "amqp://h/?password=***&heartbeat=5"),
        ("amqps://h/?keyfile=/k.pem&p%61ssword=hunter2", "amqps://h/?keyfile=/k.pem&p%61ssword=***"),
        ("amqp://u:hun'ter2@h/", "amqp://u:***@h/"),
        ('amqp://u:"<hunter2@[::1]:5672/v', "amqp://u:***@[::1]:5672/v"),
        ("amqp://u:%2Fhunter2@h:1/%2F", "amqp://u:***@h:1/%2F"),
        ("amqp://ü:hünter2@bücher.example/", "amqp://ü:***@bücher.example/"),
    ],
)
def test_a_good_url_is_kept_and_shown_without_its_secrets(url: str, shown: str) -> None:
    settings = Settings(amqp_url=url)
    assert settings.amqp_url is not None
    assert settings.amqp_url.get_secret_value() == url
    assert {row.name: row.value for row in settings.describe()}["amqp_url"] == shown


def test_true_is_no_number() -> None:
    write("slots = true\nlease_seconds = true\ngrace_seconds = false\nmax_message_bytes = true\n")
    names = ("slots", "lease_seconds", "grace_seconds", "max_message_bytes")
    assert lines_of() == [f"skillbus.toml: {name}: must be a number" for name in names]


def test_a_lease_is_long_enough_to_be_renewed() -> None:
    assert Settings(lease_seconds=0.5).lease_seconds == 0.5
    assert lines_of(lease_seconds=1e-9) == ["--lease-seconds: input should be greater than or equal to 0.5"]


def test_postgresql_is_refused_for_now() -> None:
    for url in ("postgresql://h/db", "postgres://h:port/db", "POSTGRESQL+asyncpg://h/db"):
        assert lines_of(ledger=url) == [
            "--ledger: must be the path of a SQLite file: PostgreSQL is not supported for now"
        ]


def test_an_empty_url_means_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    write('amqp_url = "amqp://host"\n')
    monkeypatch.setenv("SKILLBUS_AMQP_URL", "")
    assert Settings().amqp_url is None


def test_paths_are_absolute_and_know_the_home(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setenv("HOME", "/home-of-mine")
    settings = Settings(state_dir="~/state", workspaces="trees", ledger="sqlite:///some.db")
    assert settings.state_dir == Path("/home-of-mine/state")
    assert settings.workspaces == here / "trees"
    assert settings.ledger == str(here / "some.db")
    assert Settings(state_dir="there").ledger == str(here / "there" / "ledger.db")


@pytest.mark.parametrize("name", ["state_dir", "workspaces", "ledger"])
def test_the_home_of_a_user_who_is_not_there_is_no_path(name: str) -> None:
    assert lines_of(**{name: "~nobody-here/x"}) == [
        f"--{name.replace('_', '-')}: begins with the home of a user who is not known here"
    ]


def test_the_state_folder_is_made_for_its_user_alone(here: Path) -> None:
    settings = Settings(state_dir=here / "new" / "state")
    assert settings.prepare_state_dir() == here / "new" / "state"
    assert stat.S_IMODE((here / "new" / "state").stat().st_mode) == 0o700


def test_a_state_folder_that_exists_keeps_its_access(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    here.chmod(0o777)
    Settings(state_dir=here).prepare_state_dir()
    assert stat.S_IMODE(here.stat().st_mode) == 0o777
    assert "other users may write into" in caplog.text


def test_a_state_folder_that_cannot_be_made_is_a_line(here: Path) -> None:
    write("", "file")
    with pytest.raises(SettingsError, match="state_dir: can't make the folder"):
        Settings(state_dir=here / "file" / "state").prepare_state_dir()


def test_names_follow_the_rule_of_the_bus() -> None:
    for name in ("a", "a.b-c_d", "A", "", "-a", "a b", "x" * 64):
        try:
            names.check_agent(name)
            known = True
        except errors.InvalidParams:
            known = False
        assert known == bool(re.fullmatch(module.NAME, name))


def test_the_policy_is_read_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[policy]\ndeny = ["send_reply"]\ndeny_egress = true\n')
    settings = Settings()
    assert (settings.policy.deny, settings.policy.deny_egress, settings.policy.deny_writes) == (
        ("send_reply",), True, False,
    )  # fmt: skip
    assert next(row.value for row in settings.describe() if row.name == "policy") == (
        '{"deny":["send_reply"],"deny_egress":true}'
    )
    write('[policy]\ndeny = "send_reply"\ndeny_egress = "true"\ndeny_ireversible = true\n')
    known = "deny, deny_effects, deny_sensitivity, deny_writes, deny_egress, deny_irreversible"
    assert lines_of() == [
        "skillbus.toml: policy.deny: input should be a list",
        "skillbus.toml: policy.deny_egress: input should be a valid boolean",
        f"skillbus.toml: policy.deny_ireversible: unknown key; known are {known}",
    ]
    monkeypatch.setenv("SKILLBUS_POLICY", '{"deny": ["calc"]}')
    assert Settings().policy.deny == ("calc",)
    monkeypatch.setenv("SKILLBUS_POLICY", "calc")
    assert lines_of() == ["SKILLBUS_POLICY: must be JSON"]
