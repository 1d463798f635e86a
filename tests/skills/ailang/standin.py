"""An executable that stands in for the AILANG binary, and plays what a test tells it to.

It answers a summary by the policy that it is given, as the binary would. Anything else is the recorded `row` of its
score: the request, parsed, and the arguments must be the row's, or it ends with 97. It notes what it was called with.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = """#!{python} -IS
import hashlib, json, os, signal, sys, time, tomllib

score = json.loads(open({score!r}, encoding="utf-8").read())
row = score["row"]
stdin = sys.stdin.buffer.read() if score.get("read", True) else b""
policy = sys.argv[sys.argv.index("--policy") + 1]
text = open(policy, "rb").read()
digest = hashlib.sha256(text).hexdigest()
with open({log!r}, "a", encoding="utf-8") as log:
    called = dict(argv=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd(), stdin=stdin.decode(), group=os.getpgid(0))
    log.write(json.dumps(called) + "\\n")


def filled(value):
    for name, place in (("${{ROOT}}", os.getcwd()), ("${{POLICY}}", policy), ("${{DIGEST}}", digest)):
        value = value.replace(name, place)
    return value


def end(out="", err="", code=0):
    sys.stdout.buffer.write(filled(out).encode("utf-8", "surrogateescape"))
    sys.stderr.buffer.write(filled(err).encode("utf-8", "surrogateescape"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


asked = json.loads(stdin) if sys.argv[1] == "policy-tool" else None
if asked == {{"op": "summary"}} and not score.get("summary"):
    known = tomllib.loads(text.decode())
    end(json.dumps({{"ok": True, "summary": {{
        "security_mode": known["security_mode"], "policy_digest": digest, "fs_sandbox": known["fs_sandbox"],
        "caps": sorted(known["allowed_caps"]), "net_allow": known.get("net_allow"), "process_allow": None,
        "cli": score["cli"], "ops": [], "timeout_ms": known["timeout_ms"],
    }}}}))
if score.get("fifo"):
    with open(score["fifo"], "w", encoding="ascii") as fifo:
        fifo.write(str(os.getpgid(0)))
if score.get("sleep"):
    time.sleep(600)
if score.get("spew"):
    sys.stdout.buffer.write(b"x" * score["spew"])
    end()
if score.get("kill"):
    os.kill(os.getpid(), signal.SIGKILL)
if not score.get("any"):
    if asked is not None and asked != row["request"]:
        end(err="another request", code=97)
    if [filled(part) for part in row["argv"]] != sys.argv[1:]:
        end(err="other arguments", code=97)
end(row["stdout"], row["stderr"], row["exit_code"])
"""

CLI = [
    "agent_prompt", "ai_check", "axioms", "builtins_list", "builtins_show", "check", "devtools_prompt", "docs_search",
    "examples_list", "examples_search", "examples_show", "examples_tags", "fmt", "iface", "pkg_docs", "policy_check",
    "prompt", "test", "tree", "version",
]  # fmt: skip
QUIET: Mapping[str, Any] = {"request": None, "argv": [], "stdout": '{"ok":true}', "stderr": "", "exit_code": 0}


class StandIn:
    """The executable at `path`, with what it is to play and what it was called with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "ailang"
        self._score, self._log = folder / "score.json", folder / "log.jsonl"
        self.path.write_text(SCRIPT.format(python=sys.executable, score=str(self._score), log=str(self._log)))
        self.path.chmod(0o755)
        self.play(QUIET, any=True)

    def play(self, row: Mapping[str, Any], **options: Any) -> None:
        """Play a row next: any request will do with `any`, its own summaries with `summary`."""
        self._score.write_text(json.dumps({"row": row, "cli": CLI, **options}), encoding="utf-8")
        self._log.unlink(missing_ok=True)

    def calls(self, *, summaries: bool = False) -> list[dict[str, Any]]:
        """What it has been called with since it was told what to play."""
        if not self._log.exists():
            return []
        calls = [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]
        return [call for call in calls if summaries or call["stdin"] != '{"op":"summary"}']
