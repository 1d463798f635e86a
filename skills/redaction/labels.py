"""What looks like a secret by what stands before it: in text that is not ours, whose secrets nobody has told us."""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[REDACTED]"
LONGEST = 2000
"""Characters that are kept of a text."""

MOST = 100
"""Items that are kept of a list."""

_MEMBERS = frozenset({"api_key", "token", "secret", "password", "authorization", "content"})
_LABELLED = re.compile(
    r"((?:api[_-]?key|token|secret|password|authorization)\s*[=:]\s*)[^\s,;]+(?:[ \t]+[^\s,;]+)?", re.IGNORECASE
)
_KEY = re.compile(r"\b(?:sk|ghp|github_pat|xoxb|xoxp)[_-][A-Za-z0-9_-]{12,}")
_DEEPEST = 64


def redact_text(text: str) -> str:
    """A text without what follows `token=`, `password:` and the like, and without what looks like a service's key."""
    return _KEY.sub(REDACTED, _LABELLED.sub(rf"\g<1>{REDACTED}", text))


def redact_labelled(value: Any, _depth: int = 0) -> Any:
    """A JSON value without what looks like a secret, and cut to a size that a log bears.

    The values of members that are called so, and of `content`, go whatever they are; texts as `redact_text` has them.
    """
    if isinstance(value, str):
        return redact_text(value[:LONGEST])
    if _depth >= _DEEPEST:
        return REDACTED
    if isinstance(value, Mapping):
        return {
            name: REDACTED if str(name).lower() in _MEMBERS else redact_labelled(member, _depth + 1)
            for name, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_labelled(item, _depth + 1) for item in value[:MOST]]
    return value
