"""The tool ailang-run: an AILANG program, executed with exactly the capabilities it is given."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from ..arguments import Arguments, check_path, legible, strict
from ..contract import Contract, Effect, Risk
from ..errors import Refused
from ..plan import Plan
from ..skill import Handler, Skill, Tier

CAPS = ("Declassify", "Env", "FS", "IO", "Net")
MAX_STDIN = 65_536
MAX_ARGV = 32
MAX_ARGUMENT = 1_024
RUN, RUN_ENV, RUN_NET = "Ailang.Run", "Ailang.RunEnv", "Ailang.RunNet"
CONTRACT = Contract(
    id="ailang-run",
    title="AILANG Run (policy-gated)",
    description=(
        "Execute an AILANG program inside this episode's worktree under the operator's policy: `ailang run --policy "
        "<policy> [--args-json J] -- <path> [-- <argv...>]`, from the worktree root, with `stdin` piped in. `caps` is "
        "the run's EXACT capability set, like the grader's `--caps` (default IO and FS): distinct names from "
        "Declassify, Env, FS, IO, Net, never Env with Net; each beyond IO and FS must also be enabled by the operator "
        "(`run_allow_caps`), or the call is refused. An Env run is the effect Ailang.RunEnv and a Net run "
        "Ailang.RunNet, each needing its own session grant; any other run, Declassify included, is Ailang.Run. Net "
        "reaches only the loopback host:port pairs the operator named (`run_net_allow`); every other host, port and "
        "redirect is refused. `argv` (at most 32 strings, each at most 1024 bytes, no NUL) always follows an inner "
        "`--`, so it never reaches the run's flag parser; `stdin` is text of at most 65536 bytes (absent = empty). "
        "The program's declared effect row must be a subset of the rendered policy's allowed_caps; an unrequested FS "
        "is admitted at budget 0, so it fails at first use; the run is bounded by the policy's timeout (8 s). Returns "
        "{admitted, exit_code, decision, limit, stdout, stderr, policy}; policy is {digest, security_mode, caps, "
        "net_allow} of the variant that ran. Denied programs never execute; read `decision.missing_from_policy` and "
        "narrow the program's effects or widen `caps`. A refused inner effect can still exit 0, so read stdout and "
        "stderr, not only exit_code. The program's inner effects are governed by the AILANG policy layer, not "
        "brokered one by one. The path is relative to the worktree root, non-empty, with no `..` segment and no "
        "leading `-`; anything that resolves outside the worktree (absolute, `..`, or a symlink leading out) is "
        "refused by AILANG's policy layer, and `.git/` plus the operator's deny list stay read-only. Unknown argument "
        "keys are refused, never ignored. Costs one call of its effect from the session's budget. Every call commits "
        "one World log entry; the result carries `world` (the effect plan and the brokered effect's record ref)."
    ),
    tags=("ailang", "run"),
    examples=('{"path": "hello.ail", "caps": ["IO"], "stdin": "1\\n2\\n"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path to the .ail file, relative to the worktree root"},
            "args_json": {"type": "string", "description": "JSON arguments for the entrypoint (passed as --args-json)"},
            "stdin": {
                "type": "string",
                "description": "The program's whole standard input, at most 65536 UTF-8 bytes (absent = empty)",
            },
            "argv": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": MAX_ARGV,
                "description": "Program arguments (getArgs), passed after an inner --; at most 32, each at most 1024 "
                "bytes, no NUL",
            },
            "caps": {
                "type": "array",
                "items": {"type": "string", "enum": list(CAPS)},
                "minItems": 1,
                "uniqueItems": True,
                "description": "The run's exact capability set (default IO, FS); never Env with Net",
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "admitted": {"type": "boolean"},
            "exit_code": {"type": "integer"},
            "decision": {},
            "limit": {},
            "stdout": {"type": "string"},
            "stderr": {"type": "string"},
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
            "policy": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name=RUN, scope="worktree", cost=0),
    effects=tuple(Effect(name=name, scope="worktree") for name in (RUN, RUN_ENV, RUN_NET)),
    deadline=20,
    worktree=True,
    risk=Risk(read_only=False, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=False),
)


def ailang_run(handler: Handler, tier: Tier) -> Skill:
    """The skill, served by `handler`."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler, tier=tier)


def effect_of(caps: Sequence[str]) -> str:
    """The effect that a run with these capabilities is."""
    return RUN_ENV if "Env" in caps else RUN_NET if "Net" in caps else RUN


def is_json(text: str) -> bool:
    """Whether the text is one JSON value, of whatever size."""
    try:
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def size_of(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def _plan(given: Arguments) -> Plan:
    path = given.text("path")
    args_json = given.optional_text("args_json")
    check_path(path)
    if args_json is not None and not is_json(args_json):
        raise Refused('argument "args_json" must be a string holding JSON')
    stdin = given.optional_text("stdin")
    if stdin is not None and size_of(stdin) > MAX_STDIN:
        raise Refused(f'argument "stdin" is {size_of(stdin)} bytes; the limit is {MAX_STDIN}')
    if "argv" in given:
        _check_argv(given["argv"])
    if "caps" in given:
        _check_caps(given["caps"])
    caps = sorted(given["caps"]) if "caps" in given else []
    payload = {name: given[name] for name in ("path", "args_json", "stdin", "argv") if name in given}
    return Plan.one(effect_of(caps), {**payload, "caps": caps} if caps else payload)


def _check_argv(argv: Any) -> None:
    shape = 'argument "argv" must be an array of strings'
    if not isinstance(argv, list):
        raise Refused(shape)
    if len(argv) > MAX_ARGV:
        raise Refused(f'argument "argv" has {len(argv)} items; the limit is {MAX_ARGV}')
    for item in argv:
        if not isinstance(item, str):
            raise Refused(shape)
        check_argument(item)


def check_argument(item: str) -> None:
    """Raise Refused for a program argument that is too long or cannot be passed."""
    if size_of(item) > MAX_ARGUMENT:
        raise Refused(f"an argv item is {size_of(item)} bytes; the limit is {MAX_ARGUMENT}")
    if "\0" in item:
        raise Refused("an argv item contains a NUL byte")


def _check_caps(caps: Any) -> None:
    shape = 'argument "caps" must be an array of capability names'
    if not isinstance(caps, list):
        raise Refused(shape)
    seen: set[str] = set()
    for cap in caps:
        if not isinstance(cap, str):
            raise Refused(shape)
        if cap not in CAPS:
            raise Refused(f'unknown capability "{legible(cap)}"; caps admits only: {", ".join(CAPS)}')
        if cap in seen:
            raise Refused(f'capability "{cap}" is listed twice')
        seen.add(cap)
    if not caps:
        raise Refused('argument "caps" names no capability')
    if {"Env", "Net"} <= seen:
        raise Refused("caps names both Env and Net; one run takes at most one of them")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
