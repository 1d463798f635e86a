"""The topology on a real broker with its management API: planned, applied, checked, and what workers make of it."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import bus
from bus import topology
from bus.discovery.control import ask
from bus.discovery.heartbeats import watch
from bus.discovery.vitals import Pong
from bus.driver import Binding, Connection, Exchange, Outgoing, Part, Properties, Queue
from bus.target import driver_for
from deploy.rabbitmq import PrivateNode
from tests.conformance.stage import PATIENCE, soon
from tests.conformance.test_calls import HELLO
from tests.deploy.conftest import LIMIT, ROOT, Ended, Home, until

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.usefixtures("rabbitmq_programs"),
    pytest.mark.xdist_group("rabbitmq_management"),
]

Skillbus = Callable[..., Ended]


@pytest.fixture(scope="module")
def node(rabbitmq_programs: None) -> Iterator[PrivateNode]:
    with PrivateNode(management=True) as started:
        yield started


class Desk:
    """A prefix on the node, and the hands to change what stands there."""

    def __init__(self, node: PrivateNode, prefix: str) -> None:
        self.node = node
        self.names = bus.Names(prefix)
        self.whole = topology.whole(self.names, ["tools"])

    def run(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Work on a bare connection."""

        async def connected() -> Any:
            connection = await driver_for(self.node.url).connect("test")
            try:
                return await soon(work(connection))
            finally:
                await connection.close()

        return asyncio.run(connected())

    def declare(self, *parts: Part) -> None:
        self.run(lambda connection: connection.declare(*parts))

    def missing(self) -> tuple[Part, ...]:
        found: tuple[Part, ...] = self.run(lambda connection: connection.missing(*self.whole.parts))
        return found

    def count(self, queue: str) -> int:
        found = self.run(lambda connection: connection.tally(queue))
        return int(found.messages)

    def publish(self, queue: str) -> None:
        message = Outgoing("", queue, b"{}", Properties(persistent=True))
        self.run(lambda connection: connection.publish(message))

    def set_policy(self, name: str, pattern: str, priority: int = 10, **limits: int) -> None:
        definition = json.dumps({key.replace("_", "-"): value for key, value in limits.items()})
        self.node.ctl("set_policy", "--priority", str(priority), "--apply-to", "queues", name, pattern, definition)


