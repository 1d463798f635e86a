"""The first call of the README, run as it stands there."""

import re
import subprocess
from pathlib import Path

from tests.deploy.conftest import COMMAND, ROOT, Home

README = (ROOT / "README.md").read_text()


def test_the_first_call_works_as_written(home: Home) -> None:
    (script,) = re.findall(r"<!-- first call -->\n```sh\n(.*?)```", README, re.DOTALL)
    folder = home.folder / "checkout"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "skillbus").symlink_to(COMMAND)
    del home.environment["SKILLBUS_STATE_DIR"]
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=folder,
        env=home.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = [line.strip() for line in done.stdout.splitlines()]
    for line in (
        "calc: completed, ok  entry 1",
        "text  42",
        "content    hello, world",
        "all 7 link(s) verified",
        "chain verified: 3 entries",
    ):
        assert line in said


def test_every_page_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
    for folder in re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE):
        assert Path(ROOT, folder).is_dir()
    for word in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
