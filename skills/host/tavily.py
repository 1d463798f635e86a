"""A web search by Tavily (https://tavily.com), which needs a key."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import SecretStr

from ..redaction import Redactor, Secret
from . import http
from .backends import BackendContext, BackendError, Unconfigured

URL = "https://api.tavily.com/search"
MIN_KEY = 8  # characters


class Tavily:
    """The backend `tavily`."""

    def __init__(self, key: SecretStr, url: str = URL) -> None:
        self._key, self._url = key, url
        value = key.get_secret_value()
        # A short one would be found everywhere.
        self._redactor = Redactor([Secret("api_key", value)] if len(value) >= MIN_KEY else [])

    @classmethod
    def configured(cls, context: BackendContext) -> Self:
        """With the key of `TAVILY_API_KEY`. Raises Unconfigured."""
        key = context.secret("api_key", "TAVILY_API_KEY")
        if key is None:
            raise Unconfigured("set TAVILY_API_KEY, or TAVILY_API_KEY_FILE to a file that holds it")
        return cls(key, http.check_url(context.option("url") or URL, "SKILLBUS_SEARCH_URL"))

    async def search(self, query: str, *, max_results: int, days: int | None, topic: str | None) -> Any:
        """The hits for a query. Raises BackendError."""
        asked: dict[str, Any] = {
            "api_key": self._key.get_secret_value(),
            "query": query,
            "max_results": max_results,
            "include_answer": False,
        }
        asked |= {"days": days} if days is not None else {}
        asked |= {"topic": topic} if topic is not None else {}
        answer = await http.ask("POST", self._url, json=asked, redactor=self._redactor)
        return rows(answer)


def rows(answer: Any) -> Any:
    """The hits of an answer, each with the names that the tool knows. Raises BackendError."""
    if not isinstance(answer, Mapping):
        raise BackendError("the answer is not a JSON object")
    found = answer.get("results") or []
    if not isinstance(found, list):
        return found  # which the tool refuses
    return [
        {
            "title": row.get("title"),
            "url": row.get("url"),
            "snippet": row.get("content") or row.get("snippet"),
            "published_date": row.get("published_date") or row.get("publishedDate") or row.get("date"),
        }
        for row in found
        if isinstance(row, Mapping)
    ]
