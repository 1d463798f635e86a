"""A private RabbitMQ node: a child process on free loopback ports, in a folder of its own.

It needs RabbitMQ's program files and nothing else: no systemd, no root, no resolvable host name. It ends when this
process ends, however that comes about.
"""

import asyncio
import atexit
import fcntl
import hashlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

from deploy.child import Child

HOST = "127.0.0.1"
# Below the range that the kernel hands to outgoing connections, so that a port stays free over a restart.
PORTS = range(15_000, 30_000)
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
EPMD_NAMES = b"\x00\x01n"
# RabbitMQ turns busy waiting off, which doubles the time to start on few cores.
ERLANG_ARGUMENTS = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt short +sbwtdcpu short +sbwtdio short"
# Of what a failed start writes, the lines that carry no reason: Erlang's terms and reports.
NOISE = re.compile(r"^$|\] <[\d.]+> *(\s\s.*)?$|^[{ ]|Feature flags|^(Crash dump|Kernel pid|init term)")


class NodeError(RuntimeError):
    """The node could not be started, reached or commanded; the text carries the end of its log."""


class PortTakenError(NodeError):
    """Another process took a port of the node."""


class Ports(NamedTuple):
    """The ports of one node; rabbitmqctl uses one of the sixteen from `ctl` on."""

    amqp: int
    dist: int
    epmd: int
    management: int
    ctl: int


