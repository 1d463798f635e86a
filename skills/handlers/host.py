"""A host: one process that runs one tool's handler, one call at a time, and speaks JSON lines with its worker."""

import asyncio
import codecs
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..process import end_group, exit_of
from ..skill import Failed, Outcome
from .call import Call
from .command import NoProgram, command, environment, line_limit
from .guest import wire
from .guest.context import Rejected
from .supply import Supply
from .tool import Tool

SLACK = 1 << 20  # by how much a line may be too long before its host is ended
TRAFFIC = 64 << 20
"""What a host may send in one call, in bytes."""
LOG_LINE = 8 << 10
LEFTOVER = 0.5  # seconds in which what a host that is gone has sent is read

log = logging.getLogger(__name__)


class NotStarted(Exception):
    """A host could not be started, so no handler was called. `lasting`: it will not start by trying again."""

    def __init__(self, reason: str, *, lasting: bool) -> None:
        self.lasting = lasting
        super().__init__(reason)


class Broken(Exception):
    """The host is gone, or says what no host says."""


class Host:
    """A running host. Made by `start`; after `end` nothing of its process group is left."""

    def __init__(
        self,
        tool: Tool,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        printed: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
    ) -> None:
        self._tool, self._process, self._reader, self._writer = tool, process, reader, writer
        self._printed, self._pipe = printed, pipe
        self._call: Call | None = None
        self._supplies: deque[Supply] = deque(maxlen=4)  # what is printed may come late
        self._early = 0  # characters printed before the first call
        self._usable = True
        self._gone = asyncio.Event()
        self._last = ""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(cls, tool: Tool, environ: Mapping[str, str]) -> "Host":
        """Start a host and wait until it has loaded the handler. Raises NotStarted."""
        ours, theirs = socket.socketpair()
        heard, said = os.pipe()
        printed = asyncio.StreamReader(limit=LOG_LINE)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(printed), os.fdopen(heard, "rb")
        )
        process: asyncio.subprocess.Process | None = None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command(tool, theirs.fileno(), environ),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=tool.folder,
                    env=environment(environ),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except NoProgram as error:
            raise NotStarted(str(error), lasting=True) from None
        except OSError as error:
            raise NotStarted(f"no process can be started: {error.strerror}", lasting=False) from None
        finally:
            os.close(said)
            if process is None:
                ours.close()
                pipe.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=line_limit(tool) + SLACK)
        host = cls(tool, process, reader, writer, printed, pipe)
        try:
            async with asyncio.timeout(tool.start_seconds):
                await host._greet()
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(host.end(0.0)))
            if isinstance(error, TimeoutError):
                reason = f"it has not loaded its handler within {tool.start_seconds:g} s"
                raise NotStarted(reason, lasting=False) from None
            if isinstance(error, Broken):
                last = f"; its last words: {host._last}" if host._last else ""
                raise NotStarted(f"{error} before it was ready{last}", lasting=False) from None
            raise
        return host

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can take another call; its end is known here at once."""
        return self._usable and self._process.returncode is None and _runs(self._process.pid)

    async def run(self, call: Call) -> Outcome:
        """The outcome of one call. A host that does not end a call that is canceled is not usable any more."""
        self._call = call
        self._supplies.append(call.supply)
        try:
            self._send({"do": "call", "call": call.number, "input": call.input, "context": call.values})
            return await self._converse(call)
        except Broken as error:
            self._usable = False
            return Failed(call.supply.redact(f"{error} before it had answered"))
        except asyncio.CancelledError:
            await self._cancel(call)
            raise
        except BaseException:
            self._usable = False
            raise

    async def end(self, grace: float) -> None:
        """Let the process end within the grace, then make it, with all that it has started."""
        self._usable = False
        try:
            self._writer.close()
            if grace > 0 and self._process.returncode is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), grace)
        finally:
            await end_group(self._process, LEFTOVER)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._writer.transport.abort()
            self._pipe.close()

    async def _greet(self) -> None:
        message = await self._receive()
        match message:
            case {"is": "ready"}:
                return
            case {"is": "unloadable", "text": str(text)}:
                raise NotStarted(text, lasting=True)
        raise Broken("it did not greet")

    async def _converse(self, call: Call, *, canceled: bool = False) -> Outcome:
        read = 0
        while True:
            line = await self._line()
            read += len(line)
            if read > TRAFFIC:
                raise Broken(f"the host sent more than {TRAFFIC} bytes in one call, and was ended")
            message = _read(line)
            if message.get("call") != call.number:
                continue  # what an earlier call has left running
            match message:
                case {"is": "done", "output": output}:
                    return call.done(output)
                case {"is": "failed", "text": text}:
                    self._usable = self._usable and not message.get("broken")
                    where, retryable = str(message.get("where", "")), message.get("retryable") is True
                    return call.failed(text, where=where, retryable=retryable)
                case {"is": "canceled"}:
                    return Failed("the handler ended as if it were canceled")
                case {"is": "ask", "question": question} if not canceled:
                    await self._answer(call, question, message)
                case _ if not canceled:
                    await call.tell(message)

    async def _answer(self, call: Call, question: Any, message: Mapping[str, Any]) -> None:
        asked = {name: each for name, each in message.items() if name not in ("is", "call", "question")}
        try:
            answer = {"answer": await call.ask(asked)}
        except Rejected as error:
            answer = {"rejected": error.kind, "text": str(error)}
        self._send({"do": "answer", "question": question, **answer})
        try:
            await self._writer.drain()  # a host that asks and does not read must not fill its worker's memory
        except OSError:
            raise Broken(self._state()) from None

    async def _cancel(self, call: Call) -> None:
        """Ask the handler to end, and wait for the grace; what goes on then is ended with the host."""
        try:
            self._send({"do": "cancel", "call": call.number})
            async with asyncio.timeout(self._tool.grace):
                await self._converse(call, canceled=True)
        except (TimeoutError, Broken):
            self._usable = False
        except BaseException:
            self._usable = False
            raise

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self.usable or self._writer.is_closing():
            raise Broken(self._state())
        self._writer.write(wire.encode(message))

    async def _receive(self) -> dict[str, Any]:
        return _read(await self._line())

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise Broken("the host sent a line that is too long, and was ended") from None
        except (asyncio.IncompleteReadError, OSError):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), LEFTOVER)
            raise Broken(self._state()) from None

    def _state(self) -> str:
        status = self._process.returncode
        if status is None:
            return "the host ended"
        if status >= 0:
            return f"the host ended with status {status}"
        with suppress(ValueError):
            return f"the host was ended by {signal.Signals(-status).name}"
        return f"the host was ended by signal {-status}"

    async def _listen(self) -> None:
        """Take what the handler prints into the log."""
        stdout, held = self._printed, ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a long line may be cut within a character
        while True:
            whole = True
            try:
                line = await stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError as error:
                line, whole = await stdout.read(max(error.consumed, 1)), False
            except asyncio.IncompleteReadError as error:
                if not error.partial and not held:
                    return
                line = error.partial
            text = held + decoder.decode(line, final=whole).rstrip("\n")
            # where a long line is cut, there may be a secret
            cut = len(text) if whole else min((each.settled(text) for each in self._supplies), default=len(text))
            text, held = text[:cut], text[cut:]
            for each in self._supplies:
                text = each.redact(text)
            if not whole and not text:
                continue
            if self._call is not None:
                self._call.say(text)
                continue
            self._last = text[:500] or self._last
            if self._early < self._tool.log_bytes:
                self._early += len(text) + 1
                log.info("%s, host %d: %s", self._tool.id, self.pid, text)

    async def _watch(self) -> None:
        """End the conversation with a host that is gone, though what it has started may hold the socket open."""
        await exit_of(self._process)
        self._gone.set()
        await asyncio.sleep(LEFTOVER)
        self._writer.transport.abort()


def _runs(pid: int) -> bool:
    """Whether a child runs; it is asked without being reaped, which is asyncio's part."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _read(line: bytes) -> dict[str, Any]:
    try:
        message = wire.decode(line)
    except (ValueError, RecursionError):
        raise Broken("the host sent what is no message, and was ended") from None
    if not isinstance(message, dict):
        raise Broken("the host sent what is no message, and was ended")
    return message
