"""What RabbitMQ has to let a user do: no more than its part needs, as `docs/operations.md` lists it."""

import re
import shlex
from typing import NamedTuple, Self

from bus import Names


class Permissions(NamedTuple):
    """The three patterns of names that RabbitMQ keeps for a user in a virtual host."""

    configure: str
    write: str
    read: str

    @classmethod
    def worker(cls, names: Names, agent: str) -> Self:
        """Of a worker that only looks for what it needs, and makes its own ear."""
        prefix, agent = re.escape(names.prefix), re.escape(agent)
        return cls(
            rf"^{prefix}\.ctl\.{agent}\..*$",
            rf"^({prefix}\.(ctl(\.{agent}\..*)?|cards)|amq\.default)$",
            rf"^{prefix}\.(ctl(\.{agent}\..*)?|q\.{agent}(\.(ask|batch))?|dead)$",
        )

    @classmethod
    def caller(cls, names: Names, user: str) -> Self:
        """Of a client, which reads its own replies alone."""
        prefix = re.escape(names.prefix)
        own = rf"^{prefix}\.reply\.{re.escape(user)}\..*$"
        return cls(own, rf"^{prefix}\.(requests|ctl)$", own)

    def command(self, user: str, vhost: str) -> str:
        """The command that gives them to the user, in place of what it had."""
        return shlex.join(["rabbitmqctl", "set_permissions", "-p", vhost, user, *self])
