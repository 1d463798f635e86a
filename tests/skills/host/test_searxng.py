import json
from urllib.parse import parse_qs

import pytest

from skills import PackContext
from skills.host import bind, search
from tests.skills.host.asking import ask
from tests.skills.host.service import Service, answering


def context(service: Service) -> PackContext:
    environ = {"SKILLBUS_SEARCH_BACKEND": "searxng"}
    return PackContext({"search": {"url": service.url.removesuffix("/search") + "/"}}, environ)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({}, {"categories": ["general"]}),
        ({"topic": "news", "days": 1}, {"categories": ["news"], "time_range": ["day"]}),
        ({"topic": "sports", "days": 7}, {"categories": ["general"], "time_range": ["month"]}),
        ({"days": 400}, {"categories": ["general"], "time_range": ["year"]}),
    ],
)
async def test_an_instance_is_asked(arguments: dict[str, object], asked: dict[str, object]) -> None:
    row = {"title": "T", "url": "https://t", "content": "C", "publishedDate": "2026-01-02", "engine": "x", "score": 1}
    async with answering() as service:
        service.answer(json.dumps({"query": "q & a", "results": [row] * 20, "suggestions": []}).encode())
        output = await ask(search(bind("search", context(service))), {"query": "q & a", **arguments})
    (request,) = service.requests
    assert (request.method, request.path) == ("POST", "/search")
    assert parse_qs(request.body.decode()) == {"q": ["q & a"], "format": ["json"], **asked}
    assert (output["stub"], output["error"], len(output["results"])) == (False, None, 5)
    assert output["results"][0] == {"title": "T", "url": "https://t", "snippet": "C", "published_date": "2026-01-02"}


async def test_an_instance_without_json_says_what_to_do() -> None:
    async with answering() as service:
        service.answer(b"", status=403, reason="Forbidden")
        output = await ask(search(bind("search", context(service))), {"query": "q"})
    assert "search.formats" in output["error"]
    assert output["retryable"] is False


@pytest.mark.parametrize("url", ["", "searx.example", "https://searx.example/?token=hush"])
def test_without_a_url_it_is_not_bound(url: str, caplog: pytest.LogCaptureFixture) -> None:
    binding = bind("search", PackContext({"search": {"backend": "searxng", "url": url}}))
    assert (binding.tier, binding.backend) == ("stub", None)
    assert "SKILLBUS_SEARCH_URL" in caplog.text
    assert "hush" not in caplog.text


def test_the_originals_own_variable_knows_nothing_of_it() -> None:
    environ = {"MKLANG_SEARCH_BACKEND": "searxng", "SKILLBUS_SEARCH_URL": "https://searx.example"}
    assert bind("search", PackContext({}, environ)).tier == "stub"
