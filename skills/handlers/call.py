"""One call of a handler as its worker sees it: what it is given, what it may ask for, what becomes of its answer."""

import itertools
import logging
from collections.abc import Mapping
from typing import Any

from .. import canonical
from ..arguments import legible
from ..redaction import redact_text
from ..skill import Context, Done, Failed, Outcome
from .guest import wire
from .guest.context import Rejected
from .shape import fault
from .supply import Memory, Supply
from .tool import Tool

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
READING = {"get": ("key",), "list": ("prefix", "limit", "after"), "search": ("text", "limit")}
WRITING = {"put": ("key", "value", "version"), "delete": ("key", "version")}
MOST = 1000  # entries that are asked for at once
LONGEST = 2000  # characters of an error that are told

_numbers = itertools.count(1)
log = logging.getLogger(__name__)


class Call:
    """One call; `number` is its own within this process. Raises ValueError for an input that has not the shape."""

    def __init__(self, tool: Tool, payload: Mapping[str, Any], context: Context, supply: Supply) -> None:
        self.tool, self.context, self.supply = tool, context, supply
        self.number = next(_numbers)
        self._logged = 0
        # A copy, and as a host reads it: what a handler gets is the same wherever it runs.
        given = wire.decode(canonical.encode(payload))
        wrong = fault(tool.input_schema, given)
        if wrong is not None:
            raise ValueError(f"the input is wrong: {wrong}")
        self.input = given if tool.input_member is None else given[tool.input_member]

    @property
    def values(self) -> dict[str, Any]:
        """What the handler's context is made of."""
        context = self.context
        return {
            "call_id": context.invocation_id,
            "episode": context.episode,
            "deadline": context.deadline,
            "task_id": context.task_id,
            "onward": dict(context.onward),
            "worktree": None if context.worktree is None else str(context.worktree.path),
            "secrets": {handle: self.supply.secrets[handle] for handle in self.tool.secrets},
            "memories": {name: list(modes) for name, modes in self.tool.memories.items()},
        }

    def done(self, output: Any) -> Outcome:
        """What a handler's output comes to."""
        body = output if self.tool.output_member is None else {self.tool.output_member: output}
        wrong = fault(self.tool.output_schema, body)
        if wrong is not None:
            return self.failed(f"the output is wrong: {wrong}")
        try:
            size = len(canonical.encode(body))
        except canonical.NotCanonical as error:
            return Failed(f"the output can't be carried: {error}")
        if size > self.tool.output_bytes:
            return Failed(f"the output takes {size} bytes; the limit is {self.tool.output_bytes}")
        return Done(body)

    def failed(self, text: Any, *, where: str = "", retryable: bool = False) -> Failed:
        """What a handler's error comes to, on one line. It is cut once no secret stands in it, and never before."""
        said, place = (self.supply.redact(legible(str(each))) for each in (text, where))
        return Failed(" ".join(f"{said[:LONGEST]}{place[:LONGEST]}".split()), retryable=retryable)

    async def tell(self, message: Mapping[str, Any]) -> None:
        """A report of the handler. What is no report is left out, and the log says so."""
        match message:
            case {"is": "progress", "text": str(text), "fraction": fraction}:
                number = fraction if type(fraction) in (int, float) and abs(fraction) <= wire.EXACT else None
                await self.context.progress(legible(text), number)
            case {"is": "log", "text": text, "level": level}:
                self.say(str(text), LEVELS.get(str(level), logging.INFO))
            case _:
                self.say("it sent a report that is none", logging.WARNING)

    async def ask(self, message: Mapping[str, Any]) -> Any:
        """What a handler asks for. Raises Rejected."""
        match message:
            case {"chunk": content, "artifact": str(artifact), "last": bool(last)}:
                try:
                    canonical.encode(content)
                    await self.context.chunk(content, artifact=legible(artifact), last=last)
                except canonical.NotCanonical as error:
                    raise Rejected("invalid", f"the chunk can't be carried: {error}") from None
                except ValueError as error:
                    raise Rejected("too_large", str(error)) from None
                except RecursionError:
                    raise Rejected("invalid", "the chunk can't be carried: it is nested too deeply") from None
                return None
            case {"memory": str(name), "operation": str(operation), "arguments": dict(arguments)}:
                return await self._remember(name, operation, arguments)
        raise Rejected("invalid", "there is no such request")

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Write what a handler says into the log, line by line, as much as the tool may, without what looks secret."""
        left = self.tool.log_bytes - self._logged
        if left <= 0:
            return
        self._logged += len(text) + 1
        lead = (self.tool.id, self.context.invocation_id)
        for line in self.supply.redact(legible(text))[:left].splitlines() or [""]:
            log.log(level, "%s, call %s: %s", *lead, redact_text(line))
        if self._logged >= self.tool.log_bytes:
            log.warning("%s, call %s: it writes more than %d bytes; the rest is left out", *lead, self.tool.log_bytes)

    async def _remember(self, name: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        modes = self.tool.memories.get(name, ())
        admitted = (READING if "read" in modes else {}) | (WRITING if "write" in modes else {})
        if operation not in admitted:
            raise Rejected("denied", f"the contract gives no {operation} on the memory {name}")
        memory = self.supply.memories.get(name)
        if memory is None or arguments.keys() != set(admitted[operation]):
            raise Rejected("invalid", f"the memory {name} can't be asked so")
        for argument, value in arguments.items():
            _check(argument, value)
        try:
            return await _DO[operation](memory, arguments)
        except Rejected:
            raise
        except Exception as error:
            log.error("%s: the memory %s failed: %s", self.tool.id, name, self.supply.redact(repr(error)))
            raise Rejected("unavailable", f"the memory {name} can't be used now") from None


async def _get(memory: Memory, given: Mapping[str, Any]) -> Any:
    return await memory.get(given["key"])


async def _list(memory: Memory, given: Mapping[str, Any]) -> Any:
    return await memory.list(given["prefix"], given["limit"], given["after"])


async def _search(memory: Memory, given: Mapping[str, Any]) -> Any:
    return await memory.search(given["text"], given["limit"])


async def _put(memory: Memory, given: Mapping[str, Any]) -> Any:
    return await memory.put(given["key"], given["value"], given["version"])


async def _delete(memory: Memory, given: Mapping[str, Any]) -> Any:
    return await memory.delete(given["key"], given["version"])


_DO = {"get": _get, "list": _list, "search": _search, "put": _put, "delete": _delete}


def _check(argument: str, value: Any) -> None:
    if argument in ("key", "prefix", "text", "after"):
        good = isinstance(value, str) and legible(value) == value
    elif argument == "limit":
        good = type(value) is int and 1 <= value <= MOST
    elif argument == "version":
        good = value is None or (type(value) is int and value >= 0)
    else:
        good = _is_canonical(value)
    if not good:
        raise Rejected("invalid", f"{argument} is no {argument} of a memory")


def _is_canonical(value: Any) -> bool:
    try:
        canonical.encode(value)
    except canonical.NotCanonical:
        return False
    return True
