"""A Python handler: a function that is found by its name, called by its parameters' names, and given plain JSON."""

import asyncio
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .context import CallContext, Channel

_TOO_LARGE = 2**1023  # twice as much may be more than a double holds


class Unloadable(Exception):
    """The handler can't be used; the message says why, and where."""


class HandlerFailed(Exception):
    """A handler has raised, or returned what is no JSON. The message is for the host's log.

    The message is whole, as a cut could leave a part of a secret that nobody finds any more. `where` is the place.
    """

    def __init__(self, message: str, *, where: str = "", retryable: bool = False) -> None:
        self.where, self.retryable = where, retryable
        super().__init__(_legible(message))


class Function:
    """A handler, loaded.

    The function is called with keyword arguments: the one that is named like the contract's `takes` gets the input, a
    dict or the dataclass that it is annotated with; `context` gets the CallContext, where there is such a parameter
    and it is not the one of the input.
    """

    def __init__(self, function: Callable[..., Any], takes: str, label: str) -> None:
        self._function, self._takes = function, takes
        self.is_async = inspect.iscoroutinefunction(function)
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise Unloadable(f"{label} can't be called: {error}") from None
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = {name for name, each in parameters.items() if each.kind in by_keyword}
        others = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        if takes not in known and not others:
            raise Unloadable(
                f"{label} has no parameter {takes!r}, which is what the contract's `takes` calls the input"
            )
        for name, each in parameters.items():
            variable = each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            given = name in known and name in (takes, "context")
            if not given and not variable and each.default is inspect.Parameter.empty:
                raise Unloadable(f"{label} asks for {name!r}; a handler is given {takes!r} and `context`")
        self._with_context = takes != "context" and ("context" in known or others)
        self._type = _annotation(function, takes)

    @classmethod
    def load(cls, folder: str, source: str, name: str, takes: str) -> "Function":
        """The function `name` of a file, or of a module in the folder, or of an installed one. Raises Unloadable."""
        target = f"{source.rpartition('/')[2]}:{name}"
        try:
            found: Any = getattr(_module(Path(folder), source), name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Unloadable(f"{target} can't be loaded: {_described(error)}{_where(error)}") from None
        if not callable(found):
            raise Unloadable(f"{target} is a {type(found).__name__}, not a function")
        return cls(found, takes, target)

    async def run(self, value: Any, values: Mapping[str, Any], channel: Channel) -> Any:
        """The handler's output as plain JSON. Raises HandlerFailed.

        When this is canceled an async handler is, too; of another the context says so, and its end is waited for.
        """
        task = asyncio.current_task()
        held = 0 if task is None else task.cancelling()
        try:
            output = await self._call(value, values, channel)
            if task is not None and task.cancelling() > held:
                raise asyncio.CancelledError  # the handler has swallowed it
            return plain(output)
        except HandlerFailed:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > held:
                raise
            if isinstance(error, KeyboardInterrupt):
                raise
            raise HandlerFailed(_described(error), where=_where(error), retryable=_is_retryable(error)) from None

    async def _call(self, value: Any, values: Mapping[str, Any], channel: Channel) -> Any:
        typed = _typed(self._type, value)
        loop = asyncio.get_running_loop()
        if self.is_async:
            context = CallContext(values, channel)
            return await self._function(**self._arguments(typed, context))
        blocking = _Blocking(channel, loop)
        context = CallContext(values, blocking)
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(output: Any, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result((output, error))

        def work() -> None:
            output, failure = None, None
            try:
                output = self._function(**self._arguments(typed, context))
            except BaseException as error:  # the thread has nobody else to tell
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, output, failure)

        threading.Thread(target=work, name=f"handler {context.call_id}", daemon=True).start()
        try:
            output, failure = await asyncio.shield(ended)
        except asyncio.CancelledError:
            context.canceled = True
            blocking.close()
            await ended
            raise
        if failure is not None:
            raise failure
        return await output if inspect.isawaitable(output) else output

    def _arguments(self, value: Any, context: CallContext) -> dict[str, Any]:
        return {self._takes: value, "context": context} if self._with_context else {self._takes: value}


class _Blocking:
    """A channel for a thread: what the loop awaits, the thread waits for."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel, self._loop = channel, loop
        self._lock, self._closed = threading.Lock(), False
        self._pending: set[Any] = set()

    def tell(self, message: dict[str, Any]) -> Any:
        return self._wait(self._channel.tell, message)

    def ask(self, message: dict[str, Any]) -> Any:
        return self._wait(self._channel.ask, message)

    def close(self) -> None:
        """Nothing is waited for any more: the call is canceled."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def _wait(self, way: Callable[[dict[str, Any]], Any], message: dict[str, Any]) -> Any:
        with self._lock:
            if self._closed:
                raise asyncio.CancelledError("the call is canceled")
            future = asyncio.run_coroutine_threadsafe(way(message), self._loop)
            self._pending.add(future)
        try:
            return future.result()
        finally:
            with self._lock:
                self._pending.discard(future)


def plain(value: Any, path: str = "") -> Any:
    """A value as plain JSON: dataclasses as objects without what is None. Raises HandlerFailed with the path."""
    try:
        return _plain(value, path)
    except RecursionError:
        raise HandlerFailed("the output is nested too deeply") from None


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if abs(value) >= _TOO_LARGE:
            raise HandlerFailed(f"the output is wrong: {path or 'it'} is larger than a number may be")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise HandlerFailed(f"the output is wrong: {path or 'it'} is a number that is not finite")
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {name: _plain(each, _in(path, name)) for name, each in members.items() if each is not None}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise HandlerFailed(f"the output is wrong: {path or 'it'} has a name that is no text")
        return {str(key): _plain(each, _in(path, key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{path}[{index}]") for index, each in enumerate(value)]
    raise HandlerFailed(f"the output is wrong: {path or 'it'} is {type(value).__name__}, which is not JSON")


def _in(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _module(folder: Path, name: str) -> Any:
    """A file, or a module of the folder, under a name that no other folder's has; else a module that is installed."""
    entry = str(folder)
    if entry not in sys.path:
        sys.path.append(entry)
    if name.startswith("/"):
        name = ".".join(Path(name).relative_to(folder).with_suffix("").parts)
    else:
        stem = folder.joinpath(*name.split("."))
        if not stem.with_name(stem.name + ".py").is_file() and not (stem / "__init__.py").is_file():
            return importlib.import_module(name)
    package = "skillbus_tools_" + hashlib.sha256(entry.encode()).hexdigest()[:16]
    if package not in sys.modules:
        made = types.ModuleType(package)
        made.__path__ = [entry]
        sys.modules[package] = made
    return importlib.import_module(f"{package}.{name}")


def _annotation(function: Callable[..., Any], takes: str) -> Any:
    try:
        return typing.get_type_hints(function).get(takes)
    except Exception:  # an annotation that can't be resolved types nothing
        return None


def _typed(kind: Any, value: Any) -> Any:
    """The value as the dataclass that it is annotated as, and within it; any other annotation leaves it as it is."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(kind) if each is not type(None)]
        return value if value is None or len(kinds) != 1 else _typed(kinds[0], value)
    if typing.get_origin(kind) in (list, tuple) and isinstance(value, list):
        inner = typing.get_args(kind)[:1]
        return [_typed(inner[0], each) for each in value] if inner else value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _typed(hints.get(name), each) for name, each in value.items()})
    return value


def _is_retryable(error: BaseException) -> bool:
    try:
        return getattr(error, "retryable", False) is True
    except BaseException:  # it is the handler's own code
        return False


def _described(error: BaseException) -> str:
    """The class and the message of an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # it is the handler's own code
        return type(error).__name__


def _where(error: BaseException) -> str:
    """The handler's line in which an error came up, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = {__file__, importlib.__file__}
    theirs = [each for each in frames if each.filename not in ours and not each.filename.startswith("<frozen")]
    return f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""


def _legible(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
