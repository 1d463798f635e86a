"""The examples of the contract language, served by a worker over RabbitMQ, by handlers in Python and JavaScript."""

import json
import os
import signal
import subprocess

import pytest

from tests.deploy.conftest import LIMIT, Home
from tests.skills.handlers.test_pack import ADVANCED, BINDINGS, SEARCH, SIMPLE, SUMMARIZE, TABLE, written
from tests.skills.handlers.ways import is_running

JAVASCRIPT = "examples.tool_simple_too.SearchDatasets"


@pytest.mark.rabbitmq
def test_bound_tools_are_called_over_the_queue_and_their_hosts_end_with_the_worker(
    home: Home, rabbitmq_url: str, unique_prefix: str
) -> None:
    folder = home.folder / "tools"
    folder.mkdir()
    lacking = 'grants = ["network", "secret_read"]\nsecrets = { LLM_API_KEY = "env:LLM_API_KEY" }\n'
    written(
        folder,
        SIMPLE,
        TABLE.format(SEARCH, BINDINGS[1].format("search"), 'grants = ["network"]'),
        TABLE.format(JAVASCRIPT, BINDINGS[2].format("search"), 'grants = ["network"]'),
        TABLE.format(SUMMARIZE, BINDINGS[1].format("summarize"), lacking),
    )
    (folder / "too.tb").write_text(SIMPLE.replace("tool_simple", "tool_simple_too"))
    (folder / "advanced.tb").write_text(ADVANCED)
    home.environment |= {"SKILLBUS_AMQP_URL": rabbitmq_url, "SKILLBUS_PREFIX": unique_prefix}
    home.environment |= {"SKILLBUS_TOOLS_DIRS": json.dumps([str(folder)])}
    granted = [option for tool in (SEARCH, JAVASCRIPT, SUMMARIZE) for option in ("--grant", f"{tool}=tool:2")]
    minted = home.run("session", "new", "ep1", *granted, "--out", "ep1.session")
    assert minted.code == 0, minted.err
    home.environment["SKILLBUS_SESSION"] = str(home.folder / "ep1.session")
    reading, writing = os.pipe()
    with home.start("worker", "--declare", "--ready-fd", str(writing), pass_fds=[writing]) as worker:
        os.close(writing)
        try:
            with os.fdopen(reading) as ready:
                assert ready.read() == "ready\n", worker.communicate(timeout=LIMIT)
            refused = home.run("call", SUMMARIZE, "--arg", "query=wool")
            assert refused.code != 0
            assert not (folder / "marker").exists()
            for tool in (SEARCH, JAVASCRIPT):
                called = home.run("call", tool, "--arg", "query=wool", "--raw", "--strict")
                assert called.code == 0, called.err
                output = json.loads(called.out)["task"]["artifacts"][0]["parts"][0]["data"]
                assert output.pop("world")["effects"][0]["status"] == "ok"
                assert output == {"title": "about wool"}
            hosts = children(worker.pid)
            assert len(hosts) == 2
            worker.send_signal(signal.SIGTERM)
            _, said = worker.communicate(timeout=LIMIT)
        finally:
            if worker.poll() is None:
                worker.kill()
    assert worker.returncode == 0, said
    assert not any(map(is_running, hosts))
    assert f"tool {SUMMARIZE} is refused: the manifest does not grant memory_read" in said


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return list(map(int, found.stdout.split()))
