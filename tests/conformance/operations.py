"""The rows of test_operations: each asks one thing, and says what the agent of the skills and that of the SDK answer.

Where both answer the same, one expectation stands. Where they differ, they may: a row says why. `callers.short` is how
an answer is told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.conformance.agents import SdkHandler, Stand
from tests.conformance.callers import Caller
from tests.conformance.stage import soon


class Talk:
    """One conversation: who calls, and what was learned in it so far."""

    def __init__(self, stand: Stand, own: Caller, stranger: Caller) -> None:
        self.stand = stand
        self.message = stand.message
        self.own = own
        self.stranger = stranger
        self.asked: set[str] = set()
        self.done = self.running = ""
        """The ids of a task that is done, and of one that runs."""

    async def ask(self, operation: str, body: dict[str, Any] | None = None, *, stranger: bool = False) -> Any:
        self.asked.add(operation)
        return await (self.stranger if stranger else self.own).call(operation, body or {}, self.stand.subscribed)

    async def send(self, what: str, operation: str = "SendMessage", **more: Any) -> Any:
        """Send a message; `message` holds further members of it."""
        message = self.message(what, **more.pop("message", {}))
        return await self.ask(operation, {"message": message, **more})

    async def working(self) -> Any:
        """The running task, once it is told to be working: the SDK's store learns of it a moment later."""
        async with asyncio.timeout(20):
            while (found := await self.ask("GetTask", {"id": self.running}))["status"]["state"][11:] != "WORKING":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found


class Row(NamedTuple):
    what: str
    ask: Callable[[Talk], Awaitable[Any]]
    expected: dict[str, str]


ROWS: list[Row] = []


def row(
    expected: str = "", *, native: str | None = None, sdk: str | None = None
) -> Callable[[Callable[[Talk], Awaitable[Any]]], None]:
    """A row of the table: what both agents answer, or each of them; an agent that is not named is not asked."""
    told = {"native": expected or native, "sdk": expected or sdk}

    def add(ask: Callable[[Talk], Awaitable[Any]]) -> None:
        ROWS.append(Row(ask.__name__, ask, {kind: each for kind, each in told.items() if each is not None}))

    return add


# Sending


# The SDK's task carries its history where nothing is said; the ledger's only where it is asked for.
@row(native="COMPLETED 1a", sdk="COMPLETED 1a 1h")
async def send_a_message(t: Talk) -> Any:
    answer = await t.send("work")
    t.done = answer["task"]["id"]
    return answer


@row("COMPLETED 1a 1h")
async def send_with_history(t: Talk) -> Any:
    return await t.send("work", configuration={"historyLength": 1})


@row("COMPLETED 1a")
async def send_without_history(t: Talk) -> Any:
    return await t.send("work", configuration={"historyLength": 0})


@row("INVALID_PARAMS")
async def send_with_a_negative_history(t: Talk) -> Any:
    return await t.send("work", configuration={"historyLength": -1})


@row("INVALID_PARAMS")
async def send_a_message_without_parts(t: Talk) -> Any:
    return await t.send("work", message={"parts": []})


# The SDK's executor refuses with an error of the protocol; a refusal of a skill is a task in the log.
@row(native="REJECTED 1a", sdk="CONTENT_TYPE_NOT_SUPPORTED")
async def send_what_is_refused(t: Talk) -> Any:
    return await t.send("refuse")


@row("TASK_NOT_FOUND")
async def send_to_a_task_that_is_not_there(t: Talk) -> Any:
    return await t.send("work", message={"taskId": "nowhere"})


@row("TASK_NOT_FOUND")
async def send_to_a_task_of_somebody_else(t: Talk) -> Any:
    return await t.ask("SendMessage", {"message": t.message("work", taskId=t.done)}, stranger=True)


@row("UNSUPPORTED_OPERATION")
async def send_to_a_task_that_has_ended(t: Talk) -> Any:
    return await t.send("work", message={"taskId": t.done})


# No skill answers with a bare message, asks back, or leaves its task open.
@row(sdk="message")
async def send_and_get_a_message(t: Talk) -> Any:
    return await t.send("echo hello")


@row(sdk="INPUT_REQUIRED 1h / COMPLETED 3h / INVALID_PARAMS")
async def send_what_is_asked_for(t: Talk) -> Any:
    asked = await t.send("ask")
    named = {"taskId": asked["task"]["id"], "contextId": asked["task"]["contextId"]}
    odd = await t.send("that", message={**named, "contextId": "another"})
    return asked, await t.send("this", message=named), odd


