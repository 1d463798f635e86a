"""Where a binary works for one episode: its worktree, its policies, its cache, and the environment it gets."""

import asyncio
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import canonical
from ..process import Finished
from ..skill import Context
from .binary import Binary, BinaryError
from .policy import BASE, Policy, PolicyError
from .settings import AilangSettings

LIMIT = 10.0
"""Seconds that one process may take."""

RESERVE = 2.0
"""Seconds of a call that are kept for what comes after its process."""

PROCESSES = 8
"""Processes of one binary at a time."""

REMEMBERED = 4_096
"""Policies that need not be verified again."""


class SandboxError(Exception):
    """The binary did not, or must not, do what was asked of it; the message is for the host's log.

    `retryable` says that nothing but time was lacking.
    """

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(f"broker: {reason}")


@dataclass(frozen=True, slots=True)
class Verified:
    """A policy as its file, and what the binary itself has said of it."""

    path: Path
    digest: str
    security_mode: str
    caps: tuple[str, ...]
    net_allow: tuple[str, ...]
    cli: tuple[str, ...]


class Sandboxes:
    """The sandboxes of one binary. Each policy is verified by the binary before its first use, and kept on disk."""

    def __init__(self, binary: Binary, settings: AilangSettings) -> None:
        self.binary, self.settings = binary, settings
        self._verified: dict[tuple[str, Policy], Verified] = {}
        self._free = asyncio.Semaphore(PROCESSES)

    async def enter(self, context: Context) -> "Sandbox":
        """The sandbox of a call. Raises SandboxError, OSError."""
        if context.worktree is None:
            raise SandboxError("no worktree")
        root = context.worktree.located()
        await asyncio.to_thread(self._prepare, root, context.episode)
        sandbox = Sandbox(self, root, context)
        sandbox.base = await sandbox.verified(Policy(root))
        return sandbox

    def _prepare(self, root: str, episode: str) -> None:
        settings = self.settings
        outside = {"policy": settings.state, "examples": settings.examples, "binary": self.binary.path}
        for what, path in outside.items():
            if path is not None and (_within(path, root) or _within(path.resolve(), root)):
                where = f'"{path}" resolves inside the workspace root "{root}"'
                raise SandboxError(f"{where}; the {what} must live outside it")
        for folder in (settings.state / "policies", settings.state / "cache" / episode):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)


