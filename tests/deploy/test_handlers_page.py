"""The folder of docs/handlers.md, called as the page says, with both of its handlers."""

import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.conftest import Home

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```", PAGE, re.DOTALL))
(CALL,) = re.findall(r"<!-- a call -->\n```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_the_folder_is_served_as_the_page_says(home: Home, language: str) -> None:
    for name, text in FILES.items():
        (home.folder / name).write_text(text)
    manifest = home.folder / "skillbus.tools.toml"
    if language == "javascript":
        text = manifest.read_text()
        bound = re.sub(r'^python = .*# or: (javascript = "[^"]+")$', r"\1", text, flags=re.MULTILINE)
        assert bound != text
        manifest.write_text(bound)
    mint, call, _worker = (shlex.split(line)[1:] for line in CALL.splitlines())
    minted = home.run(*mint)
    assert minted.code == 0, minted.err
    called = home.run(*call)
    assert (called.code, called.err) == (0, "")
    assert "Datasets about wool" in called.out
    assert "e1 ok sha256:" in called.out


def test_a_tool_that_lacks_a_grant_is_not_there_and_the_command_says_why(home: Home) -> None:
    for name, text in FILES.items():
        (home.folder / name).write_text(text.replace('grants = ["network"]', ""))
    (home.folder / "handlers.py").write_text("raise SystemExit('loaded')\n")
    listed = home.run("doctor", "--tools", ".")
    assert "the manifest does not grant network" in listed.out + listed.err
    assert "loaded" not in listed.out + listed.err
