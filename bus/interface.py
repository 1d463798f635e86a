"""Where an agent is called: the URL of this binding's interface in an agent card."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from bus.errors import InvalidParams
from bus.names import Names, check_agent

_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True, slots=True)
class Interface:
    """`amqp(s)://host[:port][/vhost]?agent=<agent>[&prefix=<prefix>]`, and never a credential in it.

    `host` is in lower case; a `port` that a URL leaves out is the scheme's own, a `vhost` that it leaves out is `/`.
    """

    agent: str
    host: str
    port: int
    vhost: str = "/"
    prefix: str = "a2a"
    tls: bool = True

    @classmethod
    def read(cls, url: str) -> Self:
        """The interface that a card names. Raises `InvalidParams` for another URL."""
        scheme, host, port, vhost = _broker(url)
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise InvalidParams("the URL of an agent card's interface holds no credentials")
        query = parse_qs(parts.query)
        agents, prefixes = query.get("agent", []), query.get("prefix", ["a2a"])
        if len(agents) != 1 or len(prefixes) != 1:
            raise InvalidParams("the URL of an agent card's interface names one agent: ?agent=<agent>")
        return cls(check_agent(agents[0]), host, port, vhost, Names(prefixes[0]).prefix, scheme == "amqps")

    @classmethod
    def at(cls, broker: str, agent: str, prefix: str = "a2a") -> Self:
        """The interface of an agent at a broker's URL, without its credentials and options. Raises `InvalidParams`."""
        scheme, host, port, vhost = _broker(broker)
        return cls(check_agent(agent), host, port, vhost, Names(prefix).prefix, scheme == "amqps")

    @property
    def broker(self) -> str:
        """The URL of the broker alone."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp{'s' if self.tls else ''}://{host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def url(self) -> str:
        """As it stands in a card."""
        prefix = {} if self.prefix == "a2a" else {"prefix": self.prefix}
        return f"{self.broker}?{urlencode({'agent': self.agent, **prefix})}"

    def is_at(self, broker: str) -> bool:
        """Whether a broker's URL, credentials and options aside, is where this interface is."""
        return _broker(broker) == _broker(self.broker)


def _broker(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise InvalidParams("the port of a broker's URL is not a port") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidParams("a broker's URL begins with amqp:// or amqps:// and names a host")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme], unquote(parts.path.removeprefix("/")) or "/"
