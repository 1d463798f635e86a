import asyncio
from typing import Any

import pytest
from a2a.types import ListTasksResponse, SendMessageResponse, Task
from google.protobuf.json_format import ParseDict

import bus
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.sessions import mint

from ..conftest import Effects
from ..house import House


async def listed(house: House, **wanted: Any) -> Any:
    answer = await house.ask("ListTasks", wanted, message_id="l")
    ParseDict(answer, ListTasksResponse())
    return answer


async def test_pages_in_a_stable_order(house: House, other: House) -> None:
    sent = [(await house.send("once", {"n": n}, message_id=f"m{n}"))["task"]["id"] for n in range(7)]
    seen: list[str] = []
    token = ""
    while True:
        page = await listed(other, pageSize=3, **({"pageToken": token} if token else {}))
        assert (page["totalSize"], page["pageSize"]) == (7, 3)
        seen += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            break
    assert len(seen) == len(set(seen)) == 7
    times = {task["id"]: task["status"]["timestamp"] for task in (await listed(house))["tasks"]}
    assert set(seen) == set(sent)
    assert [times[each] for each in seen] == sorted(times.values(), reverse=True)


async def test_filters(house: House, ledger: Ledger, effects: Effects) -> None:
    await house.send("once", {}, message_id="a")
    await house.send("once", {"refuse": 1}, message_id="b", contextId="c2")
    await house.send("once", {"do": "fail"}, message_id="c")
    running = await house.stream("once", {"do": "report"}, message_id="d").count(4)
    everything = await listed(house)
    assert everything["totalSize"] == 4
    for state, count in (("COMPLETED", 1), ("REJECTED", 1), ("FAILED", 1), ("WORKING", 1), ("SUBMITTED", 0)):
        page = await listed(house, status=f"TASK_STATE_{state}")
        assert (page["totalSize"], len(page["tasks"])) == (count, count), state
    assert (await listed(house, status="TASK_STATE_UNSPECIFIED", contextId=""))["totalSize"] == 4
    (task,) = (await listed(house, contextId="c2"))["tasks"]
    assert task["contextId"] == "c2"
    newest = everything["tasks"][0]
    assert newest["status"]["state"] == "TASK_STATE_WORKING"
    since = everything["tasks"][1]["status"]["timestamp"]
    assert (await listed(house, statusTimestampAfter=since))["totalSize"] >= 1
    assert (await listed(house, statusTimestampAfter="2100-01-01T00:00:00Z"))["totalSize"] == 0
    effects.gate.set()
    await running.end()


async def test_artifacts_and_history_when_asked_for(house: House) -> None:
    sent = (await house.send("once", {"a": 1}))["task"]
    (bare,) = (await listed(house))["tasks"]
    assert bare.keys() == {"id", "contextId", "status"}
    (full,) = (await listed(house, includeArtifacts=True, historyLength=1))["tasks"]
    assert full["artifacts"] == sent["artifacts"]
    (message,) = full["history"]
    assert message["parts"] == [{"data": {"a": 1}, "mediaType": "application/json"}]
    assert (message["messageId"], message["metadata"]) == ("m1", {"skill_id": "once"})
    for history, count in ((None, 0), (0, 0), (1, 1), (5, 1)):
        payload = {"id": sent["id"]} | ({} if history is None else {"historyLength": history})
        task = await house.ask("GetTask", payload, message_id="g")
        ParseDict(task, Task())
        assert len(task.get("history", [])) == count


async def test_a_page_fits_into_a_message(house: House) -> None:
    for n in range(4):
        await house.send("pure", {"n": n, "text": "x" * 200_000}, message_id=f"m{n}")
    page = await listed(house, includeArtifacts=True)
    assert len(page["tasks"]) == 2
    rest = await listed(house, includeArtifacts=True, pageToken=page["nextPageToken"])
    assert (len(rest["tasks"]), rest["nextPageToken"]) == (2, "")
    assert len((await listed(house))["tasks"]) == 4


async def test_the_tasks_of_others_are_not_there(house: House, ledger: Ledger) -> None:
    await house.send("once", {})
    stranger, session = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    token = (await listed(house))["nextPageToken"]
    answer = await house.ask("ListTasks", {"pageToken": token}, credential=stranger)
    assert answer == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@pytest.mark.parametrize(
    "wanted",
    [
        {"pageSize": 0}, {"pageSize": 101}, {"pageSize": "5"}, {"pageSize": True}, {"pageToken": "x"},
        {"pageToken": "WzEsMl0"}, {"pageToken": 7}, {"status": "WORKING"}, {"status": "TASK_STATE_working"},
        {"status": 3}, {"historyLength": -1}, {"includeArtifacts": "yes"}, {"statusTimestampAfter": "yesterday"},
        {"statusTimestampAfter": "2026-01-01T00:00:00"}, {"contextId": ["x"]}, {"historyLength": 2**31},
    ],
)  # fmt: skip
async def test_malformed_lists(house: House, wanted: Any) -> None:
    with pytest.raises(bus.InvalidParams):
        await listed(house, **wanted)


# returnImmediately


async def test_an_answer_before_the_end(house: House, other: House, effects: Effects) -> None:
    payload = {
        "message": {"messageId": "m1", "parts": [{"data": {"do": "wait"}}], "metadata": {"skill_id": "once"}},
        "configuration": {"returnImmediately": True, "historyLength": 1},
    }
    answer = await house.ask("SendMessage", payload)
    ParseDict(answer, SendMessageResponse())
    assert answer["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert answer["task"]["metadata"]["deadline"].endswith("Z")
    assert len(answer["task"]["history"]) == 1
    again = await other.ask("SendMessage", payload)
    assert again["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert (await other.ask("GetTask", {"id": answer["task"]["id"]}))["status"]["state"] == "TASK_STATE_WORKING"
    effects.gate.set()
    plain = {"message": payload["message"]}
    done, late = await asyncio.gather(house.ask("SendMessage", plain), other.ask("SendMessage", plain))
    assert done == late
    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(effects.runs) == 1


async def test_what_ends_at_once_is_answered_with_its_end(house: House) -> None:
    payload = {
        "message": {"messageId": "m1", "parts": [{"data": {}}], "metadata": {"skill_id": "pure"}},
        "configuration": {"returnImmediately": True},
    }
    assert (await house.ask("SendMessage", payload))["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    "configuration", [[], "x", {"returnImmediately": 1}, {"historyLength": "1"}, {"historyLength": 2**63}]
)
async def test_malformed_configurations(house: House, configuration: Any) -> None:
    payload = {
        "message": {"messageId": "m1", "parts": [{"data": {}}], "metadata": {"skill_id": "pure"}},
        "configuration": configuration,
    }
    with pytest.raises(bus.InvalidParams):
        await house.ask("SendMessage", payload)
