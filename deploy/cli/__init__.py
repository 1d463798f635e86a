"""The command line: `skillbus`."""

from .app import main

__all__ = ["main"]
