"""The host tools: calc, the file tools, search, search_kb, send_reply, each in the tier that the operator chose."""

# ruff: noqa: I001 - the groups are the map

import logging
from collections.abc import Iterable, Mapping

from ..pack import PackContext
from ..skill import Skill

# the tools
from .calc import calc
from .list_files import list_files
from .read_file import read_file
from .search import search
from .search_kb import search_kb
from .send_reply import send_reply
from .write_file import write_file

# what the operator sets
from .bindings import Binding, bind, resolve
from .runtime import tools_block
from .settings import FileSettings

# a backend of one's own
from .backends import BackendContext, BackendError, KnowledgeBackend, MailBackend, Outgoing, SearchBackend, Unconfigured

log = logging.getLogger(__name__)

# Where the table of a tool is not called as the tool is.
_TABLES = {"list_files": "fs", "read_file": "fs", "write_file": "fs", "search_kb": "kb", "send_reply": "mail"}


def pack(context: PackContext) -> Iterable[Skill]:
    """The pack `host`, each tool in the tier that the operator chose."""
    for name in sorted(_TABLES.keys() & context.config.keys()):
        log.warning("tools.%s is not taken: the table of this tool is tools.%s", name, _TABLES[name])
    original = tools_block(context.environ)
    files = FileSettings.resolve(_over(original, context.config), context.environ)
    return (
        calc(),
        list_files(files),
        read_file(files),
        write_file(files),
        search(bind("search", context, original=original)),
        search_kb(bind("kb", context, original=original)),
        send_reply(bind("mail", context, original=original)),
    )


def _over(original: Mapping[str, object], config: Mapping[str, object]) -> Mapping[str, object]:
    """Our own table of the file tools, over what the original's file says of them."""
    below, ours = original.get("fs"), config.get("fs")
    if not isinstance(below, Mapping):
        return config
    return {**config, "fs": {**below, **ours} if isinstance(ours, Mapping) else below}


__all__ = [
    "BackendContext",
    "BackendError",
    "Binding",
    "FileSettings",
    "KnowledgeBackend",
    "MailBackend",
    "Outgoing",
    "SearchBackend",
    "Unconfigured",
    "bind",
    "calc",
    "list_files",
    "pack",
    "read_file",
    "resolve",
    "search",
    "search_kb",
    "send_reply",
    "tools_block",
    "write_file",
]