class PrivateNode:
    """One RabbitMQ node, used as `with PrivateNode() as node: node.url` (or `async with`).

    `folder` keeps the node's data for a later node; without it a temporary one is made, and removed by `close`.
    `config` adds lines to `rabbitmq.conf`; `management` serves the management API too. The URL stays the same over
    `kill`, `stop` and `restart`, and durable queues survive all three. The only user is RabbitMQ's default, guest,
    which is confined to this machine.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        config: Mapping[str, str] | None = None,
        management: bool = False,
        start_timeout: float = 60.0,
    ) -> None:
        self._programs, self._epmd_program = find_programs()
        self._management = management
        self._config = dict(config or {})
        self._start_timeout = start_timeout
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="skillbus-rabbitmq-") if folder is None else folder).absolute()
        self._lock: IO[str] | None = None
        self._known_ports: Ports | None = None
        self._children: list[Child] = []  # epmd, then the node
        atexit.register(self._close_at_exit, os.getpid())

    @property
    def ports(self) -> Ports:
        """The ports of the node; they are chosen by the first start."""
        if self._known_ports is None:
            raise NodeError("the RabbitMQ node was never started")
        return self._known_ports

    @property
    def url(self) -> str:
        """The AMQP URL of the node."""
        return f"amqp://guest:guest@{HOST}:{self.ports.amqp}/"

    @property
    def management_url(self) -> str:
        """The URL of the management API, where the node was asked to serve it."""
        return f"http://{HOST}:{self.ports.management}"

    @property
    def pid(self) -> int | None:
        """The process id of the node, to signal it by; None when it does not run."""
        return self._children[-1].pid if self._children and self._children[-1].alive else None

    def start(self) -> Self:
        """Start the node and wait until it answers as an AMQP broker."""
        if self.pid is not None:
            return self
        self.kill()  # what a node that ended by itself has left
        self._prepare()
        for attempts_left in reversed(range(1 if self._known_ports else 5)):
            ports = self._known_ports or _choose_ports()
            try:
                self._boot(ports)
            except BaseException as error:
                self.kill()
                if not (isinstance(error, PortTakenError) and attempts_left):
                    raise
            else:
                self._known_ports = ports
                break
        return self

    def stop(self) -> None:
        """End the node in an orderly way; `start` brings it back with its durable queues."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the node at once (SIGKILL), as a crash would; `start` brings it back.

        RabbitMQ 3.10 writes down the name of a new quorum queue some three seconds late, and a crash before that
        leaves the queue without a leader for good: call `settle` first where the queues are new.
        """
        self._end(signal.SIGKILL)

    def settle(self) -> None:
        """Have the node write down at once what it writes late: the names of new quorum queues."""
        self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()].")

    def restart(self) -> None:
        """Stop the node if it runs, and start it again at the same URL."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the node for good; a temporary folder is removed."""
        atexit.unregister(self._close_at_exit)
        self.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run `rabbitmqctl` on this node and return what it prints."""
        command, env = [str(self._programs / "rabbitmqctl"), *arguments], self._environment(self.ports)
        try:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise NodeError(f"rabbitmqctl {' '.join(arguments)} took longer than {timeout:g} s") from None
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise NodeError(f"rabbitmqctl {' '.join(arguments)} failed:\n{said}")
        return done.stdout.decode()

    def log(self) -> str:
        """What the node and its starter have written since the last start."""
        files = [self.folder / "log" / name for name in ("output.log", "node.log")]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _close_at_exit(self, owner: int) -> None:
        if os.getpid() == owner:  # and not a fork of the process that owns the node
            self.close()

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._lock is None:
            lock = (self.folder / "lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                raise NodeError(f"another RabbitMQ node runs in {self.folder}") from None
            self._lock = lock
        (self.folder / "log").mkdir(exist_ok=True)
        plugins = "rabbitmq_management" if self._management else ""
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)  # Erlang refuses one that others may read
            cookie.write_text(secrets.token_hex(16))

    def _boot(self, ports: Ports) -> None:
        for file in (self.folder / "log").iterdir():
            file.unlink()
        self._configure(ports)
        env, name = self._environment(ports), self._name.encode()
        # Left to itself, Erlang starts a daemon epmd that outlives the node.
        epmd = [self._epmd_program, "-port", str(ports.epmd), "-address", HOST]
        self._begin(epmd, env, lambda: _answers(ports.epmd, EPMD_NAMES, ports.epmd.to_bytes(4, "big")))
        # A listening port is no broker yet, and one that answers may be another's: the greeting names the node.
        server = [str(self._programs / "rabbitmq-server")]
        self._begin(server, env, lambda: _answers(ports.amqp, PROTOCOL_HEADER, name))
        if self._management:
            self._wait("the management API", lambda: _answers(ports.management, b"GET / HTTP/1.0\r\n\r\n", b"HTTP/"))

    def _configure(self, ports: Ports) -> None:
        settings = {"loopback_users.guest": "true", "log.console": "false", "log.file.level": "warning"}
        if self._management:
            settings |= {"management.tcp.ip": HOST, "management.tcp.port": f"{ports.management}"}
        lines = (f"{key} = {value}\n" for key, value in (settings | self._config).items())
        (self.folder / "rabbitmq.conf").write_text("".join(lines))

    def _begin(self, command: list[str], env: dict[str, str], ready: Callable[[], bool]) -> None:
        with (self.folder / "log" / "output.log").open("ab") as output:
            child = Child(command, env=env, cwd=self.folder, output=output)
        self._children.append(child)
        self._wait(Path(command[0]).name, ready)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        child, deadline = self._children[-1], time.monotonic() + self._start_timeout
        while not (child.alive and ready()):
            log = self.log()
            tail = "".join(f"\n  | {line[:300]}" for line in log.splitlines() if not NOISE.search(line))
            if not child.alive:
                if child.status == 0 or "in use" in log or "eaddrinuse" in log:  # epmd says so by ending well
                    raise PortTakenError(f"{what} did not start: another process took its port{tail}")
                raise NodeError(f"{what} ended while starting, with exit status {child.status}{tail}")
            if time.monotonic() > deadline:
                raise NodeError(f"{what} was not ready within {self._start_timeout:g} s{tail}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        while self._children:
            self._children[-1].end(how)
            self._children.pop()

    @property
    def _name(self) -> str:
        return "skillbus-" + hashlib.sha256((self.folder / ".erlang.cookie").read_bytes()).hexdigest()[:12]

    def _environment(self, ports: Ports) -> dict[str, str]:
        folder = self.folder  # the files that are not there keep the system's from being read
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": f"{folder}",
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": f"{ports.epmd}",
            "ERL_ZFLAGS": "-start_epmd false",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONFIG_FILES": f"{folder}/conf.d",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/environment.conf",
            "RABBITMQ_CTL_DIST_PORT_MAX": f"{ports.ctl + 15}",
            "RABBITMQ_CTL_DIST_PORT_MIN": f"{ports.ctl}",
            "RABBITMQ_DIST_PORT": f"{ports.dist}",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_LOGS": f"{folder}/log/node.log",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_MNESIA_DIR": f"{folder}/data/node",
            "RABBITMQ_NODENAME": f"{self._name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": f"{ports.amqp}",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_ARGUMENTS,
            "RUNNING_UNDER_SYSTEMD": "true",  # the start script then becomes the node, instead of waiting for it
        }


def _answers(port: int, greeting: bytes, expected: bytes) -> bool:
    received = b""
    with suppress(OSError), socket.create_connection((HOST, port), timeout=2) as connection:
        connection.sendall(greeting)
        while expected not in received and (more := connection.recv(4096)):
            received += more
    return expected in received


def _choose_ports() -> Ports:
    free: list[int] = []
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            free.append(port)
        if len(free) == len(Ports._fields):
            return Ports(*free)
    raise NodeError(f"no free ports on {HOST} between {PORTS.start} and {PORTS.stop}")


def find_programs() -> tuple[Path, str]:
    """The folder of RabbitMQ's scripts, and Erlang's epmd. Raises NodeError, which says what to install."""
    # What Debian has on the PATH changes to the user rabbitmq and refuses any other; it links to where the scripts are.
    released, packaged = os.environ.get("RABBITMQ_HOME", "/none"), Path("/usr/lib/rabbitmq/bin")
    folders = [Path(released, "sbin"), packaged, Path(shutil.which("rabbitmq-server") or "/none").resolve().parent]
    epmd = shutil.which("epmd") or shutil.which("epmd", path="/usr/lib/erlang/bin")
    for folder in folders:
        if epmd and all(os.access(folder / name, os.X_OK) for name in ("rabbitmq-server", "rabbitmqctl")):
            return folder, epmd
    raise NodeError(
        "RabbitMQ is not installed: run `apt-get install -y --no-install-recommends rabbitmq-server` (Debian, Ubuntu), "
        "or set RABBITMQ_HOME to an unpacked release and have Erlang's epmd on the PATH"
    )
