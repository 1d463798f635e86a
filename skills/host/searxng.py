"""A web search by an instance of SearXNG (https://docs.searxng.org/dev/search_api.html), which needs no key."""

from typing import Any, Self

from . import http
from .backends import BackendContext, Unconfigured
from .tavily import rows

ADVICE = {403: "the instance must list json under search.formats in its settings.yml"}


class Searxng:
    """The backend `searxng`; `url` is the instance, without `/search`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/search"

    @classmethod
    def configured(cls, context: BackendContext) -> Self:
        """The instance of `SKILLBUS_SEARCH_URL`. Raises Unconfigured."""
        url = context.option("url")
        if not url:
            raise Unconfigured("set SKILLBUS_SEARCH_URL to the URL of the instance")
        return cls(http.check_url(url, "SKILLBUS_SEARCH_URL"))

    async def search(self, query: str, *, max_results: int, days: int | None, topic: str | None) -> Any:
        """The hits for a query, the first `max_results` of the instance's page. Raises BackendError."""
        asked = {"q": query, "format": "json", "categories": topic or "general"}
        if days is not None:
            asked["time_range"] = "day" if days <= 1 else "month" if days <= 31 else "year"
        return rows(await http.ask("POST", self._url, data=asked, advice=ADVICE))
