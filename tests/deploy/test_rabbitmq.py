import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from deploy import rabbitmq
from deploy.rabbitmq import NodeError, Ports, PrivateNode
from tests.deploy.test_child import ends

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.usefixtures("rabbitmq_programs"),
    pytest.mark.xdist_group("rabbitmq_node"),
]


def processes_of(folder: Path) -> list[int]:
    """Every process that was started for the node in this folder, its helpers included."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={folder}\0".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def nothing_runs_in(folder: Path) -> bool:
    while left := processes_of(folder):
        if not all(ends(pid, within=20) for pid in left):
            return False
    return True


def test_the_shared_broker_greets(rabbitmq_url: str) -> None:
    host, _, port = rabbitmq_url.rpartition("@")[2].partition("/")[0].partition(":")
    with socket.create_connection((host, int(port or 5672)), timeout=10) as connection:
        connection.sendall(rabbitmq.PROTOCOL_HEADER)
        assert connection.recv(7)


async def test_a_killed_node_comes_back_at_its_url_with_what_was_confirmed(
    rabbitmq_node: PrivateNode, unique_prefix: str
) -> None:
    url, pid = rabbitmq_node.url, rabbitmq_node.pid
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(unique_prefix, durable=True, arguments=arguments)
        message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue.name)

    rabbitmq_node.settle()
    rabbitmq_node.kill()
    assert rabbitmq_node.pid is None
    rabbitmq_node.start()

    assert (rabbitmq_node.url, rabbitmq_node.pid) != (url, pid)
    assert rabbitmq_node.url == url
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(unique_prefix, durable=True, arguments=arguments)
        received = await queue.get(timeout=20)
        assert received.body == b"kept"
        await received.ack()
        await queue.delete(if_unused=False, if_empty=False)


def test_commands_reach_the_node(rabbitmq_node: PrivateNode) -> None:
    assert "guest" in rabbitmq_node.ctl("list_users", "--quiet")
    with pytest.raises(NodeError, match="rabbitmqctl no_such_command failed"):
        rabbitmq_node.ctl("no_such_command")


def test_a_folder_holds_one_node_at_a_time(rabbitmq_node: PrivateNode) -> None:
    with pytest.raises(NodeError, match="another RabbitMQ node runs in"):
        PrivateNode(rabbitmq_node.folder).start()


def test_it_has_no_url_before_it_was_started(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="never started"):
        _ = PrivateNode(tmp_path).url


async def test_closing_leaves_no_process_and_no_folder() -> None:
    async with PrivateNode() as node:
        assert len(processes_of(node.folder)) >= 2
        assert node.folder.stat().st_mode & 0o777 == 0o700
    assert processes_of(node.folder) == []
    assert not node.folder.exists()


@pytest.fixture
def one_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Other processes take one of the chosen ports, each time another one, then none."""
    choose = rabbitmq._choose_ports
    left = list(Ports._fields[:3])
    with ExitStack() as resources:

        def choose_badly() -> Ports:
            ports = choose()
            if left:
                other = resources.enter_context(socket.socket())
                other.bind((rabbitmq.HOST, getattr(ports, left.pop())))
                other.listen()
            return ports

        monkeypatch.setattr(rabbitmq, "_choose_ports", choose_badly)
        yield lambda: left


def test_a_port_that_another_takes_is_chosen_anew(one_taken: Callable[[], list[str]]) -> None:
    with PrivateNode() as node:
        assert one_taken() == []
        assert node.pid is not None


def test_a_failing_start_shows_the_end_of_the_log() -> None:
    node = PrivateNode(config={"no.such.setting": "1"})
    with pytest.raises(NodeError, match=r"ended while starting[\s\S]*no\.such\.setting"), node:
        pass
    assert processes_of(node.folder) == []
    assert not node.folder.exists()


def test_without_rabbitmq_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(NodeError, match="apt-get install -y --no-install-recommends rabbitmq-server"):
        PrivateNode()


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_nothing_outlives_a_killed_parent(tmp_path: Path, moment: str) -> None:
    script = """
import os, signal, sys
from deploy import rabbitmq

answers = rabbitmq._answers
node = rabbitmq.PrivateNode(sys.argv[1])

def watched(*question):
    if sys.argv[2] == "starting" and os.readlink(f"/proc/{node.pid}/exe").endswith("beam.smp"):
        print("starting", flush=True)
        signal.pause()
    return answers(*question)

rabbitmq._answers = watched
with node:
    print("running", flush=True)
    signal.pause()
"""
    folder = tmp_path / "node"
    command = [sys.executable, "-c", script, str(folder), moment]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line, running = parent.stdout.readline(), processes_of(folder)
        parent.kill()
    assert line.strip() == moment
    assert len(running) >= 2
    assert nothing_runs_in(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_it_starts_for_an_ordinary_user_on_a_host_that_has_no_address() -> None:
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]
    nowhere = ["unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid && exec "$@"', "sh"]
    if subprocess.run([*nowhere, "true"], capture_output=True).returncode:
        nowhere = []  # a container that may not name itself
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*nowhere, *as_nobody, python, "-c", "import sys; assert sys.version_info >= (3, 11)"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("the interpreter lies where an ordinary user may not read")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(ROOT / "deploy", Path(folder, "deploy"), ignore=shutil.ignore_patterns("__pycache__"))
        script = "from deploy.rabbitmq import PrivateNode\nwith PrivateNode() as node: print(node.url)"
        command = [*nowhere, *as_nobody, python, "-c", script]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stdout.startswith("amqp://guest:guest@127.0.0.1:"), done.stderr
