"""The doctor: looks at everything that a worker and a caller stand on, changes nothing, and says how to mend it."""

import asyncio
import fcntl
import logging
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from broker.ledger import schema
from broker.ledger.records import genesis
from skills import Catalog, PackContext
from skills.canonical import ref

from .logs import mask
from .settings import Settings

LIMIT = 10.0
"""Seconds that one check may take."""

HEADS = 20_000
"""Episodes whose newest entry is checked; `skillbus log verify` checks all that there is."""

# File systems that another machine may write to beside this one, where SQLite's shared memory can't follow.
_REMOTE = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|afs|ceph|glusterfs|lustre")
_DOUBTFUL = re.compile(r"9p|virtiofs|fuse\..*|fuseblk|vboxsf|drvfs")

_SESSIONS = ("SKILLBUS_SESSION", "WORLD_SESSION")


class Level(StrEnum):
    """How a finding stands."""

    OK = "ok"
    WARNING = "warning"
    """Something that need not be wrong, or is not wrong yet."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and how to mend it where that is needed. No secret is in it."""

    check: str
    level: Level
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One look at one thing."""

    name: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    fix: str = "try again; if it comes back, this is a fault of Skillbus"
    limit: float = LIMIT


def well(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, mask(text))


def doubtful(check: str, text: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, mask(text), mask(fix))


def failed(check: str, text: str, fix: str) -> Finding:
    return Finding(check, Level.FAILED, mask(text), mask(fix))


async def run(check: Check) -> tuple[Sequence[Finding], bool]:
    """What a check finds, and whether it was given up. It ends within its limit, whatever it looks at."""
    # Not `wait_for`: a check that does not let itself be cancelled would be waited for.
    task = asyncio.ensure_future(check.look())
    await asyncio.wait({task}, timeout=check.limit)
    if not task.done():
        task.cancel()
        return [failed(check.name, f"no answer within {check.limit:g} s", check.fix)], True
    error = task.exception()
    if error is not None:
        return [failed(check.name, f"{type(error).__name__}: {error}", check.fix)], False
    return task.result(), False


def checks(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """The checks of this machine; those of the message broker are in `deploy.broker_checks`."""

    def threaded(look: Callable[[], Sequence[Finding]]) -> Callable[[], Awaitable[Sequence[Finding]]]:
        return lambda: asyncio.to_thread(look)

    disk = "is the disk there, and does it answer?"
    return [
        Check("settings", threaded(lambda: _settings(settings))),
        Check("state", threaded(lambda: _state(settings)), disk),
        Check("credential", threaded(lambda: _credential(environ)), disk),
        Check("ledger", threaded(lambda: _ledger(settings)), disk),
        Check("workspaces", threaded(lambda: _workspaces(settings)), disk),
        Check("git", threaded(_git)),
        Check(
            "packs", threaded(lambda: _packs(settings, environ)), "a pack must load quickly: look at what it imports"
        ),
    ]


def _settings(settings: Settings) -> list[Finding]:
    given = [setting for setting in settings.describe() if setting.origin != "default"]
    told = ", ".join(f"{setting.name}={setting.value} ({setting.origin})" for setting in given)
    return [well("settings", told or "all are defaults")]


def _state(settings: Settings) -> list[Finding]:
    folder = settings.state_dir
    try:
        found = folder.stat()
    except FileNotFoundError:
        return [doubtful("state", f"{folder} is not there yet", "`skillbus session new EPISODE` makes it")]
    except OSError as error:
        return [failed("state", f"{folder}: {error.strerror}", f"make {folder} a folder of this user")]
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return [failed("state", f"{folder} is no folder", "name another with --state-dir")]
    if found.st_uid != os.geteuid():
        fix = f"run as that user, or `chown -R {os.geteuid()} {folder}`"
        return [doubtful("state", f"{folder} belongs to the user {found.st_uid}", fix)]
    if mode & 0o077:
        worse = failed if mode & 0o022 else doubtful
        who = "write into" if mode & 0o022 else "look into"
        return [worse("state", f"others can {who} {folder} (mode {mode:04o})", f"chmod 700 {folder}")]
    return [well("state", f"{folder}, for this user alone")]


def _credential(environ: Mapping[str, str]) -> list[Finding]:
    for name in _SESSIONS:
        value = environ.get(name, "").strip()
        if not value:
            continue
        if re.fullmatch(r"[0-9A-Fa-f]{64}", value):
            return [well("credential", f"in {name}")]
        try:
            path = Path(value).expanduser()
            found = path.stat()
        except (OSError, ValueError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no path"
            fix = f"let {name} name the file that `skillbus session new … --out FILE` wrote"
            # The value itself is never repeated: it may be a credential with a slip in it.
            return [failed("credential", f"what {name} names can't be read: {reason}", fix)]
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            return [failed("credential", f"others can read {path} (mode {mode:04o})", f"chmod 600 {path}")]
        return [well("credential", f"{path} ({name}), for this user alone")]
    return [well("credential", "none named, which only callers need")]


def _ledger(settings: Settings) -> list[Finding]:
    path = Path(settings.ledger)
    if not path.exists() or not path.stat().st_size:
        return [
            doubtful(
                "ledger",
                f"there is no ledger {path} yet",
                "`skillbus session new EPISODE` makes it; if yours is elsewhere, name it with --ledger",
            )
        ]
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        fix = f"let this user write {path} and into {path.parent}: SQLite keeps two more files beside it"
        return [failed("ledger", f"{path} can't be written", fix)]
    return [*_sqlite(path), *_file_system(path)]


def _sqlite(path: Path) -> list[Finding]:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=LIMIT / 2)) as database:
            database.isolation_level = None
            found = _schema_fault(database)
            if found is not None:
                return [found]
            # Written and taken back: a full disk or a read-only file shows, and nothing stays.
            database.execute("BEGIN IMMEDIATE")
            database.execute("UPDATE facts SET value = value WHERE name = 'schema'")
            database.execute("ROLLBACK")
            (mode,) = database.execute("PRAGMA journal_mode").fetchone()
            episodes, faults = _heads(database)
    except sqlite3.Error as error:
        fix = "see `skillbus log verify`; restore it from its copy" if "malformed" in str(error) else (
            f"check the owner and mode of {path}, its disk's free space, and that it is the right file"
        )  # fmt: skip
        return [failed("ledger", f"{path}: {error}", fix)]
    if faults:
        fix = f"`skillbus log verify {faults[0]}` says what was changed; restore the ledger from its copy"
        return [failed("ledger", f"the newest entry is not what was written in {', '.join(faults[:5])}", fix)]
    if mode != "wal":
        return [
            doubtful("ledger", f"{path} is in journal mode {mode}, which every worker changes to wal", "none needed")
        ]
    checked = f"the newest entries of {min(episodes, HEADS)} hold" if episodes else "no episode yet"
    return [well("ledger", f"{path}, schema {schema.VERSION}, writable, {checked}")]


def _schema_fault(database: sqlite3.Connection) -> Finding | None:
    row: tuple[str] | None = database.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone()
    version = None if row is None else row[0]
    if version == str(schema.VERSION):
        return None
    text = f"it has schema {version}, and this Skillbus knows {schema.VERSION}"
    if version is not None and version.isdecimal() and int(version) < schema.VERSION:
        fix = (
            f"stop the workers of the older Skillbus; the first command or worker of this one makes it {schema.VERSION}"
        )
        return doubtful("ledger", text, fix)
    return failed("ledger", text, "use the Skillbus that wrote it, or another ledger")


def _heads(database: sqlite3.Connection) -> tuple[int, list[str]]:
    """How many episodes there are, and those whose head is not the hash of their newest entry."""
    (count,) = database.execute("SELECT count(*) FROM episodes").fetchone()
    rows = database.execute(
        "SELECT e.id, e.revision, e.log_head, n.hash, n.encoded,"
        " (SELECT max(entry_index) FROM entries WHERE episode = e.id)"
        " FROM episodes e LEFT JOIN entries n ON n.episode = e.id AND n.entry_index = e.revision LIMIT ?",
        (HEADS,),
    )
    faults = []
    for episode, revision, head, entry_hash, encoded, newest in rows:
        if revision == 0:
            holds = newest is None and head == genesis(episode).log_head
        else:
            holds = newest == revision and isinstance(encoded, bytes) and ref(encoded) == entry_hash == head
        if not holds:
            faults.append(str(episode))
    return count, faults


def _file_system(path: Path) -> list[Finding]:
    kind = _kind_of(path)
    if kind and _REMOTE.fullmatch(kind):
        fix = "keep the SQLite file on a local disk"
        return [failed("ledger", f"{path} is on {kind}, where SQLite's write-ahead log is not safe", fix)]
    if kind and _DOUBTFUL.fullmatch(kind):
        fix = "share it with no other machine; better keep it on a local disk"
        return [doubtful("ledger", f"{path} is on {kind}, which may be shared with another machine", fix)]
    return []


def _kind_of(path: Path) -> str | None:
    """The type of the file system that a path is on."""
    try:
        mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    at = path.resolve()
    below = [(len(m[1]), m[2]) for m in mounts if len(m) > 2 and at.is_relative_to(m[1].replace(r"\040", " "))]
    return max(below, default=(0, None))[1]


def _workspaces(settings: Settings) -> list[Finding]:
    folder = settings.workspaces
    if not folder.exists():
        return [doubtful("workspaces", f"{folder} is not there yet", "`skillbus session new EPISODE` makes it")]
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as made:
            lock = Path(made, "lock")
            with lock.open("w") as one, lock.open("w") as other:
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return [well("workspaces", f"{folder}, writable, locks hold")]
    except OSError as error:
        fix = f"let this user write into {folder}, or name another folder with --workspaces"
        return [failed("workspaces", f"{folder}: {error.strerror}", fix)]
    fix = "put the worktrees on a file system where flock works: without it two effects of one episode could overlap"
    return [failed("workspaces", f"a lock in {folder} does not keep others out", fix)]


def _git() -> list[Finding]:
    fix = "install git: `session new --repo` needs it"
    if shutil.which("git") is None:
        return [doubtful("git", "git is not installed", fix)]
    done = subprocess.run(["git", "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT / 2)
    if done.returncode:
        return [doubtful("git", f"git does not run: {done.stderr.decode(errors='replace').strip()[:200]}", fix)]
    return [well("git", done.stdout.decode(errors="replace").strip())]


def _packs(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    context = PackContext(settings.tools, dict(environ), state_dir=settings.state_dir)
    with _warnings_of_packs() as warned:
        catalog = Catalog.load(context, only=settings.only_packs, named=settings.packs, folders=settings.tools_dirs)
    doubts = [doubtful("packs", text, "mend what it names, or take it out of the settings") for text in warned]
    problems = [
        failed(
            "packs",
            str(problem),
            f"mend the {problem.kind}, install it where Python looks, or take it out of the settings",
        )
        for problem in catalog.problems
    ]
    if not len(catalog):
        problems.append(failed("packs", "there is no skill to serve", "see `packs` and `only_packs` in the settings"))
    if problems:
        return [*problems, *doubts]
    named = ", ".join(f"{pack.name} ({len(pack.skills)})" for pack in catalog.packs)
    below = ", ".join(f"{skill.id} ({skill.tier})" for skill in catalog if skill.tier != "live")
    tiers = f"; below the live tier: {below}, see `skillbus skills --verbose`" if below else ""
    return [well("packs", f"{named}: {len(catalog)} skill(s){tiers}"), *doubts]


@contextmanager
def _warnings_of_packs() -> Iterator[list[str]]:
    """What packs warn of while they are loaded: a setting that is not taken, an index that is not there."""
    warned: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name != Catalog.__module__:  # the catalog is asked for its problems
                warned.append(record.getMessage())

    handler, packs = Kept(logging.WARNING), logging.getLogger("skills")
    packs.addHandler(handler)
    try:
        yield warned
    finally:
        packs.removeHandler(handler)
