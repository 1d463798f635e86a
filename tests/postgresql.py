"""A private PostgreSQL server: a cluster in a folder of its own, on a Unix socket, that ends with the test run."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest

OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
}


class PostgreSQL:
    """One server, used as `with PostgreSQL() as server: server.url("name")`. Root runs it as another user."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="skillbus-pg-", dir="/tmp"))  # a socket's path must be short
        self._server: subprocess.Popen[bytes] | None = None

    def create(self, database: str) -> None:
        """Make an empty database."""
        self._run("createdb", database)

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://tester@/{database}?host={quote(str(self._folder), safe='')}"

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(30)
            self._server = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        options = [part for name, value in OPTIONS.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self._user, cwd="/", start_new_session=True,
            )  # fmt: skip
        limit = time.monotonic() + 60
        while self._run("pg_isready", "-q", check=False):
            if self._server.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"PostgreSQL does not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)  # it has no other way of saying that it is there
        return self

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        arguments: list[str | Path] = [
            "-D",
            self._folder / "data",
            "-U",
            "tester",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        self._run("initdb", *arguments, "--locale=C.UTF-8", "--no-instructions")
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> int:
        environment = {"PATH": os.defpath, "PGHOST": str(self._folder), "PGUSER": "tester", "LANG": "C.UTF-8"}
        ran = subprocess.run(
            [self._programs / program, *arguments], env=environment, user=self._user, cwd="/", capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        if check and ran.returncode:
            raise RuntimeError(f"{program} failed: {ran.stderr[-2000:]}")
        return ran.returncode


def _programs() -> Path:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: -float(place.parent.name))
    for place in places:
        if (place / "postgres").exists():
            return place
    pytest.fail("there is no PostgreSQL here: install it (make test does), or put initdb into PATH", pytrace=False)


def _unprivileged() -> int:
    """A user that PostgreSQL agrees to run as."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    pytest.fail("PostgreSQL does not run as root, and there is no other user here", pytrace=False)
