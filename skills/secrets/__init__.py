"""From the handles of secrets to their values, when a call is dispatched."""

from ..redaction import Secret
from .reading import NotResolved, read
from .resolve import SecretsMissing, Unresolved, resolve

__all__ = ["NotResolved", "Secret", "SecretsMissing", "Unresolved", "read", "resolve"]
