import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import ParseDict
from sqlalchemy.exc import IntegrityError

import bus
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline, task_id
from broker.sessions import Credential, mint
from broker.worktrees.worktrees import Worktrees
from bus.destination import Policy
from bus.sdk.transport import AmqpTransport
from tests.bus.test_destination import PUBLIC, Names

from ..conftest import Effects
from ..house import House
from ..push.receivers import asking, house_with_push

URL = "https://hooks.example/secret-path"
SECRETS = {"token": "hush-token", "authentication": {"scheme": "Bearer", "credentials": "hush-credentials"}}
TASK = task_id("ep1", "m1")


@pytest.fixture
def house(pipeline: Pipeline, ledger: Ledger, credential: Credential) -> House:
    names = Names([PUBLIC])
    return house_with_push(pipeline, ledger, credential, Policy(resolve=names), push_limit=3)


async def create(house: House, **said: Any) -> Any:
    answer = await house.ask("CreateTaskPushNotificationConfig", {"url": URL, **said})
    ParseDict(answer, pb.TaskPushNotificationConfig())
    return answer


async def listed(house: House, **wanted: Any) -> Any:
    answer = await house.ask("ListTaskPushNotificationConfigs", {"taskId": TASK, **wanted})
    ParseDict(answer, pb.ListTaskPushNotificationConfigsResponse())
    return answer


async def test_a_config_is_created_read_listed_and_deleted(house: House, other: House) -> None:
    await house.send("once", {})
    said = {"taskId": TASK, "id": "c1", "tenant": "", **SECRETS}
    created = await create(house, **said)
    assert created == {"id": "c1", "taskId": TASK, "url": URL, "authentication": {"scheme": "Bearer"}}
    got = await house.ask("GetTaskPushNotificationConfig", {"taskId": TASK, "id": "c1"})
    assert got == created
    assert await listed(house) == {"configs": [created], "nextPageToken": ""}
    for _ in range(2):
        assert await house.ask("DeleteTaskPushNotificationConfig", {"taskId": TASK, "id": "c1"}) == {}
    assert await listed(house) == {"configs": [], "nextPageToken": ""}
    with pytest.raises(bus.TaskNotFound):
        await house.ask("GetTaskPushNotificationConfig", {"taskId": TASK, "id": "c1"})


async def test_a_config_without_an_id_has_that_of_its_task(house: House) -> None:
    await house.send("once", {})
    for _ in range(2):
        assert (await create(house, taskId=TASK))["id"] == TASK
    assert len((await listed(house))["configs"]) == 1


