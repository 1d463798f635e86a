import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.types import AgentCard, SendMessageResponse, Task
from google.protobuf.json_format import ParseDict

import bus
from broker.agent.agent import SCHEMAS, SkillAgent
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import mint
from skills import canonical

from ..conftest import Effects
from ..house import House, message


async def test_a_call_becomes_a_completed_task(house: House) -> None:
    answer = await house.send("once", {"a": 1})
    task = answer["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["contextId"] == "ep1"
    (artifact,) = task["artifacts"]
    (part,) = artifact["parts"]
    assert part["data"]["ok"] is True
    assert set(part["data"]["world"]) == {"effects", "plan"}
    assert artifact["metadata"] == {
        "tool": "once", "tier": "live", "status": "ok", "retryable": False, "untrusted": True, "outcome": "succeeded",
        "entry": 1, "invocation": f"a2a:ep1:{task['id']}", "output": canonical.ref(canonical.encode(part["data"])),
    }  # fmt: skip
    ParseDict(answer, SendMessageResponse())


@pytest.mark.parametrize(
    ("skill", "arguments", "state", "outcome", "status"),
    [
        ("once", {"refuse": 1}, "REJECTED", "refused", "error"),
        ("once", {"do": "fail"}, "FAILED", "failed", "error"),
        ("pure", {}, "COMPLETED", "succeeded", "ok"),
    ],
)
async def test_states(house: House, skill: str, arguments: Any, state: str, outcome: str, status: str) -> None:
    answer = await house.send(skill, arguments)
    ParseDict(answer, SendMessageResponse())
    metadata = answer["task"]["artifacts"][0]["metadata"]
    assert answer["task"]["status"]["state"] == f"TASK_STATE_{state}"
    assert (metadata["outcome"], metadata["status"]) == (outcome, status)
    assert metadata["retryable"] is (arguments.get("do") == "fail")


async def test_a_denial_is_a_rejected_task_that_says_why(house: House, ledger: Ledger) -> None:
    poor, session = mint("ep1", [Grant("Test.Run", "test", 0, 2**40)], ttl=60)
    await ledger.add_session(session)
    answer = await House(house.agent, poor).send("once", {})
    assert answer["task"]["status"]["state"] == "TASK_STATE_REJECTED"
    assert answer["task"]["status"]["message"]["parts"][0]["text"].startswith("denied:budget")
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "denied:budget"
    ParseDict(answer, SendMessageResponse())


async def test_a_resend_gets_the_same_task(house: House) -> None:
    assert await house.send("once", {"a": 1}) == await house.send("once", {"a": 1})


async def test_a_task_can_be_read_by_its_episode_alone(house: House, ledger: Ledger) -> None:
    task = (await house.send("once", {}))["task"]
    assert await house.ask("GetTask", {"id": task["id"]}, message_id="g") == task
    ParseDict(task, Task())
    other, session = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    for credential, wanted in ((other, task["id"]), (house.credential, "nope"), (house.credential, "0" * 32)):
        with pytest.raises(bus.TaskNotFound):
            await house.ask("GetTask", {"id": wanted}, credential=credential)


async def test_a_session_finds_no_task_of_a_skill_that_it_does_not_see(house: House, ledger: Ledger) -> None:
    task = (await house.send("once", {}))["task"]
    narrow, session = mint("ep1", [Grant("Other", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    for operation in ("GetTask", "CancelTask", "SubscribeToTask"):
        with pytest.raises(bus.TaskNotFound):
            await house.ask(operation, {"id": task["id"]}, credential=narrow)
    assert (await house.ask("ListTasks", {}, credential=narrow))["tasks"] == []
    assert [each["id"] for each in (await house.ask("ListTasks", {}))["tasks"]] == [task["id"]]


async def test_the_card_shows_what_the_session_sees(house: House) -> None:
    card = await house.ask("GetExtendedAgentCard", {})
    assert [skill["id"] for skill in card["skills"]] == ["again", "once", "placed", "pure", "quick"]
    (extension,) = card["capabilities"]["extensions"]
    assert extension["uri"] == SCHEMAS
    assert list(extension["params"]["skills"]) == ["again", "once", "placed", "pure", "quick"]
    assert card["supportedInterfaces"][0]["protocolBinding"] == bus.BINDING
    ParseDict(card, AgentCard())


async def test_a_revoked_session_sees_no_card(house: House, ledger: Ledger) -> None:
    await house.ask("GetExtendedAgentCard", {})
    await ledger.revoke(now=1, session_id=house.credential.id)
    with pytest.raises(bus.Unauthenticated):
        await house.ask("GetExtendedAgentCard", {})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"parts": []}, bus.InvalidParams),
        ({"parts": [{"text": "x"}]}, bus.InvalidParams),
        ({"parts": [{"data": 1}, {"data": 2}]}, bus.InvalidParams),
        ({"parts": "x"}, bus.InvalidParams),
        ({"parts": ["x"]}, bus.InvalidParams),
        ({"metadata": {}}, bus.InvalidParams),
        ({"metadata": {"skill_id": 7}}, bus.InvalidParams),
        ({"metadata": {"skill_id": ""}}, bus.InvalidParams),
        ({"metadata": {"skill_id": "hidden"}}, bus.SkillNotFound),
        ({"metadata": {"skill_id": "absent"}}, bus.SkillNotFound),
        ({"contextId": 7}, bus.InvalidParams),
        ({"contextId": "x" * 300}, bus.InvalidParams),
        ({"messageId": "another"}, bus.InvalidParams),
        ({"taskId": "nope"}, bus.TaskNotFound),
        ({"taskId": ["x"]}, bus.TaskNotFound),
    ],
)
async def test_malformed_messages_are_refused_and_nothing_is_logged(
    house: House, ledger: Ledger, changes: Any, kind: type[bus.BusError]
) -> None:
    with pytest.raises(kind):
        await house.send("once", {}, **changes)
    assert await ledger.entries(episode="ep1") == []


