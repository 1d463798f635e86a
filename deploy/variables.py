"""Environment variables: which of those that are there are settings."""

import os
import re
from collections.abc import Iterable
from importlib.metadata import entry_points

PREFIX = "SKILLBUS_"
# Variables with our prefix that are no settings: a credential, the way to the file, the tests' broker, the host
# tools' own; and what Kubernetes puts into every container beside a service that is called skillbus.
NO_SETTING = re.compile(
    r"SKILLBUS_(SESSION|CONFIG|TEST_AMQP_URL|FS_(BACKEND|ROOT|WRITE)"
    r"|SEARCH_(BACKEND|URL|API_KEY(_FILE)?)|KB_(BACKEND|FILE)|ALLOWED_PLUGINS"
    r"|MAIL_(BACKEND|HOST|PORT|SECURITY|CA_FILE|USERNAME|PASSWORD(_FILE)?|SENDER|SUBJECT|DEFAULT_TO)"
    r"|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)?))"
)
# What the backends of others may read.
BACKEND_OPTION = re.compile(r"SKILLBUS_(SEARCH|KB|MAIL)_\w+")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def present(known: Iterable[str]) -> list[str]:
    """The variables that are there and are settings, or that look like one and are none."""
    settings = {variable(name) for name in known}
    return sorted(
        name
        for name in map(str.upper, os.environ)
        if name in settings or (name.startswith(PREFIX) and not NO_SETTING.fullmatch(name) and not _is_foreign(name))
    )


def _is_foreign(variable: str) -> bool:
    """Whether it may be meant for a backend that another distribution brings, which knows itself what it reads."""
    match = BACKEND_OPTION.fullmatch(variable)
    if match is None:
        return False
    kind = match[1].lower()
    return any(point.name.startswith(f"{kind}.") for point in entry_points(group="skillbus.backends"))
