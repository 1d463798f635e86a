"""The doctor's checks, each against the fault that it is there to find."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import bus
from broker.grants.grant import Grant
from broker.ledger import schema
from broker.ledger.ledger import Ledger
from broker.sessions import mint
from bus import topology
from bus.amqp import connection as amqp
from bus.capabilities import Capabilities
from bus.driver import Outgoing, Properties, Queue
from bus.target import driver_for
from deploy import doctor
from deploy.broker_checks import BrokerChecks
from deploy.doctor import Check, Finding, Level, checks, run
from deploy.permissions import Permissions
from deploy.rabbitmq import PrivateNode
from deploy.settings import Settings
from deploy.topology_broker import TopologyBroker


async def examine(settings: Settings, environ: dict[str, str] | None = None) -> dict[str, list[Finding]]:
    """What every check of this machine finds, by its name."""
    environ = dict(os.environ) if environ is None else environ
    return {check.name: list((await run(check))[0]) for check in checks(settings, environ)}


async def look(settings: Settings) -> dict[str, list[Finding]]:
    """What every check of the broker finds, by its name."""
    made = BrokerChecks(settings)
    found = {check.name: list((await run(check))[0]) for check in made.checks()}
    await made.close()
    return found


def only(findings: Sequence[Finding], level: Level) -> Finding:
    (found,) = findings
    assert found.level is level, found
    assert bool(found.fix) is (level is not Level.OK)
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


@pytest.fixture
async def lived_in(settings: Settings) -> Settings:
    """Settings whose ledger holds one episode, and whose folders are there."""
    settings.prepare_state_dir()
    settings.workspaces.mkdir(mode=0o700)
    async with await Ledger.open(settings.ledger) as ledger:
        await ledger.add_session(mint("ep1", [Grant("E", "s", 1, 1 << 40)], ttl=60)[1])
    return settings


def change(settings: Settings, statement: str) -> None:
    database = sqlite3.connect(settings.ledger, isolation_level=None)
    database.execute(statement)
    database.close()


async def test_a_new_home_is_no_failure(settings: Settings) -> None:
    found = await examine(settings)
    assert [name for name, (finding, *_) in found.items() if finding.level is Level.OK] == [
        "settings", "credential", "git", "packs",
    ]  # fmt: skip
    assert not [each for findings in found.values() for each in findings if each.level is Level.FAILED]
    assert not settings.state_dir.exists()


async def test_a_home_that_is_lived_in_is_well(lived_in: Settings) -> None:
    found = await examine(lived_in)
    assert {finding.level for findings in found.values() for finding in findings} == {Level.OK}
    assert f"schema {schema.VERSION}, writable, the newest entries of 1 hold" in found["ledger"][0].text
    assert "locks hold" in found["workspaces"][0].text
    assert "ailang (8), host (" in found["packs"][0].text
    assert "; below the live tier: " in found["packs"][0].text
    assert "search (stub), search_kb (stub), send_reply (stub)" in found["packs"][0].text
    assert f"state_dir={lived_in.state_dir} (--state-dir)" in found["settings"][0].text
    assert sorted(path.name for path in lived_in.workspaces.iterdir()) == []


async def test_settings_show_no_secret(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, amqp_url="amqp://me:hush@host/")
    text = (await examine(settings))["settings"][0].text
    assert "amqp_url=amqp://me:***@host/ (--amqp-url)" in text


@pytest.mark.parametrize(
    ("mode", "level", "what"), [(0o750, Level.WARNING, "look into"), (0o770, Level.FAILED, "write into")]
)
async def test_a_state_that_others_reach(lived_in: Settings, mode: int, level: Level, what: str) -> None:
    lived_in.state_dir.chmod(mode)
    found = only((await examine(lived_in))["state"], level)
    assert what in found.text
    assert found.fix == f"chmod 700 {lived_in.state_dir}"


async def test_a_state_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = await examine(Settings(state_dir=tmp_path / "file", ledger=tmp_path / "l", workspaces=tmp_path))
    assert "is no folder" in only(found["state"], Level.FAILED).text


async def test_a_credential_s_file(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "ep1.session"
    file.touch(mode=0o600)
    environ = {"SKILLBUS_SESSION": str(file)}
    assert "for this user alone" in only((await examine(settings, environ))["credential"], Level.OK).text
    file.chmod(0o640)
    assert only((await examine(settings, environ))["credential"], Level.FAILED).fix == f"chmod 600 {file}"
    secret = "ab" * 32
    found = only((await examine(settings, {"WORLD_SESSION": secret}))["credential"], Level.OK)
    assert found.text == "in WORLD_SESSION"
    found = only((await examine(settings, {"WORLD_SESSION": secret + "c"}))["credential"], Level.FAILED)
    assert secret not in found.text + found.fix


async def test_a_ledger_that_can_only_be_read(lived_in: Settings) -> None:
    # The write version in a SQLite file's header: one that is not known makes the file read-only, for root as well.
    file = Path(lived_in.ledger)
    data = file.read_bytes()
    file.write_bytes(data[:18] + b"\3" + data[19:])
    found = only((await examine(lived_in))["ledger"], Level.FAILED)
    assert "readonly" in found.text
    assert "free space" in found.fix


async def test_a_ledger_of_another_schema(lived_in: Settings) -> None:
    change(lived_in, "UPDATE facts SET value = '99' WHERE name = 'schema'")
    assert "it has schema 99" in only((await examine(lived_in))["ledger"], Level.FAILED).text
    change(lived_in, "UPDATE facts SET value = '0' WHERE name = 'schema'")
    assert "stop the workers" in only((await examine(lived_in))["ledger"], Level.WARNING).fix
    Path(lived_in.ledger).write_bytes(b"")
    assert "no ledger" in only((await examine(lived_in))["ledger"], Level.WARNING).text


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE episodes SET log_head = 'sha256:0'",
        "UPDATE episodes SET revision = 7",
        "INSERT INTO entries VALUES ('ep1', 1, 'sha256:0', x'00', 't')",
    ],
)
async def test_a_head_that_does_not_hold(lived_in: Settings, statement: str) -> None:
    change(lived_in, statement)
    found = only((await examine(lived_in))["ledger"], Level.FAILED)
    assert "not what was written in ep1" in found.text
    assert "skillbus log verify ep1" in found.fix


async def test_a_ledger_that_is_none(lived_in: Settings) -> None:
    Path(lived_in.ledger).write_bytes(b"certainly no database" * 100)
    assert "not a database" in only((await examine(lived_in))["ledger"], Level.FAILED).text


async def test_a_ledger_in_use_by_a_writer_is_said(lived_in: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIMIT", 0.2)
    database = sqlite3.connect(lived_in.ledger, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    assert "locked" in only((await examine(lived_in))["ledger"], Level.FAILED).text
    database.close()


@pytest.mark.parametrize(("kind", "level"), [("nfs4", Level.FAILED), ("cifs", Level.FAILED), ("9p", Level.WARNING)])
async def test_a_ledger_on_a_shared_file_system(
    lived_in: Settings, monkeypatch: pytest.MonkeyPatch, kind: str, level: Level
) -> None:
    monkeypatch.setattr(doctor, "_kind_of", lambda _: kind)
    ledger, where = (await examine(lived_in))["ledger"]
    assert ledger.level is Level.OK
    assert (where.level, kind in where.text) == (level, True)


def test_the_file_system_of_a_path_is_known() -> None:
    assert doctor._kind_of(Path("/proc/self")) == "proc"


async def test_workspaces_that_can_not_be_used(lived_in: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    assert "does not keep others out" in only((await examine(lived_in))["workspaces"], Level.FAILED).text
    monkeypatch.undo()
    lived_in.workspaces.rmdir()
    lived_in.workspaces.touch()
    assert "let this user write" in only((await examine(lived_in))["workspaces"], Level.FAILED).fix


async def test_without_git(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    assert "not installed" in only((await examine(settings))["git"], Level.WARNING).text
    (empty / "git").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (empty / "git").chmod(0o755)
    assert "does not run: broken" in only((await examine(settings))["git"], Level.WARNING).text


async def test_a_backend_that_can_not_be_made(tmp_path: Path) -> None:
    environ = {"SKILLBUS_MAIL_BACKEND": "smtp", "SKILLBUS_MAIL_PASSWORD": "hush"}
    (found,) = (await examine(Settings(state_dir=tmp_path), environ=environ))["packs"]
    assert (found.level, found.text) == (
        Level.FAILED, "backend 'mail.smtp' is left out: set SKILLBUS_MAIL_HOST to the name of the mail server",
    )  # fmt: skip
    assert found.fix.startswith("mend the backend")


async def test_what_of_the_tools_is_not_taken(tmp_path: Path) -> None:
    tools = {"mail": {"password": "hush", "hots": "mail.example"}, "kb": {"file": str(tmp_path / "none.db")}}
    loaded, *doubts = (await examine(Settings(state_dir=tmp_path, tools=tools), environ={}))["packs"]
    assert loaded.level is Level.OK
    assert {finding.level for finding in doubts} == {Level.WARNING}
    said = " ".join(finding.text for finding in doubts)
    assert [part in said for part in ("tools.mail.password is", "tools.mail.hots is", "kb add", "hush")] == [
        True, True, True, False,
    ]  # fmt: skip


async def test_packs_that_can_not_be_loaded(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, packs=("tests.packs:broken", "nowhere.at:all"), only_packs=())
    found = (await examine(settings))["packs"]
    assert [finding.level for finding in found] == [Level.FAILED] * 3
    assert "this pack can't be made" in found[0].text
    assert "nowhere" in found[1].text
    assert "no skill to serve" in found[2].text


async def test_a_check_ends_in_time_and_raises_nothing() -> None:
    release = threading.Event()

    async def hang() -> list[Finding]:
        await asyncio.to_thread(release.wait)
        return []

    async def raising() -> list[Finding]:
        raise RuntimeError("with amqp://me:hush@host/ in it")

    try:
        findings, given_up = await run(Check("slow", hang, "mend it", limit=0.05))
    finally:
        release.set()
    assert (given_up, only(findings, Level.FAILED).fix) == (True, "mend it")
    assert "no answer within 0.05 s" in findings[0].text
    findings, given_up = await run(Check("raising", raising))
    assert not given_up
    assert "hush" not in only(findings, Level.FAILED).text


# the broker


async def test_without_a_broker_there_is_one_line(settings: Settings) -> None:
    found = await look(settings)
    assert only(found.pop("rabbitmq"), Level.OK).text == "in process: none configured"
    assert not any(found.values())


async def test_nobody_listens(settings: Settings) -> None:
    found = await look(settings.model_copy(update={"amqp_url": _secret("amqp://guest:hush@127.0.0.1:1/")}))
    finding = only(found.pop("rabbitmq"), Level.FAILED)
    assert "check that the broker is up" in finding.fix
    assert "hush" not in finding.text
    assert not any(found.values())


async def test_a_broker_that_never_answers(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.broker_checks.CONNECT", 0.2)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = await look(settings.model_copy(update={"amqp_url": _secret(f"amqp://127.0.0.1:{port}/")}))
    assert "no answer within 0.2 s" in only(found["rabbitmq"], Level.FAILED).text
    server.close()
    await server.wait_closed()


def _secret(url: str) -> object:
    return Settings(amqp_url=url).amqp_url


@pytest.fixture
def on_broker(tmp_path: Path, rabbitmq_url: str, unique_prefix: str) -> Settings:
    return Settings(state_dir=tmp_path / "state", amqp_url=rabbitmq_url, prefix=unique_prefix, agent="tools")


async def answers(_request: bus.Request, reply: bus.Reply) -> None:
    await reply.send({})


async def test_a_broker_that_is_served(on_broker: Settings, rabbitmq_url: str) -> None:
    found = await look(on_broker)
    assert "no worker has served 'tools'" in only(found["agent"], Level.WARNING).text
    assert "declares, writes and reads" in only(found["permissions"], Level.OK).text
    missing = found["topology"][0]
    assert missing.level is Level.FAILED
    assert f"queue {on_broker.prefix}.q.tools" in missing.text
    assert missing.fix == "`skillbus topology apply`"
    async with TopologyBroker(on_broker) as broker:
        await broker.apply(await broker.plan())
    async with await bus.serve(rabbitmq_url, "tools", answers, prefix=on_broker.prefix, declare=False):
        found = await look(on_broker)
    unseen = only(found.pop("topology"), Level.WARNING)
    assert unseen.text == "not looked at: bindings, policies: no management API is named (--management-url)"
    assert {finding.level for findings in found.values() for finding in findings} == {Level.OK}
    assert "safe-dead-letters" in found["rabbitmq"][0].text
    assert "0 waiting, 1 worker(s)" in found["agent"][0].text
    assert "not there yet" not in found["permissions"][0].text
    await bus.remove(rabbitmq_url, "tools", prefix=on_broker.prefix, shared=True)


async def test_what_waits_and_what_is_dead(on_broker: Settings, rabbitmq_url: str) -> None:
    names = bus.Names(on_broker.prefix)
    connection = await driver_for(rabbitmq_url).connect("test")
    parts = (*topology.agent(names, "tools"), topology.parked(names))
    await connection.declare(*parts)
    for queue in (names.queue("tools"), names.dead, names.parked):
        await connection.publish(Outgoing("", queue, b"{}", Properties(persistent=True)))
    found = await look(on_broker)
    assert "1 waiting, 0 worker(s): nobody takes them" in only(found["agent"], Level.FAILED).text
    assert "nobody reads them" in only(found["dead letters"], Level.FAILED).text
    await connection.delete(Queue(names.dead))
    found = await look(on_broker)
    assert only(found["dead letters"], Level.WARNING).text == "1 parked"
    await connection.delete(*parts)
    await connection.close()


async def test_a_queue_with_other_arguments(on_broker: Settings, rabbitmq_url: str) -> None:
    names = bus.Names(on_broker.prefix)
    connection = await driver_for(rabbitmq_url).connect("test")
    queue = Queue(names.queue("tools"), arguments={"x-queue-type": "quorum", "x-max-length": 3})
    await connection.declare(queue)
    finding = (await look(on_broker))["topology"][0]
    assert finding.level is Level.FAILED
    assert f"queue {queue.name} has other arguments" in finding.text
    assert f"rabbitmqctl delete_queue {queue.name}" in finding.fix
    await connection.delete(queue)
    await connection.close()


async def test_a_version_that_is_refused_or_unknown(on_broker: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp, "capabilities", lambda _: Capabilities("RabbitMQ", "3.13.1", (3, 13, 1)))
    finding = only((await look(on_broker))["rabbitmq"], Level.FAILED)
    assert "#11159" in finding.text
    assert finding.fix == "upgrade RabbitMQ"
    monkeypatch.setattr(amqp, "capabilities", lambda _: Capabilities("OtherMQ", "1"))
    assert "OtherMQ 1 is not in the table" in only((await look(on_broker))["rabbitmq"], Level.WARNING).text


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        ("guest:guest@", "guest:hush-hush@", "mend the user or the password"),
        ("guest:guest@", "nobody:hush-hush@", "mend the user or the password"),
        ("/", "/nowhere", "rabbitmqctl add_vhost"),
    ],
)
async def test_a_way_in_that_is_closed(
    settings: Settings, rabbitmq_url: str, before: str, after: str, fix: str
) -> None:
    url = rabbitmq_url.rstrip("/") + "/"
    head, _, tail = url.rpartition(before)
    found = await look(settings.model_copy(update={"amqp_url": _secret(f"{head}{after}{tail}")}))
    finding = only(found.pop("rabbitmq"), Level.FAILED)
    assert fix in finding.fix
    assert "hush" not in finding.text + finding.fix
    assert not any(found.values())


@pytest.fixture
def limited(rabbitmq_node: PrivateNode, unique_prefix: str) -> Iterator[tuple[PrivateNode, str]]:
    """A node with a user that may do nothing, named after the prefix."""
    rabbitmq_node.ctl("add_user", unique_prefix, "hush-hush")
    yield rabbitmq_node, unique_prefix
    rabbitmq_node.ctl("delete_user", unique_prefix)


async def test_permissions_one_by_one(limited: tuple[PrivateNode, str], tmp_path: Path) -> None:
    node, name = limited
    url = node.url.replace("guest:guest", f"{name}:hush-hush")
    settings = Settings(state_dir=tmp_path, amqp_url=url, prefix=name, agent="tools")
    found = await look(settings)
    assert "let the user in" in only(found["rabbitmq"], Level.FAILED).fix
    ours, none = rf"^{name}\..*", "^$"
    connection = await driver_for(node.url).connect("test")
    await connection.declare(*topology.agent(bus.Names(name), "tools"))
    for rights, serving, calling in (
        ((none, ours, ours), "may not declare", "may not declare"),
        ((ours, ours, none), "may not read", "may not read"),
        ((ours, none, ours), "may not write to the default exchange", f"may not write to {name}.requests"),
        ((ours, r"^amq\.default$", ours), "", f"may not write to {name}.requests"),
        ((ours, rf"^{name}\.requests$", ours), "may not write to the default exchange", ""),
        ((ours, rf"^({name}\..*|amq\.default)$", ours), "", ""),
    ):
        await asyncio.to_thread(node.ctl, "set_permissions", name, *rights)
        findings = (await look(settings))["permissions"]
        said = " ".join(finding.text + finding.fix for finding in findings)
        assert serving in said
        assert calling in said
        assert "hush" not in said
        # A user may be a worker's or a caller's: one that is neither is wrong.
        wrong = bool(serving and calling)
        assert {finding.level for finding in findings} == {Level.FAILED if wrong else Level.OK}
        assert (f"set_permissions -p / {name}" in said) is wrong
    await connection.delete(*topology.agent(bus.Names(name), "tools"))
    await connection.close()


async def test_a_broker_with_an_alarm(limited: tuple[PrivateNode, str], tmp_path: Path) -> None:
    node, name = limited
    names = bus.Names(name)
    connection = await driver_for(node.url).connect("test")
    await connection.declare(topology.requests(names))
    await asyncio.to_thread(node.ctl, "set_permissions", name, *Permissions.caller(names, name))
    # Of a user that is a caller alone nobody says, because of the alarm, that it may not be a worker.
    users = [node.url, node.url.replace("guest:guest", f"{name}:hush-hush")]
    for_each = [Settings(state_dir=tmp_path, amqp_url=url, prefix=name) for url in users]
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.00000001")
    try:
        findings = [only((await look(settings))["permissions"], Level.FAILED) for settings in for_each]
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")
    for finding in findings:
        assert "it has an alarm" in finding.text
        assert "rabbitmq-diagnostics alarms" in finding.fix
    for settings in for_each:
        assert only((await look(settings))["permissions"], Level.OK)
    await connection.delete(topology.requests(names))
    await connection.close()
