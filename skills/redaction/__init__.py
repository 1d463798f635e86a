"""What keeps the values of secrets out of everything that is said or kept."""

from .known import redact_known, redactor_of
from .labels import redact_labelled, redact_text
from .redactor import Redactor, Stream
from .reporter import RedactingReporter
from .secret import Secret

__all__ = [
    "RedactingReporter",
    "Redactor",
    "Secret",
    "Stream",
    "redact_known",
    "redact_labelled",
    "redact_text",
    "redactor_of",
]
