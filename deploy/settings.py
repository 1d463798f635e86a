"""The settings, in layers: defaults, then `skillbus.toml`, then the environment, then flags; a later layer wins.

A wrong key or value in any layer is an error that says where it stands. No error and no description shows a secret.
"""

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from broker.grants.policy import HostPolicy
from bus.destination import allowed
from deploy.logs import mask
from deploy.urls import SECRET_KEY, check_amqp_url, is_http_url, shown_url
from deploy.variables import PREFIX, present, variable

FILE = "skillbus.toml"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
PACK = re.compile(r"[\w.]+:[\w.]+")

log = logging.getLogger(__name__)


class SettingsError(ValueError):
    """The settings can't be used; one line for each thing that is wrong."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting: its value in a form that may be shown, and the layer that it came from."""

    name: str
    value: str
    origin: str
    description: str


def _from_text(value: Any) -> Any:
    """Lists and tables are JSON where they come as text: from the environment and from flags."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise ValueError("must be JSON") from None


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "skillbus")


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("begins with the home of a user who is not known here") from None


def _below_state(name: str) -> Any:
    def default(values: dict[str, Any]) -> Any:
        return values.get("state_dir", Path()) / name

    return default


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # which true and false are to Python
    return value


Seconds = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_no_bool)]
Whole = Annotated[int, BeforeValidator(_no_bool)]


class Settings(BaseSettings):
    """The effective settings. `Settings(config, **flags)` reads all layers; a flag that is None was not given."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, enable_decoding=False, extra="forbid", frozen=True)

    amqp_url: SecretStr | None = Field(
        default=None, description="URL of the message broker, amqp:// or amqps://; empty: calls stay in this process"
    )
    agent: str = Field(default="skillbus", max_length=64, description="name of the agent: one queue, one card")
    prefix: str = Field(default="a2a", max_length=32, description="first part of every name on the broker")
    public_url: str | None = Field(
        default=None,
        description="the broker's URL as the agent card names it, without credentials; default: amqp_url's",
    )
    management_url: SecretStr | None = Field(
        default=None, description="URL of the broker's management API, http:// or https://, for `skillbus topology`"
    )
    declare: bool = Field(
        default=False, description="whether a worker makes what it needs on the broker, or only looks for it"
    )
    instance: str | None = Field(
        default=None, max_length=64, description="what this process calls itself in logs and leases"
    )
    state_dir: Path = Field(
        default_factory=_state_home, description="folder of what outlives a process, made for this user alone"
    )
    ledger: str = Field(
        default_factory=_below_state("ledger.db"),
        validate_default=True,
        repr=False,
        description="file of the SQLite ledger; default: ledger.db in state_dir",
    )
    workspaces: Path = Field(
        default_factory=_below_state("workspaces"),
        description="folder of the episodes' worktrees; default: workspaces in state_dir",
    )
    signing_key: Path = Field(
        default_factory=_below_state("signing.pem"),
        validate_default=True,
        description="file of the key that signs the agent card; default: signing.pem in state_dir",
    )
    slots: Whole = Field(default=64, ge=1, le=2_000, description="calls that one worker has in hand at a time")
    lease_seconds: Seconds = Field(
        default=15.0, ge=0.5, description="how long a call that a dead worker had stays its own"
    )
    ledger_wait_seconds: Seconds = Field(
        default=10.0, ge=0.1, le=300, description="how long a locked ledger is waited for before calls are held"
    )
    grace_seconds: Seconds = Field(
        default=30.0, ge=0, description="how long running calls may take to end when a worker stops"
    )
    dead_letters: bool = Field(
        default=True, description="whether a worker answers and parks what no worker could answer"
    )
    max_message_bytes: Whole = Field(default=1_048_576, ge=1_024, description="largest message body that is accepted")
    push_notifications: bool = Field(
        default=True, description="whether sessions may have webhooks told of their tasks, and workers tell them"
    )
    push_allow: Annotated[tuple[str, ...], BeforeValidator(_from_text)] = Field(
        default=(), description="hosts, addresses and networks that webhooks may be at though they are not public"
    )
    push_http: bool = Field(default=False, description="whether the URL of a webhook may be http")
    push_configs: Whole = Field(default=10, ge=1, le=100, description="webhooks that one session may name for one task")
    packs: Annotated[tuple[str, ...], BeforeValidator(_from_text)] = Field(
        default=(), description='packs of skills as "module:attribute", loaded besides the installed ones'
    )
    only_packs: Annotated[tuple[str, ...] | None, BeforeValidator(_from_text)] = Field(
        default=None, description="names of the installed packs to load; default: all"
    )
    tools_dirs: Annotated[tuple[Path, ...], BeforeValidator(_from_text)] = Field(
        default=(), description="folders of contracts, handlers and a manifest, whose bound tools are served"
    )
    log_format: Literal["human", "json"] = Field(default="human", description="form of the log on standard error")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    policy: Annotated[HostPolicy, BeforeValidator(_from_text)] = Field(
        default=HostPolicy(), description="what this host never allows, whatever was granted: the table [policy]"
    )
    tools: Annotated[dict[str, Any], BeforeValidator(_from_text)] = Field(
        default_factory=dict, repr=False, description="tables handed to the packs, such as [tools.fs]"
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, config: Path | str | None = None, /, **flags: Any) -> None:
        """Read every layer. `config` is the file; else SKILLBUS_CONFIG names it, or `skillbus.toml` here if it exists.

        Raises SettingsError with a line for each key and value that is wrong.
        """
        known = type(self).model_fields
        flags = {name: value for name, value in flags.items() if value is not None}
        path = _find_file(config)
        table = _read(type(self), path)
        variables = EnvSettingsSource(type(self))()
        wrong = [
            *_unknown(table, known, f"{path}: unknown key"),
            *_unknown(present(known), [variable(name) for name in known], "unknown environment variable"),
            *_unknown(map(_flag, flags), [_flag(name) for name in known], "unknown option"),
        ]
        origins = dict.fromkeys(table, f"{path}")
        origins |= {name: variable(name) for name in variables} | {name: _flag(name) for name in flags}
        values = {name: value for name, value in (table | variables | flags).items() if name in known}
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = error.errors(include_input=False)
            wrong += [_line(each, origins, path) for each in problems if each["type"] != "default_factory_not_called"]
        if wrong:
            raise SettingsError(wrong)
        self._origins = origins

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers are merged before, so that each value's origin is known."""
        return (init_settings,)

    @field_validator("amqp_url", mode="before")
    @classmethod
    def _check_url(cls, value: Any) -> Any:
        if value == "":
            return None
        if isinstance(value, str):
            check_amqp_url(value)
        return value

    @field_validator("management_url", mode="before")
    @classmethod
    def _check_management_url(cls, value: Any) -> Any:
        if isinstance(value, str) and value and not is_http_url(value):
            raise ValueError(
                "must be http:// or https://, with a host and what a user or password holds of :/?#@ as %XX"
            )
        return value or None

    @field_validator("public_url", mode="before")
    @classmethod
    def _check_public_url(cls, value: Any) -> Any:
        if value == "":
            return None
        if isinstance(value, str):
            check_amqp_url(value)
            if "@" in value or "?" in value:
                raise ValueError("is shown to everybody: leave out user, password and what follows a ?")
        return value

    @field_validator("agent", "prefix", "instance")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value is not None and not NAME.fullmatch(value):
            raise ValueError("must be of a-z 0-9 . _ - and begin with a letter or digit")
        return value

    @field_validator("state_dir", "workspaces", "signing_key")
    @classmethod
    def _make_absolute(cls, value: Path) -> Path:
        if "\0" in str(value):
            raise ValueError("must be a path")
        return _expanded(value).absolute()

    @field_validator("ledger", mode="before")
    @classmethod
    def _name_ledger(cls, value: Any) -> str:
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise ValueError("must be the path of a SQLite file")
        text = str(value)
        if re.match(r"(?i)postgres", text) and ":" in text:
            raise ValueError("must be the path of a SQLite file: PostgreSQL is not supported for now")
        path = re.sub(r"^sqlite(\+\w+)?:///", "", text)
        if "://" in path:
            raise ValueError("must be the path of a SQLite file")
        return str(_expanded(Path(path)).absolute())

    @field_validator("push_allow")
    @classmethod
    def _check_allowed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            allowed(entry)
        return value

    @field_validator("packs")
    @classmethod
    def _check_packs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(PACK.fullmatch(name) for name in value):
            raise ValueError('must be "module:attribute"')
        return value

    @field_validator("tools_dirs")
    @classmethod
    def _find_tools(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if any("\0" in str(path) for path in value):
            raise ValueError("must be paths of folders")
        return tuple(_expanded(path).absolute() for path in value)

    @field_validator("log_format", "log_level", mode="before")
    @classmethod
    def _fold_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @property
    def ledger_name(self) -> str:
        """The ledger as it may be shown."""
        return mask(self.ledger)

    def prepare_state_dir(self) -> Path:
        """Make `state_dir` with access for this user alone; a folder that exists keeps the access that it has."""
        try:
            self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError([f"state_dir: can't make the folder {self.state_dir}: {error.strerror}"]) from None
        if self.state_dir.stat().st_mode & 0o022:
            log.warning("other users may write into %s: what is kept there could be changed by them", self.state_dir)
        return self.state_dir

    def describe(self) -> list[Setting]:
        """Every setting in effect, with the layer that it came from; secrets are masked."""
        return [
            Setting(name, _shown(getattr(self, name)), self._origins.get(name, "default"), field.description or "")
            for name, field in type(self).model_fields.items()
        ]


def _find_file(config: Path | str | None) -> Path | None:
    named = config or os.environ.get(f"{PREFIX}CONFIG")
    if named:
        with suppress(ValueError):  # no file is there then
            return _expanded(Path(named))
        return Path(named)
    return Path(FILE) if Path(FILE).exists() else None


def _read(cls: type[Settings], path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "there is no such file")
        return dict(TomlConfigSettingsSource(cls, path).toml_data)
    except OSError as error:
        raise SettingsError([f"{path}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: not TOML: {mask(str(error))}"]) from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _unknown(names: Iterable[str], known: Iterable[str], what: str) -> Iterable[str]:
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield f"{what} {name}" + (f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}")


def _line(problem: Mapping[str, Any], origins: Mapping[str, str], path: Path | None) -> str:
    name, *rest = problem["loc"]
    origin = origins.get(name, name)
    where = f"{path}: {name}" if path is not None and origin == f"{path}" else origin
    where += "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
    text = problem["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")
    if problem["type"] == "extra_forbidden":
        text = f"unknown key; known are {', '.join(HostPolicy.model_fields)}"
    return f"{where}: {text[:1].lower()}{text[1:]}"


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return shown_url(value.get_secret_value())
    if isinstance(value, HostPolicy):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, Mapping | tuple):
        return mask(orjson.dumps(_without_secrets(value), default=str).decode())
    return "" if value is None else mask(str(value))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: "***" if SECRET_KEY.search(key) else _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value
