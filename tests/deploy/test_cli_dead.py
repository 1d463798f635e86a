"""The dead letters from the command line, and the worker that parks them."""

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bus
from broker.sessions import Credential
from bus import Unsigned, topology
from bus.dead.reader import read_dead_letters
from bus.driver import Connection, Outgoing, Properties
from bus.target import driver_for
from tests.conformance.stage import PATIENCE, Mailbox
from tests.deploy.conftest import LIMIT, Ended, Home, until

pytestmark = pytest.mark.rabbitmq

Skillbus = Callable[..., Ended]
CALL = {"role": "ROLE_USER", "parts": [{"data": {"expr": "6 * 7"}}], "metadata": {"skill_id": "calc"}}


class Desk:
    """A prefix on the shared broker, and what the tests put there."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url, self.prefix = url, prefix
        self.names = bus.Names(prefix)
        self.user = driver_for(url).user

    def run(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            connection = await driver_for(self.url).connect("test")
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(main())

    def count(self) -> int:
        tally = self.run(lambda connection: connection.tally(self.names.parked))
        return 0 if tally is None else tally.messages

    def publish(self, agent: str, message_id: str, **properties: Any) -> None:
        """A request of `agent`, which is served by nobody or by the test's worker."""

        async def work(connection: Connection) -> None:
            await connection.declare(*topology.agent(self.names, agent))
            await connection.publish(self.message(agent, message_id, **properties))

        self.run(work)

    def message(self, agent: str, message_id: str, body: bytes = b"{}", **properties: Any) -> Outgoing:
        given = {
            "type": "SendMessage", "content_type": bus.MEDIA_TYPE, "message_id": message_id, "correlation_id": "c",
            "reply_to": self.names.new_reply_queue(self.user), "user_id": self.user, "persistent": True,
            "headers": {"a2a-version": "1.0"}, **properties,
        }  # fmt: skip
        return Outgoing(self.names.requests, agent, body, Properties(**given))

    def park(self, count: int = 0) -> None:
        """Read the dead letters until `count` are parked."""

        async def work(connection: Connection) -> None:
            async with await read_dead_letters(self.url, prefix=self.prefix, patience=PATIENCE):
                async with asyncio.timeout(20):
                    while (await connection.tally(self.names.parked) or (0,))[0] < count:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)

        self.run(work)


@pytest.fixture
def desk(rabbitmq_url: str, unique_prefix: str, monkeypatch: pytest.MonkeyPatch, home: Home) -> Iterator[Desk]:
    made = Desk(rabbitmq_url, unique_prefix)
    for name, value in (("SKILLBUS_AMQP_URL", rabbitmq_url), ("SKILLBUS_PREFIX", unique_prefix)):
        monkeypatch.setenv(name, value)
        home.environment[name] = value
    yield made
    agents = [topology.agent(made.names, agent) for agent in ("tools", "skillbus")]
    parts = [part for agent in agents for part in agent]
    made.run(lambda connection: connection.delete(*parts, topology.parked(made.names)))


@pytest.fixture
def three(desk: Desk) -> Desk:
    """Three letters: one that can be sent again, one that was signed, one that can't be answered."""
    desk.publish("tools", "plain", expiration=1, body=b'{"a": "caf\xc3\xa9\\u001b"}')
    signed = {"a2a-version": "1.0", "a2a-authorization": "Bearer hush"}
    desk.publish("tools", "signed", expiration=1, headers=signed)
    desk.publish("tools", "mute", expiration=1, reply_to=None, body=b"\xff")
    desk.park(3)
    return desk


def ids(skillbus: Skillbus) -> dict[str, str]:
    return {letter["messageId"]: letter["id"] for letter in json.loads(skillbus("dead", "list", "--json").out)}


def test_list_and_show_lose_nothing(skillbus: Skillbus, three: Desk) -> None:
    listed = skillbus("dead", "list")
    assert (listed.code, listed.err) == (0, "3 letter(s)\n")
    header, *rows = listed.out.splitlines()
    assert header.split() == ["ID", "DIED", "REASON", "AGENT", "MESSAGE", "ANSWERED"]
    assert {row.split()[-2] for row in rows} == {"plain", "signed", "mute"}
    assert all(" ago  expired  tools" in row and row.endswith("nobody") for row in rows)

    plain = ids(skillbus)["plain"]
    shown = skillbus("dead", "show", plain[:6])
    assert shown.code == 0
    assert ("messageId", "plain") in [tuple(line.split(maxsplit=1)) for line in shown.out.splitlines() if line]
    assert re.search(r"^diedAt +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$", shown.out, re.MULTILINE)
    assert shown.out.endswith('\n\n{"a": "café\\u001b"}\n')
    letter = json.loads(skillbus("dead", "show", plain, "--json").out)
    assert (letter["agent"], letter["reason"], letter["signed"]) == ("tools", "expired", False)
    assert letter["replyTo"].startswith(f"{three.prefix}.reply.")
    assert "no text" in skillbus("dead", "show", ids(skillbus)["mute"]).out
    assert "hush" not in skillbus("dead", "show", ids(skillbus)["signed"], "--json").out
    assert three.count() == 3


