import asyncio
import json
import logging
from typing import Any

import pytest

from skills import PackContext, Skill
from skills.host import Binding, bind, search, tavily
from tests.skills.host.asking import ask
from tests.skills.host.service import Service, answering

KEY = "tvly-0123456789-hush"


def bound(service: Service, **environ: str) -> Binding:
    return bind("search", PackContext({}, {"TAVILY_API_KEY": KEY, "SKILLBUS_SEARCH_URL": service.url, **environ}))


def skill(service: Service) -> Skill:
    return search(bound(service))


async def test_hits_are_fenced_and_cut() -> None:
    row = {"title": "t" * 301, "url": "u" * 501, "content": "\x1b[31m\ud800\0" + "s" * 800, "published_date": "d" * 65}
    async with answering() as service:
        service.answer(json.dumps({"results": [row, "no row", None, {"title": 7, "snippet": {"a": 1}}]}).encode())
        output = await ask(skill(service), {"query": "q"})
    assert (output["stub"], output["error"]) == (False, None)
    first, second = output["results"]
    lengths = {name: len(value) for name, value in first.items()}
    assert lengths["title"] == 300
    assert lengths["url"] == 500
    assert lengths["published_date"] == 64
    assert first["snippet"].startswith("\x1b[31m\\ud800\0sss")
    assert second == {"title": "7", "url": "", "snippet": "{'a': 1}"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([], "search failed: the answer is not a JSON object"),
        ({"results": "x"}, "backend returned non-list results"),
        ({"results": {"a": 1}}, "backend returned non-list results"),
    ],
)
async def test_a_malformed_answer_is_an_error(answer: Any, error: str) -> None:
    async with answering() as service:
        service.answer(json.dumps(answer).encode())
        output = await ask(skill(service), {"query": "q"})
    assert (output["error"], output["retryable"], output["stub"]) == (error, False, False)


async def test_a_rate_limit_is_retryable() -> None:
    async with answering() as service:
        service.answer(b"{}", status=429, reason="Too Many Requests", Retry_After="7")
        output = await ask(skill(service), {"query": "q"})
    assert output["error"] == "search failed: HTTP Error 429: Too Many Requests; retry after 7 s"
    assert (output["retryable"], output["retry_after"]) == (True, 7.0)


async def test_nobody_listens() -> None:
    async with answering() as service:
        pass
    output = await ask(skill(service), {"query": "q"})
    assert (output["error"], output["retryable"]) == ("search failed: the service can't be reached", True)


async def test_the_deadline_of_the_call_is_kept() -> None:
    async with answering() as service:
        service.hang()
        output = await ask(skill(service), {"query": "q"}, seconds=0.6)
    assert (output["error"], output["retryable"]) == ("search failed: timed out", True)


async def test_a_cancel_goes_through_and_closes_the_connection() -> None:
    async with answering() as service:
        service.hang()
        task = asyncio.create_task(ask(skill(service), {"query": "q"}))
        await asyncio.wait_for(service.asked.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_key_is_nowhere_but_in_the_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with answering() as service:
        binding = bound(service)
        for status in (200, 401, 500):
            service.answer(
                json.dumps({"results": [{"title": KEY, "url": KEY, "content": KEY}]}).encode(), status=status
            )
            output = await ask(search(binding), {"query": "q"})
            assert KEY not in repr(output)
    assert all(json.loads(request.body)["api_key"] == KEY for request in service.requests)
    assert KEY not in repr(binding) + repr(vars(binding.backend)) + repr(search(binding))
    assert KEY not in caplog.text


async def test_without_a_key_it_is_not_bound(caplog: pytest.LogCaptureFixture) -> None:
    binding = bind("search", PackContext({"search": {"backend": "tavily"}}))
    assert (binding.name, binding.source, binding.tier, binding.backend) == ("stub", "config", "stub", None)
    assert "backend 'search.tavily' is left out: set TAVILY_API_KEY" in caplog.text


def test_the_service_is_that_of_tavily_unless_another_is_named() -> None:
    binding = bind("search", PackContext({}, {"TAVILY_API_KEY": KEY}))
    assert (binding.name, binding.source, binding.tier) == ("tavily", "default", "live")
    assert vars(binding.backend)["_url"] == tavily.URL
