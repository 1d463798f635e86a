"""Who answers for the AILANG tools here without a binary: the native handlers, by content address."""

from .. import canonical

PACKAGE = "skillbus"
VERSION = "0.1.0"


def address(handler: str) -> str:
    """Stands where the original names its tool binary by hash: changes with the version, and with nothing else."""
    return canonical.ref(canonical.encode({"handler": handler, "package": PACKAGE, "version": VERSION}))


TOOL = address("ailang-files")
EXAMPLES_TOOL = address("ailang-examples")