@pytest.fixture
def desk(node: PrivateNode, unique_prefix: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(node, unique_prefix)
    for name, value in (
        ("SKILLBUS_AMQP_URL", node.url),
        ("SKILLBUS_MANAGEMENT_URL", node.management_url),
        ("SKILLBUS_PREFIX", unique_prefix),
        ("SKILLBUS_AGENT", "tools"),
    ):
        monkeypatch.setenv(name, value)
        home.environment[name] = value
    return made  # what it leaves ends with the node


def drift(skillbus: Skillbus, *options: str) -> dict[str, str]:
    """The subjects that `check` finds not as described, with what it says."""
    ended = skillbus("topology", "check", "--json", *options)
    told = json.loads(ended.out)
    assert told["unseen"] == []
    assert ended.code == (1 if told["drift"] else 0)
    return {each["subject"]: each["text"] for each in told["differences"] if each["drift"]}


def test_an_empty_broker_gets_everything_once(skillbus: Skillbus, desk: Desk) -> None:
    planned = skillbus("topology", "plan")
    assert planned.code == 0
    count = len(desk.whole.parts) + len(desk.whole.policies)
    assert len(re.findall("^[+] ", planned.out, re.MULTILINE)) == count
    assert planned.out.endswith(f"{count} not as described\n")
    assert desk.missing() == tuple(part for part in desk.whole.parts if not isinstance(part, Binding))  # only looked

    applied = skillbus("topology", "apply")
    assert (applied.code, applied.err) == (0, "")
    assert applied.out.endswith(f"{count} made; all is as described\n")
    assert desk.missing() == ()
    again = skillbus("topology", "apply")
    assert again == Ended(0, "nothing to do: all is as described\n", "")
    assert skillbus("topology", "check") == Ended(0, "all is as described\n", "")
    assert skillbus("topology", "apply", "--json").out.count('"applied": []') == 1
    # An agent more is only what it needs itself.
    more = json.loads(skillbus("topology", "plan", "--json", "--agent", "tools", "--agent", "other").out)
    assert {each["subject"] for each in more["differences"]} == {
        f"queue {desk.names.queue('other')}",
        f"queue {desk.names.ask('other')}",
        f"queue {desk.names.batch('other')}",
        f"binding {desk.names.requests} → {desk.names.queue('other')} ('other')",
        f"binding {desk.names.requests} → {desk.names.ask('other')} ('other.ask')",
        f"binding {desk.names.requests} → {desk.names.batch('other')} ('other.batch')",
    }


def test_what_was_changed_by_hand_is_found_and_mended(skillbus: Skillbus, desk: Desk) -> None:
    assert skillbus("topology", "apply").code == 0
    prefix = desk.names.prefix
    desk.set_policy(f"{prefix}.q", rf"^{prefix}\.q\.", max_length=5)
    desk.declare(Binding(desk.names.requests, desk.names.parked, "tools"))
    desk.run(lambda connection: connection.delete(Exchange(desk.names.dead, "fanout")))
    assert drift(skillbus) == {
        f"exchange {desk.names.dead}": "is not there",
        f"binding {desk.names.dead} → {desk.names.dead} ('')": "is not there",
        f"policy {prefix}.q": "max-length is 5, not 10000; max-length-bytes is not set, not 1073741824; "
        "delivery-limit is not set, not 5",
        f"binding {desk.names.requests} → {desk.names.parked} ('tools')": "leads where nothing of ours should go",
    }
    applied = skillbus("topology", "apply")
    assert applied.code == 1  # taking away is left to people
    assert applied.out.endswith("3 made; 1 to be done by hand\n")
    assert list(drift(skillbus)) == [f"binding {desk.names.requests} → {desk.names.parked} ('tools')"]


def test_a_policy_of_somebody_else_that_stands_in_the_way(skillbus: Skillbus, desk: Desk) -> None:
    assert skillbus("topology", "apply").code == 0
    name = f"mine-{desk.names.prefix}"
    desk.set_policy(name, rf"^{desk.names.prefix}\.parked$", 11, max_length=5)
    try:
        (text,) = drift(skillbus).values()
        assert f"is under the policy {name} (max-length 5) of priority 11" in text
        assert drift(skillbus, "--no-policies") == {}
    finally:
        desk.node.ctl("clear_policy", name)


def test_without_the_management_api_the_commands_for_the_rest_are_printed(
    skillbus: Skillbus, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLBUS_MANAGEMENT_URL")
    applied = skillbus("topology", "apply")
    assert applied.code == 4
    assert "? not looked at: bindings, policies: no management API is named" in applied.out
    assert skillbus("topology", "check").code == 4
    assert skillbus("topology", "apply", "--no-policies").code == 0
    commands = re.findall("^  rabbitmqctl (.*)$", applied.out, re.MULTILINE)
    assert len(commands) == 3
    monkeypatch.setenv("SKILLBUS_MANAGEMENT_URL", desk.node.management_url)
    assert set(drift(skillbus)) == {f"policy {policy.name}" for policy in desk.whole.policies}
    for command in commands:
        desk.node.ctl(*shlex.split(command))
    assert drift(skillbus) == {}


@pytest.mark.parametrize("managed", [True, False])
def test_a_queue_with_other_arguments_is_left_with_what_is_in_it(
    skillbus: Skillbus, desk: Desk, monkeypatch: pytest.MonkeyPatch, managed: bool
) -> None:
    if not managed:
        monkeypatch.delenv("SKILLBUS_MANAGEMENT_URL")
    queue = Queue(desk.names.queue("tools"), arguments={"x-queue-type": "quorum", "x-max-length": 3})
    desk.declare(queue)
    desk.publish(queue.name)
    applied = skillbus("topology", "apply")
    assert applied.code == 1
    assert f"~ queue {queue.name}" in applied.out
    assert "x-max-length" in applied.out or "PRECONDITION_FAILED" in applied.out
    assert f"rabbitmqctl delete_queue {queue.name}" in applied.out
    assert "1 to be done by hand" in applied.out
    assert desk.missing() == ()
    assert desk.count(queue.name) == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", "the management API at http://127.0.0.1:1 can't be reached"),
        ("http://guest:hush-hush@{address}", "refuses the user guest"),
        ("http://{address}/elsewhere", "/elsewhere answers 400: is --management-url right?"),
    ],
)
def test_a_management_api_that_cannot_be_used_is_said(skillbus: Skillbus, desk: Desk, url: str, says: str) -> None:
    url = url.format(address=desk.node.management_url.removeprefix("http://"))
    ended = skillbus("topology", "check", "--management-url", url)
    assert ended.code == 1  # the rest was looked at, and is missing
    assert says in ended.out
    assert "hush" not in ended.out + ended.err


