"""The tiers below live: the stubs that say so, and the deterministic fakes."""

from collections.abc import Mapping, Sequence
from typing import Any

from .backends import Outgoing

STUB_FACTS = (
    "Warranty: 30-day return on unopened items with receipt.",
    "Billing: refunds over €50 require manager review.",
    "Bugs: known issue tracker acknowledges intermittent login 5xx; workaround is retry after 60s.",
)
FAKE_FACTS = (
    "Fake KB: product X is covered under plan Basic.",
    "Fake KB: contact support@example.com for escalations.",
)
FAKE_ROWS: Sequence[Mapping[str, str]] = (
    {
        "title": "Example result",
        "url": "https://example.com/",
        "snippet": "A deterministic fake search hit for query testing.",
    },
)
MAX_OUTBOX = 100  # messages that a fake keeps; the oldest goes first


class FakeSearch:
    """The same rows for every query, which each of them names."""

    def __init__(self, rows: Sequence[Mapping[str, Any]] = FAKE_ROWS) -> None:
        self._rows = rows

    async def search(self, query: str, *, max_results: int, days: int | None, topic: str | None) -> Any:
        rows = self._rows[:max_results]
        return [{**row, "snippet": f"{row.get('snippet', '')} (q={query!r})".strip()} for row in rows]


class StubKnowledge:
    """The facts of a demonstration, whatever is asked."""

    async def lookup(self, query: str) -> Any:
        return [*STUB_FACTS, f"(stub demo facts for query={query!r})"]


class FakeKnowledge:
    """The same facts for every query, which each of them names."""

    def __init__(self, facts: Sequence[str] = FAKE_FACTS) -> None:
        self._facts = facts

    async def lookup(self, query: str) -> Any:
        return [f"{fact} (q={query!r})" for fact in self._facts]


class StubMail:
    """Takes note of the wish and sends nothing."""

    async def send(self, message: Outgoing) -> Any:
        return {
            "sent": False,
            "recorded": True,
            "delivery": "stub",
            "note": "Stub only — no message left the host. Bind a real mail/ticket tool for production.",
        }


class FakeMail:
    """Keeps the newest messages in `outbox`; one that is sent again is kept once."""

    def __init__(self) -> None:
        self.outbox: dict[str, Outgoing] = {}

    async def send(self, message: Outgoing) -> Any:
        self.outbox[message.key] = message
        while len(self.outbox) > MAX_OUTBOX:
            del self.outbox[next(iter(self.outbox))]
        return {
            "sent": True,
            "recorded": True,
            "delivery": "fake",
            "note": "Fake mail backend — message kept in process memory only.",
        }
