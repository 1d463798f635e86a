from typing import Any

import pytest

from skills import PlannedEffect, Refused
from skills.ailang.cli import OPS as CLI
from skills.ailang.request import OPS, Run, check_request, check_run

NEVER = "the worktree; Ailang.CLI never writes (use Workspace.Write)"


def planned(effect: str, payload: Any, scope: str = "worktree") -> PlannedEffect:
    return PlannedEffect("e1", effect, scope, 1, payload)


@pytest.mark.parametrize(
    ("effect", "payload", "text"),
    [
        ("Ailang.CLI", {"op": "fmt", "OP": "read"}, 'Ailang.CLI refused: key "OP" aliases "op"'),
        ("Ailang.CLI", {"flagſ": {"write": ""}, "op": "fmt"}, 'Ailang.CLI refused: key "flagſ" aliases "flags"'),
        ("Ailang.CLI", {}, "Ailang.CLI refused: op is not a string"),
        ("Ailang.CLI", {"op": 1}, "Ailang.CLI refused: op is not a string"),
        ("Ailang.CLI", {"op": "run"}, 'Ailang.CLI refuses op "run": not in this effect\'s op allowlist'),
        ("Workspace.Read", {"op": "write"}, 'Workspace.Read refuses op "write": not in this effect\'s op allowlist'),
        ("Ailang.CLI", {"op": "fmt", "flags": []}, 'Ailang.CLI refuses op "fmt": flags is not a JSON object'),
        ("Ailang.CLI", {"op": "fmt", "flags": {"write": ""}},
         f'Ailang.CLI refuses op "fmt": flag "write" writes {NEVER}'),
    ],
)  # fmt: skip
def test_a_request_that_is_not_dispatched(effect: str, payload: Any, text: str) -> None:
    with pytest.raises(Refused) as raised:
        check_request(planned(effect, payload), OPS.get(effect, CLI))
    assert str(raised.value) == f"broker: {text}"


def test_a_request_that_is() -> None:
    for effect, ops in OPS.items():
        for op in ops:
            assert check_request(planned(effect, {"op": op, "flags": None}), ops) == op
    assert check_request(planned("Ailang.CLI", {"op": "check", "flags": {"write": ""}}), CLI) == "check"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({}, "path is required"),
        ({"path": ""}, "path must be a non-empty string"),
        ({"path": 1}, "path must be a non-empty string"),
        ({"path": "a", "args_json": "{"}, "args_json must be a string holding JSON"),
        ({"path": "a", "args_json": None}, "args_json must be a string holding JSON"),
        ({"path": "a", "stdin": 1}, "stdin must be a string"),
        ({"path": "a", "stdin": "é" * 32_769}, "stdin is 65538 bytes; the limit is 65536"),
        ({"path": "a", "argv": "x"}, "argv must be an array of strings"),
        ({"path": "a", "argv": [1]}, "argv must be an array of strings"),
        ({"path": "a", "argv": ["x"] * 33}, "argv has 33 items; the limit is 32"),
        ({"path": "a", "argv": ["x" * 1025]}, "an argv item is 1025 bytes; the limit is 1024"),
        ({"path": "a", "argv": ["\0"]}, "an argv item contains a NUL byte"),
        ({"path": "a\0"}, "path and args_json must hold no NUL byte"),
        ({"path": "a", "caps": "IO"}, "caps must be an array of capability names"),
        ({"path": "a", "caps": []}, "caps names no capability"),
        ({"path": "a", "caps": ["AI"]}, 'unknown capability "AI"'),
        ({"path": "a", "caps": ["IO", "FS"]}, "caps [IO FS] is not sorted and distinct"),
        ({"path": "a", "caps": ["IO", "IO"]}, "caps [IO IO] is not sorted and distinct"),
        ({"path": "a", "caps": ["Env", "Net"]}, "caps names both Env and Net; one run takes at most one of them"),
        ({"path": "a", "caps": ["Env", "IO"]}, "caps [Env IO] run as Ailang.RunEnv, not Ailang.Run"),
        ({"path": "a", "Stdin": "x"}, 'key "Stdin" aliases "stdin"'),
        ({"path": "a", "cap\u017f": ["IO"]}, 'key "cap\u017f" aliases "caps"'),
        ({"path": "a", "op": "run"}, 'unknown payload key "op"'),
    ],
)
def test_a_run_that_is_not_dispatched(payload: Any, text: str) -> None:
    with pytest.raises(Refused) as raised:
        check_run(planned("Ailang.Run", payload))
    assert str(raised.value) == f"broker: Ailang.Run refused: {text}"


def test_a_run_that_is() -> None:
    assert check_run(planned("Ailang.Run", {"path": "a"})) == Run("a", None, "", (), frozenset({"FS", "IO"}))
    whole = {"path": "a", "args_json": " 1", "stdin": "x", "argv": ["-"], "caps": ["IO", "Net"]}
    assert check_run(planned("Ailang.RunNet", whole)) == Run("a", " 1", "x", ("-",), frozenset({"IO", "Net"}))


def test_another_scope_is_none_of_ours() -> None:
    for check in (check_run, lambda effect: check_request(effect, CLI)):
        with pytest.raises(Refused, match=r'broker: Ailang\.Run refused: scope "web" is not "worktree"'):
            check(planned("Ailang.Run", {"path": "a"}, "web"))
