"""RabbitMQ's management API: what AMQP itself can neither show nor set."""

import re
import ssl
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

import httpx
from yarl import URL

from bus.driver import Binding
from bus.topology import Policy

from .topology import Seen

TIMEOUT = 10.0
"""Seconds for one answer."""

_QUEUES = ("all", "queues", "quorum_queues")
_USUAL: Mapping[str, Any] = {"durable": True, "auto_delete": False, "internal": False}


class ManagementError(Exception):
    """The management API can't be used; the text says what to do, and never shows a password."""


class Management:
    """The API of one broker and virtual host, as `async with`. The credentials are those of the AMQP URL."""

    def __init__(self, url: str, amqp_url: str) -> None:
        amqp, own = URL(amqp_url), URL(url)
        self._user = own.user or amqp.user or "guest"
        self.vhost = vhost_of(amqp_url)
        self._base = own.with_user(None).with_query(None).with_fragment(None)
        password = own.password if own.user else amqp.password
        verify: bool | ssl.SSLContext = True
        if own.scheme == "https" and "cafile" in amqp.query:
            verify = ssl.create_default_context(cafile=amqp.query["cafile"])
        self._client = httpx.AsyncClient(
            auth=(self._user, "guest" if password is None else password), timeout=TIMEOUT, verify=verify
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def look(self) -> Seen:
        """All exchanges, durable queues, bindings and policies of the virtual host. Raises `ManagementError`."""
        exchanges = await self._get("exchanges", "name,type,durable,auto_delete,internal,arguments")
        queues = await self._get("queues", "name,durable,auto_delete,exclusive,arguments")
        bindings = await self._get("bindings", "source,destination,destination_type,routing_key")
        passing = {each["name"] for each in queues if each.get("exclusive")}
        return Seen(
            {each["name"]: _kind(each) for each in exchanges if each["name"]},
            {each["name"]: _arguments(each) for each in queues if each["name"] not in passing},
            frozenset(
                _binding(each)
                for each in bindings
                if each["source"] and not (each["destination_type"] == "queue" and each["destination"] in passing)
            ),
            {each["name"]: _policy(each) for each in await self._get("policies") if each.get("apply-to") in _QUEUES},
        )

    async def set_policy(self, policy: Policy) -> None:
        """Make a policy, or put it in the place of one of the same name. Raises `ManagementError`."""
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": "queues",
        }
        await self._ask("PUT", f"policies/{quote(self.vhost, safe='')}/{quote(policy.name, safe='')}", json=body)

    async def _get(self, what: str, columns: str | None = None) -> list[dict[str, Any]]:
        query = {"columns": columns} if columns else {}
        answer = await self._ask("GET", f"{what}/{quote(self.vhost, safe='')}", params=query)
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise ManagementError(f"{self._base} is no management API of RabbitMQ: mend --management-url")
        return found

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = await self._client.request(method, f"{str(self._base).rstrip('/')}/api/{path}", **more)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = str(error) or type(error).__name__
            raise ManagementError(f"the management API at {self._base} can't be reached: {text}") from None
        if answer.status_code in (401, 403):
            raise ManagementError(
                f"the management API at {self._base} refuses the user {self._user}: check the password, and let it in "
                f"with `rabbitmqctl set_user_tags {self._user} policymaker` (tags that it has already are named too)"
            )
        if answer.status_code == 404:
            raise ManagementError(
                f"the management API at {self._base} knows no virtual host {self.vhost}: mend --management-url, or the "
                "end of --amqp-url"
            )
        if not answer.is_success:
            said = re.sub(r"[^\x20-\x7e]+", " ", answer.text)[:200]
            raise ManagementError(
                f"the management API at {self._base} answers {answer.status_code}: is --management-url right? {said}"
            )
        return answer


def vhost_of(amqp_url: str) -> str:
    """The virtual host that an AMQP URL leads to."""
    return URL(amqp_url).path[1:] or "/"


def _kind(exchange: Mapping[str, Any]) -> str:
    unlike = [f"{name} {exchange[name]}" for name, usual in _USUAL.items() if exchange.get(name, usual) != usual]
    unlike += [f"{name} {value}" for name, value in (exchange.get("arguments") or {}).items()]
    return ", ".join([str(exchange["type"]), *unlike])


def _arguments(queue: Mapping[str, Any]) -> dict[str, Any]:
    unlike = {name: queue[name] for name, usual in _USUAL.items() if queue.get(name, usual) != usual}
    return {**(queue.get("arguments") or {}), **unlike}


def _binding(binding: Mapping[str, Any]) -> Binding:
    into = binding["destination"]
    if binding["destination_type"] != "queue":
        into = f"{binding['destination_type']} {into}"
    return Binding(binding["source"], into, binding["routing_key"])


def _policy(policy: Mapping[str, Any]) -> Policy:
    return Policy(policy["name"], policy["pattern"], policy["definition"], policy["priority"])
