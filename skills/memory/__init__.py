"""Memories of declared tools: what one call keeps for later ones, within the scope that its manifest says."""

# ruff: noqa: I001 - the groups are the map

# where memories are kept
from .database import StoreError
from .limits import Limits
from .store import MemoryStore

# whose they are
from .place import NoOwner, Place, Scope, place_of

# what a call does with them
from .work import Readable, ReadableAndWritable, Work, Writable

# what goes wrong
from .errors import Conflict, MemoryFault, StoreAway, TooMuch, Unfit

__all__ = [
    "Conflict",
    "Limits",
    "MemoryFault",
    "MemoryStore",
    "NoOwner",
    "Place",
    "Readable",
    "ReadableAndWritable",
    "Scope",
    "StoreAway",
    "StoreError",
    "TooMuch",
    "Unfit",
    "Work",
    "Writable",
    "place_of",
]
