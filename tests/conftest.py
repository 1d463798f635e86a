"""What every test gets: an environment of its own, and RabbitMQ where it asks for it.

One private node serves the whole run. The process that the developer started owns it; the workers of pytest-xdist
ask that process for its URL, and the first to ask has it started.
"""

import contextlib
import os
import secrets
import signal
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.rabbitmq import NodeError, PrivateNode, find_programs

GIVEN_URL = os.environ.get("SKILLBUS_TEST_AMQP_URL", "")
FOREIGN_PREFIXES = ("SKILLBUS_", "MKLANG_", "GIT_", "XDG_")


class SharedNode:
    """The node of the test run: started by the first who asks, from whichever process."""

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._answer = ""
        self._address = ""

    def ask(self) -> str:
        """`url …`, or `error …` when there can be no node."""
        with self._lock:
            if not self._answer:
                try:
                    self._answer = f"url {self._resources.enter_context(PrivateNode()).url}"
                except NodeError as error:
                    self._answer = f"error {error}"
            return self._answer

    def serve(self) -> str:
        """The address at which other processes ask the same."""
        if not self._address:
            folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="skillbus-tests-"))
            self._address = str(Path(folder, "node.socket"))
            ask = self.ask

            class Handler(socketserver.StreamRequestHandler):
                def handle(self) -> None:
                    self.wfile.write(ask().encode())

            server = self._resources.enter_context(socketserver.ThreadingUnixStreamServer(self._address, Handler))
            threading.Thread(target=server.serve_forever, name="shared RabbitMQ node", daemon=True).start()
            self._resources.callback(server.shutdown)
        return self._address

    def close(self) -> None:
        self._resources.close()


SHARED_NODE = pytest.StashKey[SharedNode]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a run started in the background ignores it, and so would every process that a test interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[SHARED_NODE] = SharedNode()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SHARED_NODE].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where to ask."""
    node.workerinput["rabbitmq"] = node.config.stash[SHARED_NODE].serve()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs RabbitMQ; keep to one worker what kills its node, so that there is one such node at a time."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "rabbitmq_url" in fixtures or "rabbitmq_node" in fixtures:
            item.add_marker("rabbitmq")
        if "rabbitmq_node" in fixtures:
            item.add_marker(pytest.mark.xdist_group("rabbitmq_node"))


@pytest.fixture(scope="session")
def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    """The URL of the broker that the run shares; no test may stop it. `SKILLBUS_TEST_AMQP_URL` names another."""
    if GIVEN_URL:
        return GIVEN_URL
    worker: dict[str, str] | None = getattr(request.config, "workerinput", None)
    if worker is None:
        answer = request.config.stash[SHARED_NODE].ask()
    else:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(worker["rabbitmq"])
            answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    kind, _, text = answer.partition(" ")
    if kind != "url":
        pytest.fail(text or "the test run has no RabbitMQ node", pytrace=False)
    return text


@pytest.fixture(scope="session")
def rabbitmq_programs() -> None:
    """For tests that start nodes themselves."""
    try:
        find_programs()
    except NodeError as error:
        if GIVEN_URL:
            pytest.skip("SKILLBUS_TEST_AMQP_URL names a broker that no test may kill, and there is no RabbitMQ here")
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def node_to_kill(rabbitmq_programs: None) -> Iterator[PrivateNode]:
    with PrivateNode() as node:
        yield node


@pytest.fixture
def rabbitmq_node(request: pytest.FixtureRequest, node_to_kill: PrivateNode) -> Iterator[PrivateNode]:
    """A running node that the test may kill, stop, freeze and restart. The next test gets it running again."""
    if hasattr(request.config, "workerinput") and not request.node.nodeid.endswith("@rabbitmq_node"):
        pytest.fail("the tests that kill their node share one worker: run pytest with --dist loadgroup", pytrace=False)
    yield node_to_kill.start()
    if node_to_kill.pid is not None:
        os.kill(node_to_kill.pid, signal.SIGCONT)


@pytest.fixture
def unique_prefix() -> str:
    """A prefix for the names of queues and exchanges that no other test uses."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def homes() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="skillbus-homes-") as folder:
        yield folder


@pytest.fixture(autouse=True)
def own_environment(homes: str) -> Iterator[None]:
    """Nothing of the developer's settings reaches a test, and nothing of a test reaches the developer's home."""
    home = tempfile.mkdtemp(dir=homes)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN_PREFIXES)]:
            patch.delenv(name)
        patch.setenv("HOME", home)
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", f"{home}/{name.lower()}")
        yield