@pytest.mark.parametrize("payload", [{}, {"message": None}, {"message": []}, {"message": "x"}])
async def test_a_request_without_a_message_is_refused(house: House, payload: Any) -> None:
    with pytest.raises(bus.InvalidParams):
        await house.ask("SendMessage", payload)


async def test_an_ended_task_takes_no_more_messages(house: House) -> None:
    task = (await house.send("once", {}))["task"]
    with pytest.raises(bus.UnsupportedOperation):
        await house.send("once", {}, message_id="m2", taskId=task["id"])


async def test_unknown_operations_are_told_only_to_who_has_a_session(house: House) -> None:
    with pytest.raises(bus.MethodNotFound):
        await house.ask("Frobnicate", {})
    stranger, _ = mint("ep1", [Grant("E", "s", 1, 2**40)], ttl=60)
    for operation in ("Frobnicate", "SendMessage", "GetTask", "GetExtendedAgentCard"):
        with pytest.raises(bus.Unauthenticated):
            await house.ask(operation, {}, credential=stranger)


async def test_a_skill_that_answers_in_text(house: House, catalog: Any, ledger: Ledger, worktrees: Any) -> None:
    from skills import Catalog, Plan, Skill

    from ..conftest import _contract

    words = Catalog()
    contract = _contract("words", access=None, effects=(), output_mode="text/plain")
    assert words.add("words", [Skill(contract, lambda _: Plan.answer({"text": "error: no"}))])
    agent = SkillAgent("house", Pipeline(words, ledger, worktrees, owner="w", version="0"), ledger, version="1")
    task = (await House(agent, house.credential).send("words", {}))["task"]
    (artifact,) = task["artifacts"]
    assert artifact["parts"] == [{"text": "error: no", "mediaType": "text/plain"}]
    assert artifact["metadata"]["world"]["effects"] == []
    assert artifact["metadata"]["status"] == "error"
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


# over the bus


@pytest.fixture
async def served(house: House) -> AsyncIterator[bus.MemoryBroker]:
    broker = bus.MemoryBroker()
    async with await bus.serve(broker, "house", house.agent):
        yield broker


async def test_a_call_over_the_bus(served: bus.MemoryBroker, house: House, effects: Effects) -> None:
    message = {"role": "ROLE_USER", "parts": [{"data": {"a": 1}}], "metadata": {"skill_id": "once"}, "messageId": "m9"}
    async with await bus.connect(served, authorize=house.credential.authorize) as client:
        first, again = await asyncio.gather(*(client.send("house", message) for _ in range(2)))
        assert first == again
        assert len(effects.runs) == 1
        with pytest.raises(bus.IdempotencyConflict):
            await client.send("house", message | {"parts": [{"data": {"a": 2}}]})
    async with await bus.connect(served) as stranger:
        with pytest.raises(bus.Unauthenticated):
            await stranger.send("house", message)


async def test_a_stream_and_a_cancel_over_the_bus(house: House, other: House, effects: Effects) -> None:
    broker = bus.MemoryBroker()
    asked = {"message": message("once", {"do": "report"}, "m1")}
    async with (
        await bus.serve(broker, "house", house.agent, slots=1),
        await bus.serve(broker, "house", other.agent, slots=1),
        await bus.connect(broker, authorize=house.credential.authorize) as client,
    ):
        for each, name in ((house, "w1"), (other, "w2")):
            await each.agent.join(broker, instance=name)
        places = []
        async for event in client.stream("house", "SendStreamingMessage", asked):
            places.append(event.task_seq)
            if event.task_seq == 3:
                canceled = asyncio.create_task(client.request("house", "CancelTask", {"id": event.task_id}))
        assert places == [0, 1, 2, 3, 4, 5]
        assert event.final
        assert event.body["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert (await canceled)["status"] == event.body["statusUpdate"]["status"]
        for each in (house, other):
            await each.agent.leave()
    assert len(effects.runs) == 1


@pytest.mark.parametrize("operation", sorted(o for o in bus.OPERATIONS if "PushNotification" in o))
async def test_push_notifications_are_not_offered(house: House, operation: str) -> None:
    with pytest.raises(bus.PushNotificationNotSupported):
        await house.ask(operation, {})


async def test_every_other_operation_is_there(house: House) -> None:
    for operation in bus.OPERATIONS - {"GetExtendedAgentCard"}:
        with pytest.raises((bus.InvalidParams, bus.PushNotificationNotSupported)):
            await house.ask(operation, {"pageSize": "none", "id": 7}, message_id=operation)


async def test_a_running_task_takes_no_more_messages(house: House, effects: Effects) -> None:
    stream = await house.stream("once", {"do": "wait"}).count(1)
    with pytest.raises(bus.UnsupportedOperation, match="while it runs"):
        await house.send("once", {}, message_id="m2", taskId=stream.answer.bodies[0]["task"]["id"])
    effects.gate.set()
    await stream.end()