def test_what_is_no_url_of_a_management_api(skillbus: Skillbus) -> None:
    for url in ("rabbitmq:15672", "ftp://x", "http://", "http://user:hush@x:notaport", "http://hush hush/"):
        ended = skillbus("topology", "plan", "--amqp-url", "amqp://x", "--management-url", url)
        assert ended.code == 1
        assert ended.err.startswith("error: --management-url: must be http:// or https://")
        assert "hush" not in ended.err
    assert "no broker" in skillbus("topology", "apply").err


@pytest.mark.parametrize("vhost", ["two", "a/b c"])
def test_a_virtual_host_of_its_own(skillbus: Skillbus, desk: Desk, monkeypatch: pytest.MonkeyPatch, vhost: str) -> None:
    desk.node.ctl("add_vhost", vhost)
    desk.node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    monkeypatch.setenv("SKILLBUS_AMQP_URL", f"{desk.node.url}{quote(vhost, safe='')}")
    assert skillbus("topology", "apply").code == 0
    assert drift(skillbus) == {}
    assert len(desk.missing()) == 9  # nothing of it is elsewhere
    assert f"{desk.names.prefix}.parked" in desk.node.ctl("list_policies", "-p", vhost)


def test_the_doctor_looks_at_policies_too(skillbus: Skillbus, desk: Desk) -> None:
    assert skillbus("topology", "apply").code == 0
    assert f"✓ topology      all under {desk.names.prefix} stands as described" in skillbus("doctor").out
    desk.set_policy(f"{desk.names.prefix}.parked", rf"^{desk.names.prefix}\.parked$", max_length=1)
    said = skillbus("doctor").out
    assert f"! topology      policy {desk.names.prefix}.parked max-length is 1, not 10000" in said
    assert "fix: `skillbus topology apply`, or leave them" in said


async def test_a_policy_limits_a_message_that_kills_its_worker(desk: Desk) -> None:
    desk.set_policy(f"{desk.names.prefix}.q", rf"^{desk.names.prefix}\.q\.", delivery_limit=2)
    runs, over = 0, asyncio.Event()

    async def poisoned(_request: bus.Request, _reply: bus.Reply) -> None:
        nonlocal runs
        runs += 1
        server._requests.drop("as if the process had died")
        await over.wait()

    options: dict[str, Any] = {"prefix": desk.names.prefix, "patience": PATIENCE}
    async with (
        await bus.serve(desk.node.url, "tools", poisoned, **options) as server,
        await bus.read_dead_letters(desk.node.url, **options),
        await bus.connect(desk.node.url, **options) as client,
    ):
        with pytest.raises(bus.RetriesExhausted):
            await soon(client.send("tools", HELLO))
        over.set()
    assert runs == 3


async def test_a_policy_limits_what_waits_and_can_be_raised(desk: Desk) -> None:
    connection = await driver_for(desk.node.url).connect("test")
    await connection.declare(*desk.whole.parts)

    async def fill() -> int:
        for taken in range(100):
            try:
                await soon(connection.publish(Outgoing(desk.names.requests, "tools", b"{}", Properties())))
            except bus.Rejected:
                return taken
        raise AssertionError("no limit holds")

    ours = (f"{desk.names.prefix}.q", rf"^{desk.names.prefix}\.q\.")
    desk.set_policy(*ours, max_length=5)
    assert 5 <= await fill() <= 7  # the limit of a quorum queue is soft
    desk.set_policy(*ours, max_length=20)
    assert 12 <= await fill() <= 16
    await connection.close()


class Worker:
    """A worker as users run it, until the block ends."""

    def __init__(self, home: Home, *options: str) -> None:
        reading, writing = os.pipe()
        self._ready = os.fdopen(reading)
        command = ("worker", "--ready-fd", str(writing), *options)
        self.process = home.start(*command, pass_fds=[writing], stdin=subprocess.DEVNULL)
        os.close(writing)

    def __enter__(self) -> "Worker":
        with self._ready as ready:
            assert ready.read() == "ready\n", self.process.communicate(timeout=LIMIT)
        return self

    def stop(self) -> Ended:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=LIMIT)
        return Ended(self.process.returncode, out, err)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=LIMIT)