@row(sdk="SUBMITTED 1h > working > working")
async def stream_of_a_task_that_is_left_open(t: Talk) -> Any:
    return await t.send("leave", "SendStreamingMessage")


# Streaming


@row(
    native="WORKING > chunk > chunk+ > chunk+. > chunk. > completed",
    sdk="SUBMITTED 1h > working > chunk > chunk+ > chunk+. > completed",
)
async def stream_a_message(t: Talk) -> Any:
    return await t.send("work", "SendStreamingMessage")


@row(native="SUBMITTED > chunk. > rejected", sdk="CONTENT_TYPE_NOT_SUPPORTED")
async def stream_what_is_refused(t: Talk) -> Any:
    return await t.send("refuse", "SendStreamingMessage")


@row("TASK_NOT_FOUND")
async def stream_to_a_task_that_is_not_there(t: Talk) -> Any:
    return await t.send("work", "SendStreamingMessage", message={"taskId": "nowhere"})


@row("UNSUPPORTED_OPERATION")
async def subscribe_to_a_task_that_has_ended(t: Talk) -> Any:
    return await t.ask("SubscribeToTask", {"id": t.done})


@row("TASK_NOT_FOUND")
async def subscribe_to_a_task_that_is_not_there(t: Talk) -> Any:
    return await t.ask("SubscribeToTask", {"id": "nowhere"})


# While a task runs


# A skill's task is there when the ledger has it, and then it is at work.
@row(native="WORKING", sdk="SUBMITTED 1h")
async def send_and_return_at_once(t: Talk) -> Any:
    t.stand.waiting.clear()
    answer = await t.send("wait", configuration={"returnImmediately": True})
    t.running = answer["task"]["id"]
    await soon(t.stand.waiting.wait())
    return answer


@row(native="WORKING", sdk="WORKING 1h")
async def get_a_running_task(t: Talk) -> Any:
    return await t.working()


@row(native="UNSUPPORTED_OPERATION")
async def send_to_a_running_task(t: Talk) -> Any:
    return await t.send("work", message={"taskId": t.running})


@row("TASK_NOT_FOUND / TASK_NOT_FOUND / TASK_NOT_FOUND")
async def a_running_task_is_not_there_for_somebody_else(t: Talk) -> Any:
    operations = ("GetTask", "SubscribeToTask", "CancelTask")
    return tuple([await t.ask(each, {"id": t.running}, stranger=True) for each in operations])


# The SDK's handler forgets how far it came; the ledger's log begins where the subscriber does.
@row(native="WORKING > chunk. > canceled / CANCELED 1a", sdk="WORKING 1h > canceled / CANCELED 1h")
async def subscribe_and_cancel(t: Talk) -> Any:
    t.stand.subscribed.clear()
    listening = asyncio.create_task(t.ask("SubscribeToTask", {"id": t.running}))
    await soon(t.stand.subscribed.wait())
    canceled = await t.ask("CancelTask", {"id": t.running})
    return await listening, canceled


# A cancel that is repeated because its answer was lost should not look like a failure.
@row(native="CANCELED 1a", sdk="TASK_NOT_CANCELABLE")
async def cancel_again(t: Talk) -> Any:
    return await t.ask("CancelTask", {"id": t.running})


@row("TASK_NOT_CANCELABLE")
async def cancel_a_task_that_has_ended(t: Talk) -> Any:
    return await t.ask("CancelTask", {"id": t.done})


@row("TASK_NOT_FOUND")
async def cancel_a_task_that_is_not_there(t: Talk) -> Any:
    return await t.ask("CancelTask", {"id": "nowhere"})


# Asking


@row(native="COMPLETED 1a", sdk="COMPLETED 1a 1h")
async def get_a_task(t: Talk) -> Any:
    return await t.ask("GetTask", {"id": t.done})


@row("COMPLETED 1a 1h / COMPLETED 1a / INVALID_PARAMS")
async def get_a_task_with_so_much_history(t: Talk) -> Any:
    return tuple([await t.ask("GetTask", {"id": t.done, "historyLength": length}) for length in (1, 0, -1)])


@row("TASK_NOT_FOUND / TASK_NOT_FOUND / INVALID_PARAMS")
async def get_a_task_that_is_not_there(t: Talk) -> Any:
    return (
        await t.ask("GetTask", {"id": "nowhere"}),
        await t.ask("GetTask", {"id": t.done}, stranger=True),
        await t.ask("GetTask", {}),
    )


@row(native="7 of 7", sdk="9 of 9")
async def list_tasks(t: Talk) -> Any:
    return await t.ask("ListTasks")


@row("0 of 0")
async def list_tasks_of_somebody_else(t: Talk) -> Any:
    return await t.ask("ListTasks", stranger=True)