def test_drop(skillbus: Skillbus, three: Desk) -> None:
    plain = ids(skillbus)["plain"]
    assert skillbus("dead", "drop", plain) == Ended(0, f"dropped {plain}\n", "")
    assert ids(skillbus).keys() == {"signed", "mute"}
    assert skillbus("dead", "drop", "--all").out == "dropped 2 letter(s)\n"
    assert skillbus("dead", "list") == Ended(0, "", "0 letter(s)\n")
    assert json.loads(skillbus("dead", "drop", "--all", "--json").out) == {"dropped": []}


def test_requeue_sends_what_can_be_sent_and_says_why_not(skillbus: Skillbus, three: Desk) -> None:
    named = ids(skillbus)
    signed = skillbus("dead", "requeue", named["signed"])
    assert (signed.code, signed.out) == (1, "")
    assert "let its caller send message signed again under the same id" in signed.err
    assert "--session FILE" in signed.err
    mute = skillbus("dead", "requeue", named["mute"])
    assert "names no queue of its caller" in mute.err

    done = skillbus("dead", "requeue", "--all", "--deadline", "1h")
    assert (done.code, done.out) == (1, f"requeued {named['plain']}\n")
    assert "2 letter(s) could not be sent again" in done.err
    assert three.count() == 2

    async def next_request(connection: Connection) -> Any:
        return (await (await Mailbox.on(connection, three.names.queue("tools"), prefetch=1)).next()).properties

    properties = three.run(next_request)
    assert (properties.message_id, properties.user_id, properties.expiration) == ("plain", three.user, 3_600_000)
    assert not [name for name in properties.headers if name.startswith(("x-", "parked-"))]


def test_a_signed_request_is_signed_anew_by_its_session(
    skillbus: Skillbus, home: Home, desk: Desk, session: Path
) -> None:
    credential = Credential(session.read_text().strip())
    body = json.dumps({"message": {"messageId": "late", **CALL}}).encode()
    proof = credential.authorize(Unsigned("skillbus", "SendMessage", "late", body, 4e9))
    headers = {"a2a-version": "1.0", "a2a-authorization": proof}
    desk.publish("skillbus", "late", body=body, headers=headers, expiration=1)
    desk.park(1)
    letter = ids(skillbus)["late"]
    worker = home.start("worker", "--declare", "--ready-fd", "1")
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        sent = skillbus("dead", "requeue", letter, "--session", str(session))
        assert sent == Ended(0, f"requeued {letter}\n", "")
        until(lambda: "calc" in home.run("log", "tail").out, "the entry of the call")
        assert desk.count() == 0
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=LIMIT)


@pytest.mark.parametrize("switch", ["true", "false"])
def test_a_worker_parks_the_dead_unless_it_is_told_not_to(
    skillbus: Skillbus, home: Home, desk: Desk, switch: str
) -> None:
    home.environment["SKILLBUS_DEAD_LETTERS"] = switch
    worker = home.start("worker", "--declare", "--ready-fd", "1")
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        desk.publish("skillbus", "mute", reply_to=None)
        if switch == "true":
            until(lambda: desk.count() == 1, "the parked letter")
            assert ids(skillbus).keys() == {"mute"}
        else:
            dead: Callable[[Connection], Awaitable[Any]] = lambda connection: connection.tally(desk.names.dead)  # noqa: E731
            until(lambda: desk.run(dead).messages == 1, "the dead letter")
            assert desk.run(dead).consumers == 0
            assert desk.count() == 0
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=LIMIT)
    assert worker.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["requeue"], "name one letter by its ID, or all of them by --all"),
        (["drop", "abcd", "--all"], "name one letter by its ID, or all of them by --all"),
        (["show", "abc"], "at least 4 digits"),
        (["show", "abcd"], "no letter 'abcd' is parked"),
        (["drop", "abcd"], "no letter 'abcd' is parked"),
        (["requeue", "--all", "--session", "x"], "--session signs one letter"),
        (["requeue", "abcd", "--deadline", "2d"], "at most a day"),
    ],
)
def test_what_is_wrong_is_one_line(skillbus: Skillbus, desk: Desk, arguments: list[str], says: str) -> None:
    ended = skillbus("dead", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_without_a_broker_there_are_none(skillbus: Skillbus) -> None:
    ended = skillbus("dead", "list")
    assert (ended.code, ended.out) == (1, "")
    assert "no broker, so there are no dead letters" in ended.err


def test_a_broker_that_refuses_is_one_line(skillbus: Skillbus, desk: Desk) -> None:
    url = desk.url.rpartition("@")[2]
    ended = skillbus("dead", "list", "--amqp-url", f"amqp://guest:hush-hush@{url}")
    assert (ended.code, ended.out) == (1, "")
    assert "refuses" in ended.err
    assert "hush" not in ended.err
    assert len(ended.err.splitlines()) == 1
