"""The host tools with a backend, granted, spent and logged like any other skill."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.agent.agent import SkillAgent
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, PackContext
from skills.host import pack
from tests.skills.host.post import Post, post_office
from tests.skills.host.service import Service, answering

from .house import House

KEY = "tvly-0123456789-hush"
GRANTS = (("Web.Search", "web"), ("Knowledge.Search", "kb"), ("Mail.Send", "mail"))


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with answering() as service:
        yield service


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    async with post_office() as post:
        yield post


@pytest.fixture
async def host(ledger: Ledger, tmp_path: Path, service: Service, post: Post) -> AsyncIterator[House]:
    environ = {
        "TAVILY_API_KEY": KEY,
        "SKILLBUS_SEARCH_URL": service.url,
        "SKILLBUS_MAIL_BACKEND": "smtp",
        "SKILLBUS_MAIL_HOST": "localhost",
        "SKILLBUS_MAIL_PORT": str(post.port),
        "SKILLBUS_MAIL_SENDER": "desk@shop.example",
        "SKILLBUS_MAIL_SECURITY": "none",
    }
    catalog = Catalog()
    assert catalog.add("host", pack(PackContext({}, environ)))
    credential, session = mint("ep9", [Grant(*grant, 2, 2**40) for grant in GRANTS], ttl=600)
    await ledger.add_session(session)
    pipeline = Pipeline(catalog, ledger, Worktrees(tmp_path / "worktrees"), owner="host", version="1")
    yield House(SkillAgent("house", pipeline, ledger, version="1"), credential)
    await pipeline.close()


def artifact(answer: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    (found,) = answer["task"]["artifacts"]
    return answer["task"]["status"]["state"].removeprefix("TASK_STATE_"), found["parts"][0]["data"], found["metadata"]


async def test_a_message_is_sent_once_however_often_it_is_asked_for(host: House, post: Post) -> None:
    letter = {"to": "ada@example.com", "body": "Your refund is on its way."}
    first, *others = await asyncio.gather(*(host.send("send_reply", letter, message_id="m1") for _ in range(3)))
    assert all(other == first for other in others)
    state, output, metadata = artifact(first)
    assert (state, output["sent"], output["stub"], metadata["tier"]) == ("COMPLETED", True, False, "live")
    assert [each["Message-ID"] in output["note"] for each in post.letters] == [True]
    await host.send("send_reply", letter, message_id="m2")
    state, output, metadata = artifact(await host.send("send_reply", letter, message_id="m3"))
    assert (state, metadata["outcome"], output["sent"]) == ("REJECTED", "denied:budget", False)
    assert output["error"] == "the Mail.Send effect ended denied"
    assert len(post.letters) == 2


async def test_a_rate_limit_is_told_and_its_retry_is_another_call(host: House, service: Service) -> None:
    service.answer(b"", status=429, reason="Too Many Requests", Retry_After="7")
    for _ in range(2):
        state, output, metadata = artifact(await host.send("search", {"query": "q"}, message_id="m1"))
        assert (state, metadata["status"], metadata["retryable"]) == ("COMPLETED", "error", True)
        assert output["retry_after"] == 7
    assert len(service.requests) == 1
    service.answer(b'{"results": [{"title": "T", "content": "' + KEY.encode() + b'"}]}')
    state, output, metadata = artifact(await host.send("search", {"query": "q"}, message_id="m2"))
    assert (metadata["status"], metadata["retryable"], metadata["untrusted"]) == ("ok", False, True)
    assert [row["title"] for row in output["results"]] == ["T"]


async def test_what_is_refused_costs_nothing(host: House) -> None:
    for number in range(4):
        state, output, _ = artifact(await host.send("search", {"query": " "}, message_id=f"r{number}"))
        assert (state, output["error"], output["world"]["effects"]) == ("REJECTED", "empty query", [])


async def test_the_stub_of_the_knowledge_base_is_an_effect(host: House) -> None:
    for number, outcome in enumerate(["succeeded", "succeeded", "denied:budget"]):
        _, output, metadata = artifact(await host.send("search_kb", {"query": "refund"}, message_id=f"k{number}"))
        assert (metadata["outcome"], metadata["tier"], output["stub"]) == (outcome, "stub", True)


async def test_no_secret_is_in_the_ledger(host: House, service: Service, tmp_path: Path) -> None:
    service.answer(b'{"results": [{"title": "' + KEY.encode() + b'"}]}')
    card = await host.ask("GetExtendedAgentCard", {})
    answer = await host.send("search", {"query": "q"})
    assert KEY not in str(card) + str(answer)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
