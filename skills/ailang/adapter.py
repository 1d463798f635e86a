"""The handlers that an AILANG binary serves: `policy-tool` for all effects but the runs, `run` for those."""

from collections.abc import Mapping
from typing import Any

from ..errors import Escape, Protected, Refused
from ..plan import PlannedEffect
from ..skill import Context, Done, Failed, Handler, Outcome
from . import stub
from .envelope import NotRecognised, read_envelope
from .files import refusal_of
from .request import OPS, Run, check_request, check_run, check_scope
from .sandbox import Sandbox, SandboxError, Sandboxes, shown

_RESERVED = ("tool", "policy_digest", "world")


def policy_tool(sandboxes: Sandboxes) -> Handler:
    """The handler of every effect that is a request to `policy-tool`."""

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        try:
            if effect.effect in OPS:
                check_request(effect, OPS[effect.effect])  # before the binary is so much as looked at
            else:
                check_scope(effect)
            sandbox = await sandboxes.enter(context)
            op = check_request(effect, OPS.get(effect.effect, sandbox.base.cli))
            if op == "examples_search" and sandboxes.settings.examples is None:
                return Done(stub.refusal(stub.NO_CORPUS))
            if effect.effect == "Workspace.Write" and (refused := _protected(context, op, effect.payload)):
                answer: dict[str, Any] = {"ok": False, "refused": refused}
            else:
                answer = await sandbox.ask(effect.payload, sandbox.base.path)
        except Refused as refused:
            return Failed(str(refused))
        except SandboxError as error:
            return Failed(str(error), retryable=error.retryable)
        for key in _RESERVED:
            if key in answer:
                return Failed(f'broker: policy-tool response carries the reserved key "{key}"')
        return Done({**answer, "tool": sandboxes.binary.ref, "policy_digest": sandbox.base.digest})

    return handle


def run(sandboxes: Sandboxes) -> Handler:
    """The handler of the three effects of a run."""

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        try:
            asked = check_run(effect)
            _check_enabled(sandboxes, effect.effect, asked)
            sandbox = await sandboxes.enter(context)
            return Done(await _run(sandbox, asked))
        except Refused as refused:
            return Failed(str(refused))
        except SandboxError as error:
            return Failed(str(error), retryable=error.retryable)

    return handle


async def _run(sandbox: Sandbox, asked: Run) -> dict[str, Any]:
    policy = await sandbox.policy(asked.caps)
    arguments = ["run", "--policy", str(policy.path)]
    if asked.args_json is not None:
        arguments += ["--args-json", asked.args_json]
    arguments += ["--", asked.path]
    if asked.argv:
        arguments += ["--", *asked.argv]
    finished = await sandbox.execute(arguments, asked.stdin.encode())
    try:
        envelope = read_envelope(finished)
    except NotRecognised:
        what = f"rc {finished.status}, stdout {shown(finished.stdout)}, stderr {shown(finished.stderr)}"
        raise SandboxError(f"ailang run produced no recognised outcome envelope ({what})") from None
    used = {
        "digest": policy.digest,
        "security_mode": policy.security_mode,
        "caps": sorted(policy.caps),
        "net_allow": list(policy.net_allow),
    }
    return {**envelope, "policy": used}


def _check_enabled(sandboxes: Sandboxes, effect: str, asked: Run) -> None:
    settings = sandboxes.settings
    for cap in sorted(asked.caps - {"FS", "IO"} - settings.allow_caps):
        setting = "tools.ailang.run_allow_caps"
        raise Refused(f'broker: {effect} refused: capability "{cap}" is not enabled by the operator ({setting})')
    if "Net" in asked.caps and not settings.net_allow:
        raise Refused(f"broker: {effect} refused: Net names no reachable host:port (tools.ailang.run_net_allow)")


def _protected(context: Context, op: str, payload: Mapping[str, Any]) -> str | None:
    """Why a write must not happen that the binary, which looks at the path as it is spelled, might let through."""
    path = payload.get("path")
    if context.worktree is None or not isinstance(path, str):
        return None
    try:
        context.worktree.protection.check(path)
        with context.worktree.resolve(path) as location:
            context.worktree.protection.check(location.path)
    except Protected as protected:
        return refusal_of(op, path, protected)
    except (Escape, OSError, ValueError):
        return None  # the binary says what is wrong with it
    return None
