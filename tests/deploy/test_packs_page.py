"""The pack and the program of docs/packs.md, run as they stand there."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "packs.md").read_text()
PACK, PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(OUTPUT,) = re.findall(r"```\n\n((?:    [^\n]*\n)+)", PAGE)


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(PACK)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == textwrap.dedent(OUTPUT)


def test_the_command_takes_the_pack(tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(PACK)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SKILLBUS_STATE_DIR": str(tmp_path / "state")}

    def skillbus(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("skillbus")), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    credential = tmp_path / "ep1.session"
    minted = skillbus("session", "new", "ep1", "--grant", "Greeting.Send=people:3", "--out", str(credential))
    assert minted.returncode == 0, minted.stderr
    called = skillbus("call", "greet", "--pack", "greetings:pack", "--arg", "name=Ada", "--session", str(credential))
    assert called.returncode == 0, called.stderr
    assert "Hello, Ada!" in called.stdout
