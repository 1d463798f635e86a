"""How the command ends: its exit codes, and every error that a user can act on as one line that says how."""

import re
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus import BusError


class Code(IntEnum):
    """The exit codes, as `docs/cli.md` lists them."""

    OK = 0
    ERROR = 1
    NO_START = 2
    FAULT = 3
    UNSEEN = 4
    CUT = 5
    TOO_LATE = 6
    INTERRUPTED = 130


class Failure(Exception):
    """The command can't do what it was asked; the message is one line and says what to do."""

    def __init__(self, message: str, *, code: Code = Code.ERROR) -> None:
        super().__init__(message)
        self.code = code


def failure_of(error: Exception, *, called: bool = False) -> Failure | None:
    """What to tell the user of an error that came from below; None for one that only a programmer can mend.

    `called` says that it ended the call of a skill, which can be sent again under its message id.
    """
    from bus import BusError

    if isinstance(error, Failure):
        return error
    if isinstance(error, BusError) and not hasattr(error, "cause"):  # the ledger's own is told below
        return Failure(f"{error.reason}: {error.message.rstrip('.')}. {_advice(error, called=called)}")
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError):
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if isinstance(error, UnicodeEncodeError):
        return Failure("what was given holds bytes that are no UTF-8 text: check the options and arguments")
    return _ledger_failure(error)


def _ledger_failure(error: Exception) -> Failure | None:
    from sqlalchemy.exc import DBAPIError

    from broker.chain.provenance import NotFound
    from broker.ledger.database import LedgerError
    from broker.ledger.watch import LedgerUnavailable
    from broker.sessions import SessionError
    from broker.worktrees.worktrees import WorktreeError
    from deploy.settings import SettingsError

    if isinstance(error, NotFound | LedgerError | SessionError | WorktreeError):
        return Failure(str(error))
    if isinstance(error, LedgerUnavailable):
        return Failure(f"the ledger can't be reached: {error.cause}. Is another process in it, and is its disk well?")
    if isinstance(error, SettingsError):
        return Failure("; ".join(error.lines))
    if isinstance(error, DBAPIError):
        cause = str(error.orig or error).splitlines()[0]
        code = Code.FAULT if re.search("malformed|not decode|not a database", cause) else Code.ERROR
        return Failure(f"the ledger can't be read: {cause}. Is it the right file, and is its disk well?", code=code)
    return None


def _advice(error: "BusError", *, called: bool) -> str:
    """What to do about an error that travelled."""
    import bus

    again = " with the same --message-id: it never runs twice" if called else ""
    for kind, advice in (
        (
            bus.Unauthenticated,
            "The session is expired, revoked, or of another ledger: see `skillbus session list --all`",
        ),
        (bus.AgentNotFound, "Start a worker for it (`skillbus worker`), or check --agent, --prefix and --amqp-url"),
        (bus.SkillNotFound, "It is absent or not granted to this session: `skillbus skills` lists what is"),
        (bus.IdempotencyConflict, "Use another --message-id for another call"),
        (
            bus.DeadlineExceeded,
            "Start a worker for it (`skillbus agents` lists who is there), and send it again"
            if error.metadata.get("servers") == "0"
            else "Send it again with the same --message-id to see what came of it, or anew with a longer --timeout"
            if called
            else "The worker's log says more",
        ),
        (bus.Undeclared, "Or let the worker make it: --declare, or `declare = true`, with a user who may configure"),
        (bus.Refused, _refusal(error)),
        (bus.ConnectionLost, f"Check that the broker at --amqp-url is up, and try again{again}"),
        (bus.Unavailable, f"Try again{_after(error)}{again}"),
        (bus.SandboxUnavailable, "The worktree of the episode must be on the worker's machine: see `--workspaces`"),
        (
            bus.InvalidParams,
            "Check the arguments: `skillbus skills SKILL` shows what a skill takes"
            if called
            else "Check the arguments and options: --help says what they are",
        ),
        (bus.MethodNotFound, "The agent is of another version than this command"),
    ):
        if isinstance(error, kind):
            return advice
    return "The worker's log says more"


def _refusal(error: "BusError") -> str:
    if "PRECONDITION_FAILED" in error.message:
        return "Another release made it: delete it once it is empty, or take another --prefix"
    return "Check --amqp-url: the user, its password, its permissions and the virtual host"


def _after(error: "BusError") -> str:
    milliseconds = error.metadata.get("retryAfterMs", "")
    return f" in {int(milliseconds) / 1000:g} s" if milliseconds.isdecimal() else ""
