"""The `.tb` language: contracts of external effects, their neutral form, and the manifest that binds them to handlers.

Nothing here runs a handler, or asks for a secret's value. lark is imported with the first source that is parsed.
"""

# ruff: noqa: I001 - the groups are the map

# from a source to its AIR
from .compiler import compile_source, parse
from .fault import Extension, Fault, NotAContract, Oddity, Position
from .syntax import Source
from .library import Library
from .air import Air, AirTool
from .checker import CAPABILITIES, Requirements
from .formatter import fmt

# what is granted, and by whom it is kept
from .binding import Binding, Manifest
from .handler import HandlerName
from .manifest import MANIFEST, ManifestError, manifest, read_manifest
from .provider import FromCommand, FromEnvironment, FromFile, Provider
from .store import MemoryGrant, Store

# before a handler runs
from .satisfaction import Bound, Refused, satisfy
from .publication import Unpublishable, contract_of
from .value import problems

# on disk
from .folder import Folder, Standing, read_contract
from .starter import starter

__all__ = [
    "CAPABILITIES",
    "MANIFEST",
    "Air",
    "AirTool",
    "Binding",
    "Bound",
    "Extension",
    "Fault",
    "Folder",
    "FromCommand",
    "FromEnvironment",
    "FromFile",
    "HandlerName",
    "Library",
    "Manifest",
    "ManifestError",
    "MemoryGrant",
    "NotAContract",
    "Oddity",
    "Position",
    "Provider",
    "Refused",
    "Requirements",
    "Source",
    "Standing",
    "Store",
    "Unpublishable",
    "compile_source",
    "contract_of",
    "fmt",
    "manifest",
    "parse",
    "problems",
    "read_contract",
    "read_manifest",
    "satisfy",
    "starter",
]
