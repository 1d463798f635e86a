"""docs/guide.md, from an empty folder to its end: each file is written, each command run, each line found."""

import os
import re
import shlex
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests.deploy.conftest import COMMAND, LIMIT, ROOT, Home

PAGE = (ROOT / "docs" / "guide.md").read_text()
STEP = re.compile(
    r"(?:<!-- (?P<note>[^\n]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n(?:\n(?P<says>(?:    [^\n]*\n)+))?",
    re.DOTALL,
)
STEPS = list(STEP.finditer(PAGE))
INSTEAD = "instead, in "


class Reader:
    """Who follows the page: one shell whose variables last, and a second terminal for the worker."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.folder = home.folder / "empty"
        self.folder.mkdir()
        self.environment = home.environment | {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}
        del self.environment["SKILLBUS_STATE_DIR"]
        self.worker: subprocess.Popen[str] | None = None

    def shell(self, text: str, code: int) -> str:
        kept = self.home.folder / "variables"
        done = subprocess.run(
            ["sh", "-eu", "-c", f"trap 'export -p > {shlex.quote(str(kept))}' EXIT\n{text}"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{text}\n{said}"
        names = re.findall(r"^export (\w+)", kept.read_text(), re.MULTILINE)
        exported = subprocess.run(
            ["sh", "-c", f'. {shlex.quote(str(kept))}; env -0'], capture_output=True, text=True, check=True, env={}
        ).stdout  # fmt: skip
        values = dict(each.split("=", 1) for each in exported.split("\0") if each)
        self.environment = {name: values[name] for name in names if name in values}
        return said

    def instead(self, file: Path, text: str) -> None:
        """Each line takes the place of the one that says the same thing, the rest goes behind them."""
        first, *more = text.strip().splitlines()
        name = r"(?:python|javascript)" if first.startswith(("python", "javascript")) else re.escape(first.split()[0])
        changed, count = re.subn(
            rf"^{name} = .*$", lambda _: "\n".join((first, *more)), file.read_text(), flags=re.MULTILINE
        )
        assert count == 1, text
        file.write_text(changed)

    def serve(self, text: str) -> str:
        """The second terminal; the URL that the worker prints."""
        said = self.home.folder / "worker.log"
        with said.open("w") as log:
            self.worker = subprocess.Popen(
                shlex.split(text), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.worker.stdout is not None
        url = self.worker.stdout.readline().strip()
        ends = time.monotonic() + LIMIT
        while not re.search(r"\bready\b", said.read_text()):
            assert self.worker.poll() is None, said.read_text()
            assert time.monotonic() < ends, said.read_text()
            time.sleep(0.02)
        return url

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.send_signal(signal.SIGINT)
            with self.worker:
                assert self.worker.wait(LIMIT) == 0
            self.worker = None


@pytest.mark.rabbitmq
def test_each_step_of_the_guide_does_what_it_says(home: Home, rabbitmq_programs: None) -> None:
    reader, url = Reader(home), ""
    try:
        for step in STEPS:
            note, text = step["note"] or "", step["text"]
            if note.startswith("file: "):
                (reader.folder / note.removeprefix("file: ")).write_text(text)
            elif note.startswith(INSTEAD):
                reader.instead(reader.folder / note.removeprefix(INSTEAD), text)
            elif note == "the worker":
                url = reader.serve(text)
                assert url.startswith("amqp://")
            else:
                assert step["language"] == "sh", text
                said = reader.shell(text.replace("amqp://…", shlex.quote(url)), 1 if note == "exit code 1" else 0)
                for line in textwrap.dedent(step["says"] or "").splitlines():
                    assert line.strip() in said, f"{text}\n{said}"
                if note == "with the worker's URL":
                    reader.stop()
    finally:
        if reader.worker is not None:
            reader.worker.kill()
            reader.worker.wait(LIMIT)
    assert not [name for name in ("open-sesame", "a key of a command") if _stands(name, reader.folder / "state")]


def _stands(value: str, folder: Path) -> bool:
    return any(value.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_every_block_of_the_page_is_a_step() -> None:
    assert PAGE.count("```") == 2 * len(STEPS)
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
