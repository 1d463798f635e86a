"""Who answers for the AILANG file tools here: the native handler, by content address."""

from .. import canonical

PACKAGE = "skillbus"
VERSION = "0.1.0"
HANDLER = "ailang-files"

# Stands where the original names its tool binary by hash: changes with the version, and with nothing else.
TOOL = canonical.ref(canonical.encode({"handler": HANDLER, "package": PACKAGE, "version": VERSION}))