def test_a_worker_starts_once_the_topology_is_applied(
    skillbus: Skillbus, desk: Desk, home: Home, session: Path
) -> None:
    refused = home.run("worker")
    assert refused.code == 2
    last = refused.err.splitlines()[-1]
    assert last.startswith("error: the worker can't start: UNAVAILABLE: the broker has no exchange")
    for name in (desk.names.requests, desk.names.parked, desk.names.control, desk.names.queue("tools")):
        assert name in last
    assert f"`skillbus topology apply --prefix {desk.names.prefix} --agent tools`" in last
    assert len(desk.missing()) == 9  # it made nothing
    assert skillbus("topology", "apply").code == 0
    with Worker(home) as worker:
        assert home.run("call", "calc", "--arg", "expr=6*7", "--strict").code == 0
        assert worker.stop().code == 0


def rights(of: str, prefix: str, user: str, agent: str) -> list[str]:
    """What the page says that such a user of the broker needs: configure, write, read."""
    page = (ROOT / "docs" / "operations.md").read_text().partition("<!-- permissions -->")[2]
    (row,) = re.findall(rf"^\| {re.escape(of)} \| (.*) \|$", page, re.MULTILINE)
    cells = [cell.strip(" `").replace("\\|", "|") or "^$" for cell in re.split(r"(?<!\\)\|", row)]
    assert len(cells) == 3
    return [cell.replace("a2a", re.escape(prefix)).replace("AGENT", agent).replace("USER", user) for cell in cells]


def test_the_permissions_of_the_page_are_enough_and_no_more(
    skillbus: Skillbus, desk: Desk, home: Home, session: Path
) -> None:
    node, prefix = desk.node, desk.names.prefix
    users = {
        "`skillbus topology apply`": "apply",
        "worker": "work",
        "caller": "call",
        "`skillbus agents`, `skillbus ping`": "ask",
        "`skillbus dead`": "dead",
        "`skillbus agents --watch`": "watch",
    }
    urls = {}
    for role, name in users.items():
        user = f"{name}-{prefix}"
        node.ctl("add_user", user, "hush-hush")
        node.ctl("set_permissions", user, *rights(role, prefix, user, "tools"))
        urls[name] = node.url.replace("guest:guest", f"{user}:hush-hush")
    node.ctl("set_user_tags", f"apply-{prefix}", "policymaker")
    try:
        ended = skillbus("topology", "apply", "--amqp-url", urls["apply"])
        assert ended.code == 0, ended
        node.ctl("set_user_tags", f"apply-{prefix}", "management")
        assert skillbus("topology", "check", "--amqp-url", urls["apply"]).code == 0

        with Worker(home, "--amqp-url", urls["work"], "--log-level", "debug") as worker:
            called = home.run("call", "calc", "--arg", "expr=6*7", "--strict", "--amqp-url", urls["call"])
            assert called.code == 0, called
            for name in ("call", "ask"):
                asked = asyncio.run(ask(urls[name], Pong, agent="tools", prefix=prefix))
                assert len(list(asked)) == 1
            asyncio.run(_watch(urls["watch"], prefix))
            desk.publish(desk.names.queue("tools"))  # which names nobody to answer to
            until(lambda: desk.count(desk.names.parked) == 1, "the parked letter")
            for name in ("work", "call"):
                looked = skillbus("doctor", "--amqp-url", urls[name], "--management-url", "")
                assert not re.search("^✗ (?!credential)", looked.out, re.MULTILINE), looked
            listed = skillbus("dead", "list", "--json", "--amqp-url", urls["dead"])
            assert len(json.loads(listed.out)) == 1, listed
            stopped = worker.stop()
        assert stopped.code == 0
        assert "REFUSED" not in stopped.err
        assert "hush" not in stopped.err
        for name in ("work", "call", "ask", "dead"):
            with pytest.raises(bus.Refused, match="ACCESS_REFUSED"):
                asyncio.run(_declare(urls[name], Queue(f"{prefix}.q.more", arguments={"x-queue-type": "quorum"})))
    finally:
        for name in users.values():
            node.ctl("delete_user", f"{name}-{prefix}")


async def _watch(url: str, prefix: str) -> None:
    async with await watch(url, prefix=prefix):
        pass  # it listens


async def _declare(url: str, part: Part) -> None:
    connection = await driver_for(url).connect("test")
    try:
        await connection.declare(part)
    finally:
        await connection.close()
