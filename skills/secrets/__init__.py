"""Secrets of declared tools: where values come from, and what keeps them out of everything that is said or kept."""

from .known import redact_known, redactor_of
from .redaction import Redactor, Stream
from .reporter import RedactingReporter
from .resolve import SecretsMissing, Unresolved, resolve
from .source import BadSource, CommandSource, EnvironmentSource, FileSource, NotResolved, Source, source_of
from .value import Secret

__all__ = [
    "BadSource",
    "CommandSource",
    "EnvironmentSource",
    "FileSource",
    "NotResolved",
    "RedactingReporter",
    "Redactor",
    "Secret",
    "SecretsMissing",
    "Source",
    "Stream",
    "Unresolved",
    "redact_known",
    "redactor_of",
    "resolve",
    "source_of",
]
