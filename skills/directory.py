"""A directory tree that nothing can be opened outside of."""


class Directory:
    """Opened once by descriptor; every path is resolved beneath it, link by link (to be written)."""