class Sandbox:
    """What one call needs to run the binary in its episode's worktree, `root`, under its policies."""

    base: Verified

    def __init__(self, sandboxes: Sandboxes, root: str, context: Context) -> None:
        self._all, self._context = sandboxes, context
        self.root = root
        lock = None if context.worktree is None else context.worktree.lock
        # Should this process be killed, its program goes on: nobody else may be at work in the worktree meanwhile.
        self._lock = () if lock is None else (lock,)

    async def execute(self, arguments: Sequence[str], stdin: bytes) -> Finished:
        """Run the binary from the worktree's root, with nothing inherited and within the call's time.

        Raises SandboxError; what it writes over the limit is one as well, for half an answer is none.
        """
        binary = self._all.binary
        seconds = min(LIMIT, self._context.deadline - time.time() - RESERVE)
        if seconds <= 0:
            raise SandboxError("the call's deadline leaves no time for the tool binary", retryable=True)
        try:
            async with asyncio.timeout(seconds), self._all._free:
                await asyncio.to_thread(binary.check)
                finished = await binary.run(
                    arguments, cwd=self.root, env=self._environment(), stdin=stdin, pass_fds=self._lock
                )
        except TimeoutError:
            raise SandboxError(f"the tool binary did not end within {seconds:.1f} s", retryable=True) from None
        except BinaryError as error:
            raise SandboxError(str(error)) from None
        except OSError as error:
            raise SandboxError(f"the tool binary does not start: {error.strerror}") from None
        if finished.cut:
            raise SandboxError("the tool binary wrote more than 8388608 bytes")
        return finished

    async def ask(self, request: Mapping[str, Any], policy: Path) -> dict[str, Any]:
        """Send a request to `policy-tool`: its answer, an object with a boolean `ok`. Raises SandboxError."""
        arguments = ["policy-tool", "--policy", str(policy)]
        finished = await self.execute(arguments, canonical.encode(dict(request)))
        if finished.status:
            raise SandboxError(f"policy-tool ended with {finished.status}, stderr {shown(finished.stderr)}")
        try:
            answer = canonical.parse(finished.stdout)
        except canonical.NotCanonical as error:
            raise SandboxError(f"policy-tool's response is not JSON: {error}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise SandboxError("policy-tool's response is not an object with a boolean ok")
        return answer

    async def policy(self, caps: frozenset[str]) -> Verified:
        """The policy for a run with exactly these capabilities. Raises SandboxError."""
        if caps == BASE:
            return self.base
        settings = self._all.settings
        pairs = settings.net_allow if "Net" in caps else ()
        return await self.verified(Policy(self.root, caps, pairs, bool(pairs) and settings.net_allow_http))

    async def verified(self, policy: Policy) -> Verified:
        """The policy, on disk as it should be, and verified by the binary. Raises SandboxError."""
        path = self._all.settings.state / "policies" / f"{self._context.episode}{policy.name}"
        try:
            await asyncio.to_thread(_keep, path, policy.text.encode())
        except (OSError, PolicyError) as error:
            raise SandboxError(f"the policy can't be written: {error}") from None
        known = self._all._verified
        key = (self._context.episode, policy)
        if key not in known:
            if len(known) >= REMEMBERED:
                known.clear()
            known[key] = self._check(policy, path, await self.ask({"op": "summary"}, path))
        return known[key]

    def _check(self, policy: Policy, path: Path, answer: Mapping[str, Any]) -> Verified:
        said = answer.get("summary")
        if answer["ok"] is not True or not isinstance(said, Mapping):
            why = f"it answered {shown(canonical.encode(dict(answer)))}"
        else:
            why = _mismatch(policy, self.root, said)
            if not why:
                return Verified(
                    path, said["policy_digest"], policy.security_mode, _texts(said, "caps"),
                    _texts(said, "net_allow"), _texts(said, "cli"),
                )  # fmt: skip
        if policy.is_base:
            raise SandboxError(why)
        raise SandboxError(f"run policy variant {path.name} is not verified by policy-tool summary: {why}")

    def _environment(self) -> dict[str, str]:
        settings = self._all.settings
        cache = str(settings.state / "cache" / self._context.episode)
        environment = {
            "HOME": cache, "PATH": "/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "AILANG_CACHE_DIR": cache,
        }  # fmt: skip
        if settings.examples is not None:
            environment["AILANG_EXAMPLES"] = str(settings.examples)
        return environment


def shown(data: bytes) -> str:
    """The beginning of an output, quoted, for the host's log."""
    text = data[:500].decode(errors="replace")
    return f'"{text.strip()}{"…" if len(data) > 500 else ""}"'


def _mismatch(policy: Policy, root: str, said: Mapping[str, Any]) -> str:
    """What the binary's summary says that the policy does not; "" for nothing."""
    mode, sandbox, digest = (said.get(name) for name in ("security_mode", "fs_sandbox", "policy_digest"))
    if mode != policy.security_mode:
        return f'policy security_mode is "{mode}", want "{policy.security_mode}"'
    if not isinstance(sandbox, str) or "\0" in sandbox or os.path.realpath(sandbox) != root:
        return f'policy fs_sandbox "{sandbox}" is not the workspace root "{root}"'
    if not isinstance(digest, str) or not digest or (policy.is_base and not _texts(said, "cli")):
        return "policy summary lacks a digest or a cli op list"
    if policy.is_base:
        return ""
    if set(_texts(said, "caps")) != set(policy.admitted):
        return f"its caps are {list(_texts(said, 'caps'))}, want {list(policy.admitted)}"
    if _texts(said, "net_allow") != policy.net_allow:
        return "its net_allow is another"
    return "" if digest == policy.digest else "its policy_digest is not that of the file"


def _texts(said: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = said.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _within(path: Path, root: str) -> bool:
    return path == Path(root) or Path(root) in path.parents


def _keep(path: Path, data: bytes) -> None:
    """Put the file where it belongs, whole, with mode 0600, unless it is there already."""
    with suppress(OSError):
        if path.read_bytes() == data and path.stat().st_mode & 0o777 == 0o600:
            return
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