async def test_no_secret_is_handed_back_or_shown(
    house: House, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await house.send("once", {})
    created = await create(house, taskId=TASK, **SECRETS)
    (kept,) = await ledger.push.page(TASK, house.credential.id, "", 9)
    assert (kept.token, kept.credentials) == ("hush-token", "hush-credentials")
    assert "hush" not in f"{created}{await listed(house)}{kept!r}{caplog.text}"
    assert "secret-path" not in f"{kept!r}{caplog.text}"


async def test_no_error_of_the_database_holds_a_secret(house: House, ledger: Ledger, ledger_path: Path) -> None:
    await house.send("once", {})
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON push_configs BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(IntegrityError) as caught:
        await create(house, taskId=TASK, **SECRETS)
    assert "hush" not in str(caught.value)
    assert "secret-path" not in str(caught.value)


async def test_pages(house: House) -> None:
    await house.send("once", {})
    for name in ("b", "c", "a"):
        await create(house, taskId=TASK, id=name)
    first = await listed(house, pageSize=2)
    assert [config["id"] for config in first["configs"]] == ["a", "b"]
    rest = await listed(house, pageSize=2, pageToken=first["nextPageToken"])
    assert ([config["id"] for config in rest["configs"]], rest["nextPageToken"]) == (["c"], "")
    assert (await listed(house, pageSize=3))["nextPageToken"] == ""
    assert len((await listed(house, pageSize=0, pageToken=""))["configs"]) == 3


async def test_a_task_has_so_many_configs_and_no_more(house: House) -> None:
    await house.send("once", {})
    for name in "abc":
        await create(house, taskId=TASK, id=name)
    with pytest.raises(bus.InvalidParams, match="at most 3"):
        await create(house, taskId=TASK, id="d")
    assert (await create(house, taskId=TASK, id="c", url=f"{URL}/2"))["url"] == f"{URL}/2"


@pytest.mark.parametrize(
    "operation",
    ["CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
     "DeleteTaskPushNotificationConfig"],
)  # fmt: skip
async def test_the_configs_of_others_are_not_there(house: House, ledger: Ledger, operation: str) -> None:
    await house.send("once", {})
    await create(house, taskId=TASK, id="c1")
    said = {"taskId": TASK, "id": "c1", "url": URL}
    stranger, elsewhere = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    poor, session = mint("ep1", [Grant("Other.Thing", "test", 1, 2**40)], ttl=60)
    for each in (elsewhere, session):
        await ledger.add_session(each)
    for credential, payload in ((stranger, said), (poor, said), (house.credential, {**said, "taskId": "0" * 32})):
        with pytest.raises(bus.TaskNotFound):
            await house.ask(operation, payload, credential=credential)
    assert len((await listed(house))["configs"]) == 1


async def test_each_session_of_an_episode_has_configs_of_its_own(house: House, ledger: Ledger) -> None:
    await house.send("once", {})
    await create(house, taskId=TASK, id="c1")
    peer, session = mint("ep1", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    theirs = House(house.agent, peer)
    assert (await listed(theirs))["configs"] == []
    with pytest.raises(bus.TaskNotFound):
        await theirs.ask("GetTaskPushNotificationConfig", {"taskId": TASK, "id": "c1"})
    await create(theirs, taskId=TASK, id="c1", url=f"{URL}/theirs")
    await theirs.ask("DeleteTaskPushNotificationConfig", {"taskId": TASK, "id": "c1"})
    (mine,) = (await listed(house))["configs"]
    assert mine["url"] == URL


@pytest.mark.parametrize(
    "said",
    [
        {"url": None}, {"url": 7}, {"url": "http://hooks.example/"}, {"url": "https://127.0.0.1/hush"},
        {"url": "https://user:hush@hooks.example/"}, {"taskId": 7}, {"id": 7}, {"id": "a b"}, {"id": "x" * 129},
        {"token": 7}, {"token": "hush\r\nX: y"}, {"token": "hush" * 300}, {"token": " hush"}, {"token": "hüsh"},
        {"authentication": "Bearer hush"}, {"authentication": {"scheme": "Bearer"}},
        {"authentication": {"credentials": "hush"}}, {"authentication": {"scheme": "a b", "credentials": "hush"}},
        {"authentication": {"scheme": "Bearer", "credentials": "hush\nX: y"}},
        {"authentication": {"scheme": "Bearer", "credentials": "hush" * 1025}},
        {"authentication": {"scheme": 7, "credentials": "hush"}},
    ],
)  # fmt: skip
async def test_malformed_configs(house: House, ledger: Ledger, said: Any) -> None:
    await house.send("once", {})
    with pytest.raises(bus.InvalidParams) as caught:
        await create(house, **{"taskId": TASK, **said})
    assert "hush" not in f"{caught.value}{caught.value.metadata}"
    message = asking("once", {}, URL, message_id="m2")
    message["configuration"]["taskPushNotificationConfig"] |= said
    with pytest.raises(bus.InvalidParams):
        await house.ask("SendMessage", message, message_id="m2")
    assert await ledger.receipt(task_id("ep1", "m2")) is None
    assert (await listed(house))["configs"] == []


@pytest.mark.parametrize(
    "wanted", [{"pageSize": -1}, {"pageSize": 101}, {"pageToken": "é"}, {"pageToken": 7}, {"taskId": 1}]
)
async def test_malformed_lists(house: House, wanted: Any) -> None:
    await house.send("once", {})
    with pytest.raises(bus.InvalidParams):
        await listed(house, **wanted)


async def test_a_name_that_leads_inside_is_refused(pipeline: Pipeline, ledger: Ledger, credential: Credential) -> None:
    for names, words in ((Names([PUBLIC, "10.0.0.1"]), "not public"), (Names([]), "no address")):
        house = house_with_push(pipeline, ledger, credential, Policy(resolve=names))
        await house.send("once", {})
        with pytest.raises(bus.InvalidParams, match=f"url: .*{words}"):
            await create(house, taskId=TASK)


async def test_a_config_comes_with_a_message(house: House, effects: Effects) -> None:
    for operation, message_id in (("SendMessage", "m1"), ("SendStreamingMessage", "m2")):
        said = asking("once", {}, URL, message_id=message_id, id="mine", **SECRETS)
        listener = await house.listen(operation, said, message_id=message_id).end()
        assert "hush" not in str(listener.answer.bodies)
        (config,) = (await listed(house, taskId=task_id("ep1", message_id)))["configs"]
        assert config["id"] == "mine"
    assert len(effects.runs) == 2


async def test_a_message_that_is_no_call_leaves_no_config(house: House, ledger: Ledger) -> None:
    with pytest.raises(bus.SkillNotFound):
        await house.ask("SendMessage", asking("hidden", {}, URL))
    assert await ledger.push.page(TASK, house.credential.id, "", 9) == []
    with pytest.raises(bus.InvalidParams, match="left out"):
        await house.ask("SendMessage", asking("once", {}, URL, taskId="another"))


async def test_a_task_that_waits_may_have_a_config(house: House, worktrees: Worktrees, effects: Effects) -> None:
    await worktrees.create("ep1")
    first = await house.stream("placed", {"do": "wait"}).count(1)
    second = await house.stream("placed", {}, message_id="m2").count(1)
    waiting = task_id("ep1", "m2")
    assert (await create(house, taskId=waiting))["taskId"] == waiting
    effects.gate.set()
    await asyncio.gather(first.end(), second.end())


async def test_an_agent_that_sends_none_says_so(pipeline: Pipeline, ledger: Ledger, credential: Credential) -> None:
    from broker.agent.agent import SkillAgent

    house = House(SkillAgent("house", pipeline, ledger, version="1"), credential)
    for operation, payload in (
        ("CreateTaskPushNotificationConfig", {}),
        ("SendMessage", asking("once", {}, URL)),
        ("SendStreamingMessage", asking("once", {}, URL)),
    ):
        with pytest.raises(bus.PushNotificationNotSupported):
            await house.ask(operation, payload)
    assert house.agent.card([])["capabilities"]["pushNotifications"] is False


async def test_the_card_says_so(house: House) -> None:
    assert (await house.ask("GetExtendedAgentCard", {}))["capabilities"]["pushNotifications"] is True


async def test_a_client_of_the_sdk(house: House) -> None:
    broker = bus.MemoryBroker()
    transport = AmqpTransport(broker, "house", authorize=house.credential.authorize)
    async with await bus.serve(broker, "house", house.agent):
        await house.send("once", {})
        said = ParseDict({"taskId": TASK, "url": URL, "id": "c1", **SECRETS}, pb.TaskPushNotificationConfig())
        made = await transport.create_task_push_notification_config(said)
        assert (made.id, made.url, made.token, made.authentication.credentials) == ("c1", URL, "", "")
        wanted = pb.GetTaskPushNotificationConfigRequest(task_id=TASK, id="c1")
        assert await transport.get_task_push_notification_config(wanted) == made
        everything = pb.ListTaskPushNotificationConfigsRequest(task_id=TASK)
        assert list((await transport.list_task_push_notification_configs(everything)).configs) == [made]
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=TASK, id="c1")
        await transport.delete_task_push_notification_config(gone)
        with pytest.raises(TaskNotFoundError):
            await transport.get_task_push_notification_config(wanted)
    await transport.close()


async def test_the_message_in_the_documentation(house: House) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    (sample,) = re.findall(r"<!-- a message with a webhook -->\n```json\n(.*?)```", page, re.DOTALL)
    said = orjson.loads(sample)
    ParseDict(said, pb.SendMessageRequest())
    said["message"]["metadata"]["skill_id"] = "pure"
    task = (await house.ask("SendMessage", said, message_id="m-1"))["task"]
    (config,) = (await listed(house, taskId=task["id"]))["configs"]
    assert config["url"] == said["configuration"]["taskPushNotificationConfig"]["url"]
