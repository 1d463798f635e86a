"""Which backend stands behind a tool: chosen by the environment, the configuration, or a default, then made."""

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..pack import PackContext, Problem, distribution_of
from ..skill import Tier
from . import fakes
from .backends import BackendContext, Kind, Unconfigured
from .settings import Setting, Source, warn_of_variables

GROUP = "skillbus.backends"
INDEX = "kb.db"  # in the folder of the state, where no other file is named
NOTHING = frozenset({"stub", "none", "off"})  # names that ask for the lowest tier
SECRETS = frozenset({"api_key", "password"})  # a value in the configuration file is not taken

Factory = Callable[[BackendContext], Any]

_NAME = re.compile(r"(search|kb|mail)\.([a-z0-9][a-z0-9_-]*)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Builtin:
    """A backend of this distribution: its tier, and the settings that it reads besides `backend`."""

    tier: Tier
    make: Factory
    options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Binding:
    """What a tool is bound to. `backend` is None where nothing is; `raise_tier` tells how to get a higher tier."""

    name: str
    source: Source
    tier: Tier
    backend: Any
    raise_tier: str = ""


def _tavily(context: BackendContext) -> Any:
    from .tavily import Tavily  # the HTTP client is large, and only those who search the web pay for it

    return Tavily.configured(context)


def _searxng(context: BackendContext) -> Any:
    from .searxng import Searxng

    return Searxng.configured(context)


def _index(context: BackendContext) -> Any:
    from .knowledge import Knowledge

    return Knowledge.configured(context)


def _smtp(context: BackendContext) -> Any:
    from .smtp import Smtp

    return Smtp.configured(context)


BUILTIN: Mapping[Kind, Mapping[str, Builtin]] = {
    "search": {
        "fake": Builtin("fake", lambda _: fakes.FakeSearch()),
        "tavily": Builtin("live", _tavily, frozenset({"url", "api_key_file"})),
        "searxng": Builtin("live", _searxng, frozenset({"url"})),
    },
    "kb": {
        "fake": Builtin("fake", lambda _: fakes.FakeKnowledge()),
        "index": Builtin("live", _index, frozenset({"file"})),
    },
    "mail": {
        "fake": Builtin("fake", lambda _: fakes.FakeMail()),
        "smtp": Builtin(
            "live",
            _smtp,
            frozenset(
                {"host", "port", "security", "ca_file", "username", "password_file", "sender", "subject", "default_to"}
            ),
        ),
    },
}
# What the original knows; its variables and its file choose among these, as they always did.
ORIGINAL: Mapping[Kind, frozenset[str]] = {
    "search": frozenset({"fake", "tavily"}),
    "kb": frozenset({"fake"}),
    "mail": frozenset({"fake"}),
}
STUBS: Mapping[Kind, Factory | None] = {
    "search": None,
    "kb": lambda _: fakes.StubKnowledge(),
    "mail": lambda _: fakes.StubMail(),
}
RAISE: Mapping[Kind, str] = {
    "search": "set TAVILY_API_KEY, or SKILLBUS_SEARCH_BACKEND=searxng and SKILLBUS_SEARCH_URL",
    "kb": "build an index with `skillbus kb add DIR`; SKILLBUS_KB_FILE names it to a worker with another state_dir",
    "mail": "set SKILLBUS_MAIL_BACKEND=smtp, SKILLBUS_MAIL_HOST and SKILLBUS_MAIL_SENDER",
}


def bind(kind: Kind, pack: PackContext, *, original: Mapping[str, Any] | None = None) -> Binding:
    """The backend that the operator chose, or the stub where none can be made; what is wrong is reported.

    `original` is the `tools:` block of the original's `runtime.yaml`, which counts below our own configuration.
    """
    context = _context(kind, pack)
    _check_table(context)
    foreign = _foreign(kind, pack)
    name, source = _resolved(context, _table(original or {}, kind), foreign, pack)
    if name == "stub":
        return _stub(context, source, _raising(kind, source))
    builtin = BUILTIN[kind].get(name)
    brought = "" if builtin else distribution_of(foreign[name])
    raising = _raising(kind, source)
    try:
        backend = builtin.make(context) if builtin else _loaded(foreign[name])(context)
        _check(kind, backend)
    except Unconfigured as lack:
        pack.report(Problem(f"{kind}.{name}", str(lack), "backend", brought))
        raising = str(lack) if builtin else raising  # callers see it, and a stranger's text may not be meant for them
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        # The text of a stranger's error may hold what its configuration keeps secret.
        pack.report(Problem(f"{kind}.{name}", f"it can't be made ({type(error).__name__})", "backend", brought))
    else:
        tier = builtin.tier if builtin else "live"
        return Binding(name, source, tier, backend, raising if tier != "live" else "")
    return _stub(context, source, raising)


def resolve(kind: Kind, pack: PackContext, *, original: Mapping[str, Any] | None = None) -> Setting[str]:
    """The name of the backend that is asked for, and the layer that asks; "stub" for a name that nobody knows."""
    context = _context(kind, pack)
    return Setting(*_resolved(context, _table(original or {}, kind), _foreign(kind, pack), pack))


def is_allowed(plugin: str, environ: Mapping[str, str]) -> bool:
    """Whether the operator lets an entry point of this name in: all, unless SKILLBUS_ALLOWED_PLUGINS or
    MKLANG_ALLOWED_PLUGINS lists those that are, separated by commas.
    """
    listed = environ.get("SKILLBUS_ALLOWED_PLUGINS", "").strip() or environ.get("MKLANG_ALLOWED_PLUGINS", "").strip()
    return not listed or plugin in {name.strip() for name in listed.split(",")} - {""}


def _context(kind: Kind, pack: PackContext) -> BackendContext:
    context = BackendContext(kind, _table(pack.config, kind), pack.environ)
    if kind == "kb" and pack.state_dir is not None and not context.option("file"):
        standing = pack.state_dir / INDEX
        if standing.is_file():
            return replace(context, config={**context.config, "file": str(standing)})
    return context


def _resolved(
    context: BackendContext, original: Mapping[str, Any], foreign: Mapping[str, EntryPoint], pack: PackContext
) -> tuple[str, Source]:
    kind, environ = context.kind, context.environ
    known = {*BUILTIN[kind], *foreign}
    layers: tuple[tuple[str, Any, frozenset[str] | set[str], Source], ...] = (
        (f"SKILLBUS_{kind.upper()}_BACKEND", environ.get(f"SKILLBUS_{kind.upper()}_BACKEND"), known, "env"),
        (f"MKLANG_{kind.upper()}_BACKEND", environ.get(f"MKLANG_{kind.upper()}_BACKEND"), ORIGINAL[kind], "env"),
        (f"tools.{kind}.backend", context.config.get("backend"), known, "config"),
        (f"tools.{kind}.backend of runtime.yaml", original.get("backend"), ORIGINAL[kind], "config"),
    )
    for where, value, names, source in layers:
        name = value.strip().lower() if isinstance(value, str) else ""
        if name in names:
            return name, source
        if name:
            if name not in NOTHING:  # the value itself may have been meant for another place
                pack.report(Problem(kind, f"{where} names none of {', '.join(sorted(names))}", "backend"))
            return "stub", source
    return _default(context, pack), "default"


def _default(context: BackendContext, pack: PackContext) -> str:
    try:
        if context.kind == "search" and context.secret("api_key", "TAVILY_API_KEY") is not None:
            return "tavily"
    except Unconfigured as lack:
        pack.report(Problem("search.tavily", str(lack), "backend"))
    return "index" if context.kind == "kb" and context.option("file") else "stub"


def _stub(context: BackendContext, source: Source, raising: str) -> Binding:
    make = STUBS[context.kind]
    return Binding("stub", source, "stub", make(context) if make else None, raising)


def _raising(kind: Kind, source: Source) -> str:
    """How to get a higher tier. What is named stays chosen until it is named no longer, or something above it is."""
    if source == "default" or "_BACKEND=" in RAISE[kind].partition(",")[0]:
        return RAISE[kind]
    return f"{RAISE[kind]}; and take out the backend that is named now"


def _foreign(kind: Kind, pack: PackContext) -> dict[str, EntryPoint]:
    """The backends that others bring for a tool, by name: nobody gets the name of another."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        match = _NAME.fullmatch(point.name)
        if match is None:
            if kind == "search":  # once is enough
                reason = "its name must be search., kb. or mail. and a-z 0-9 _ -"
                pack.report(Problem(point.name, reason, "backend", distribution_of(point)))
        elif match[1] == kind:
            taken = match[2] in found and found[match[2]].value != point.value
            if taken or match[2] in BUILTIN[kind] or match[2] in NOTHING:
                pack.report(Problem(point.name, "its name is taken", "backend", distribution_of(point)))
            elif not is_allowed(point.name, pack.environ):
                reason = "SKILLBUS_ALLOWED_PLUGINS does not list it"
                pack.report(Problem(point.name, reason, "backend", distribution_of(point)))
            else:
                found[match[2]] = point
    return found


def _loaded(point: EntryPoint) -> Factory:
    module, _, attribute = point.value.partition(":")
    factory: Any = importlib.import_module(module)
    for name in attribute.split("."):
        factory = getattr(factory, name)
    if not callable(factory):
        raise Unconfigured(f"{point.value} is not a function that makes a backend")
    return factory  # type: ignore[no-any-return]


def _check(kind: Kind, backend: Any) -> None:
    method = {"search": "search", "kb": "lookup", "mail": "send"}[kind]
    if not callable(getattr(backend, method, None)):
        raise Unconfigured(f"what was made is a {type(backend).__name__} without a method {method}")


def _check_table(context: BackendContext) -> None:
    """Say what of the table and of the variables is not taken; never a value."""
    builtins = BUILTIN[context.kind]
    prefix = f"SKILLBUS_{context.kind.upper()}_"
    chosen = context.environ.get(f"{prefix}BACKEND", "").strip() or context.config.get("backend")
    known = {"backend"}.union(*(builtin.options for builtin in builtins.values()))
    if isinstance(chosen, str) and chosen.strip().lower() not in {*builtins, *NOTHING, ""}:
        return  # a backend of others knows itself what it takes
    secrets = {name.removesuffix("_file") for name in known} & SECRETS
    warn_of_variables(prefix, {name.upper() for name in known | secrets}, context.environ)
    for name, value in context.config.items():
        where = f"tools.{context.kind}.{name}"
        if name in SECRETS:
            log.warning("%s is not taken: a secret stands in the environment, or in the file of %s_file", where, name)
        elif name not in known:
            log.warning("%s is not taken: known are %s", where, ", ".join(sorted(known)))
        elif isinstance(value, bool) or not isinstance(value, str if name == "backend" else str | int):
            log.warning("%s is not taken: it must be a string", where)


def _table(config: Mapping[str, Any], kind: Kind) -> Mapping[str, Any]:
    table = config.get(kind)
    if table is not None and not isinstance(table, Mapping):
        log.warning("tools.%s is not taken: it must be a table", kind)
    return table if isinstance(table, Mapping) else {}