@row("all of them, each once")
async def list_tasks_page_by_page(t: Talk) -> Any:
    whole = [task["id"] for task in (await t.ask("ListTasks"))["tasks"]]
    seen: list[str] = []
    token = ""
    while True:
        page = await t.ask("ListTasks", {"pageSize": 2, "pageToken": token} if token else {"pageSize": 2})
        if page["totalSize"] != len(whole) or page["pageSize"] != 2:
            return page
        seen += [task["id"] for task in page["tasks"]]
        token = page.get("nextPageToken", "")
        if not token:
            return "all of them, each once" if seen == whole else (seen, whole)


@row("1 of 1 / 0 of 0 / INVALID_PARAMS / INVALID_PARAMS / INVALID_PARAMS")
async def list_some_tasks(t: Talk) -> Any:
    asked: list[dict[str, Any]] = [
        {"status": "TASK_STATE_CANCELED"},
        {"contextId": "nowhere"},
        {"pageSize": 0},
        {"pageSize": 101},
        {"pageToken": "nonsense"},
    ]
    return tuple([await t.ask("ListTasks", each) for each in asked])


@row("COMPLETED / COMPLETED 1a 1h")
async def list_tasks_with_what_belongs_to_them(t: Talk) -> Any:
    plain = await t.ask("ListTasks", {"historyLength": 0})
    whole = await t.ask("ListTasks", {"includeArtifacts": True, "historyLength": 1})
    return tuple([next(task for task in page["tasks"] if task["id"] == t.done) for page in (plain, whole)])


# A tenant is told to the SDK's handler. For the skills it is of no meaning: the session says everything.
@row(native="COMPLETED 1a / COMPLETED 1a", sdk="COMPLETED 1a 1h / COMPLETED 1a 1h")
async def name_a_tenant(t: Talk) -> Any:
    sent = await t.send("work", tenant="acme")
    if isinstance(t.stand, SdkHandler):
        context = t.stand.sample.contexts[-1].call_context
        assert context is not None
        assert context.tenant == "acme"
    return sent, await t.ask("GetTask", {"id": sent["task"]["id"], "tenant": "acme"})


# Push notifications

PUSH = {"id": "p-1", "url": "https://callback.test/a"}


@row("config p-1 / config p-1 / 1 configs / nothing / TASK_NOT_FOUND / nothing")
async def push_notifications(t: Talk) -> Any:
    named = {"taskId": t.done, "id": "p-1"}
    return (
        await t.ask("CreateTaskPushNotificationConfig", {**named, **PUSH}),
        await t.ask("GetTaskPushNotificationConfig", named),
        await t.ask("ListTaskPushNotificationConfigs", {"taskId": t.done}),
        await t.ask("DeleteTaskPushNotificationConfig", named),
        await t.ask("GetTaskPushNotificationConfig", named),
        await t.ask("ListTaskPushNotificationConfigs", {"taskId": t.done}),
    )


@row(native="COMPLETED 1a / 1 configs", sdk="COMPLETED 1a 1h / 1 configs")
async def push_notifications_asked_for_with_the_message(t: Talk) -> Any:
    sent = await t.send("work", configuration={"taskPushNotificationConfig": PUSH})
    return sent, await t.ask("ListTaskPushNotificationConfigs", {"taskId": sent["task"]["id"]})


# Where the SDK's handler may send is for its own operator to say.
@row(native="INVALID_PARAMS / INVALID_PARAMS / INVALID_PARAMS")
async def push_notifications_to_where_none_may_go(t: Talk) -> Any:
    urls = ("https://10.0.0.1/a", "http://callback.test/a", "not a url")
    asked = [{"taskId": t.done, "id": "p-3", "url": url} for url in urls]
    return tuple([await t.ask("CreateTaskPushNotificationConfig", each) for each in asked])


@row(" / ".join(["TASK_NOT_FOUND"] * 8))
async def push_notifications_of_a_task_that_is_not_there(t: Talk) -> Any:
    return tuple(
        [
            await t.ask(operation, body, stranger=stranger)
            for task_id, stranger in (("nowhere", False), (t.done, True))
            for operation, body in (
                ("CreateTaskPushNotificationConfig", {"taskId": task_id, **PUSH}),
                ("GetTaskPushNotificationConfig", {"taskId": task_id, "id": "p-1"}),
                ("ListTaskPushNotificationConfigs", {"taskId": task_id}),
                ("DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": "p-1"}),
            )
        ]
    )


@row("card of sample")
async def get_the_card(t: Talk) -> Any:
    return await t.ask("GetExtendedAgentCard")
