"""What a manifest may say, and what is said of one that says something else."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.tb import (
    MANIFEST,
    FromCommand,
    FromEnvironment,
    FromFile,
    Manifest,
    ManifestError,
    MemoryGrant,
    Store,
    manifest,
    read_manifest,
)
from skills.tb.provider import looks_secret

WHOLE = """\
[tools."shop.orders.Total"]
python = "./handlers/total.py:total"
grants = ["network", "secret_read", "memory_read"]
effect = "Orders.Total"
scope = "shop"
deadline = 2.5
concurrency = 2
isolation = "process"
repeatable = true
worktree = true
title = "Add up"

[tools."shop.orders.Total".risk]
read_only = true
external_egress = false
sensitivity = "internal"

[tools."shop.orders.Total".secrets]
B = { command = ["pass", "show", "b"] }

[tools."shop.search.Find"]
javascript = "./find.mjs#find"

[secrets]
A = "env:A_KEY"
B = "env:B_KEY"
C = "file:/run/secrets/c"
D = "file:keys/d"

[memories.Notes]
modes = ["read"]

[memories.Ledger]
modes = ["read", "write"]
store = "sqlite:data/ledger.db"
scope = "tenant"

[memories.Shared]
modes = ["write"]
store = "postgresql:env:NOTES_URL"
scope = "agent"
"""


def read(text: str, folder: Path) -> Manifest:
    (folder / MANIFEST).write_text(text)
    return read_manifest(folder / MANIFEST)


def test_everything_that_it_may_say(tmp_path: Path) -> None:
    found = read(WHOLE, tmp_path)
    total, find = found.tools["shop.orders.Total"], found.tools["shop.search.Find"]
    assert found.folder == tmp_path
    assert (total.handler.language, total.handler.function, total.handler.module) == ("python", "total", None)
    assert total.handler.file == tmp_path / "handlers" / "total.py"
    assert total.grants == {"network", "secret_read", "memory_read"}
    assert (total.effect, total.scope, total.deadline, total.concurrency) == ("Orders.Total", "shop", 2.5, 2)
    assert (total.isolation, total.repeatable, total.worktree, total.title) == ("process", True, True, "Add up")
    assert (total.risk.read_only, total.risk.external_egress, total.risk.irreversible) == (True, False, True)
    assert total.secrets == {
        "A": FromEnvironment("A_KEY"),
        "B": FromCommand(("pass", "show", "b")),
        "C": FromFile(Path("/run/secrets/c")),
        "D": FromFile(tmp_path / "keys" / "d"),
    }
    assert find.secrets["B"] == FromEnvironment("B_KEY")
    assert find.memories == {
        "Notes": MemoryGrant(frozenset({"read"}), Store("worker"), "episode"),
        "Ledger": MemoryGrant(frozenset({"read", "write"}), Store("sqlite", tmp_path / "data" / "ledger.db"), "tenant"),
        "Shared": MemoryGrant(frozenset({"write"}), Store("postgresql", url=FromEnvironment("NOTES_URL")), "agent"),
    }
    assert [str(each) for each in total.secrets.values()][:3] == ["env:A_KEY", "command:pass", "file:/run/secrets/c"]


def test_what_is_not_said_is_the_safe_choice(tmp_path: Path) -> None:
    find = read(WHOLE, tmp_path).tools["shop.search.Find"]
    assert (find.effect, find.scope, find.grants) == ("shop.search.Find", "tool", frozenset())
    assert (find.isolation, find.repeatable, find.worktree) == ("process", False, False)
    assert find.risk.external_egress
    assert find.risk.irreversible
    named = manifest({"tools": {"m.Do": {"python": "app.handlers:do"}}}).tools["m.Do"]
    assert (named.isolation, named.handler.module, named.handler.file) == ("none", "app.handlers", None)


TOOL = '[tools."m.Do"]\npython = "m:f"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "x: unknown key; known here: tools, secrets, memories"),
        (TOOL + "depth = 1", 'tools."m.Do".depth: unknown key; known here: python, javascript, grants'),
        (TOOL + "[tools.'m.Do'.risk]\na = 1", 'tools."m.Do".risk.a: unknown key; known here: read_only'),
        ("[memories.N]\nmodes=['read']\nmode='x'", "memories.N.mode: unknown key; known here: modes, store, scope"),
        ('[tools."m.Do"]', 'tools."m.Do": name one handler: python = "module:function" or'),
        (TOOL + 'javascript = "./a.mjs#f"', 'tools."m.Do": name one handler'),
        ('[tools.m]\npython = "m:f"', "tools.m: a tool is named <module>.<Tool>, in quotes"),
        ('[tools."m.do"]\npython = "m:f"', 'tools."m.do": a tool is named <module>.<Tool>, in quotes'),
        ('[tools."m.Do"]\npython = "m.f"', 'tools."m.Do": python: names no handler; write "module:function"'),
        ('[tools."m.Do"]\npython = "./a.js:f"', "python: names no handler"),
        ('[tools."m.Do"]\njavascript = "a.mjs#f"', 'javascript: names no handler; write "./file.mjs#function"'),
        ('[tools."m.Do"]\npython = "./../a.py:f"', "python: a path must stay inside the manifest's folder"),
        ('[tools."m.Do"]\npython = "./out/a.py:f"', "python: a path must stay inside the manifest's folder"),
        ('[tools."m.Do"]\njavascript = "./a.mjs#f"\nisolation = "none"', 'JavaScript handler runs in a process of its'),
        (TOOL + 'grants = ["Network"]', 'tools."m.Do".grants.0: a capability is a word in small letters, as network'),
        (TOOL + 'grants = "network"', 'tools."m.Do".grants: input should be a valid list'),
        (TOOL + "deadline = 0", 'tools."m.Do".deadline: input should be greater than 0'),
        (TOOL + 'deadline = "5"', 'tools."m.Do".deadline: input should be a valid number'),
        (TOOL + "deadline = nan", 'tools."m.Do".deadline: '),
        (TOOL + "concurrency = 0", 'tools."m.Do".concurrency: input should be greater than or equal to 1'),
        (TOOL + 'isolation = "vm"', "tools.\"m.Do\".isolation: input should be 'none' or 'process'"),
        (TOOL + 'effect = "a=b"', 'tools."m.Do".effect: letters, digits'),
        (TOOL + 'scope = ""', 'tools."m.Do".scope: letters, digits'),
        (TOOL + 'title = "a\\u001b[2J"', 'tools."m.Do".title: a text that is shown holds no control character'),
        (TOOL + 'title = "a\\u202eb"', 'tools."m.Do".title: a text that is shown holds no control character'),
        (TOOL + '[tools."m.Do".risk]\nsensitivity = "a\\nb"', 'tools."m.Do".risk.sensitivity: a text that is shown'),
        (TOOL + "repeatable = 1", 'tools."m.Do".repeatable: input should be a valid boolean'),
        ('[secrets]\na = "env:A"', "secrets.a: a secret's handle is a word in capitals, as API_KEY"),
        ('[secrets]\nA = "A_KEY"', "secrets.A: names no source of a secret; write env:NAME, file:PATH, or { command"),
        ('[secrets]\nA = "env:"', "secrets.A: names no source of a secret"),
        ('[secrets]\nA = "env:a b"', "secrets.A: names no source of a secret"),
        ('[secrets]\nA = "file:../a"', "secrets.A: a path must stay inside the manifest's folder"),
        ('[secrets]\nA = "command:pass"', 'secrets.A: write a command as a list: { command = ["program", "arg'),
        ("[secrets]\nA = { command = [] }", "secrets.A: a command is a list of 1 to 64 texts, the program first"),
        ('[secrets]\nA = { command = "pass" }', "secrets.A: a command is a list of 1 to 64 texts"),
        ("[secrets]\nA = 1", "secrets.A: names no source of a secret"),
        ("[memories.N]\nscope='agent'", 'memories.N.modes: is missing; write modes = ["read"]'),
        ("[memories.N]\nmodes=[]", "memories.N.modes: "),
        ("[memories.N]\nmodes=['append']", "memories.N.modes.0: input should be 'read' or 'write'"),
        ("[memories.N]\nmodes=['read']\nscope='world'", "memories.N.scope: input should be 'session', 'episode'"),
        ("[memories.N]\nmodes=['read']\nstore='x'", 'memories.N.store: names no store; write "worker", "sqlite:F'),
        ("[memories.N]\nmodes=['read']\nstore='sqlite:/etc/x'", "memories.N.store: a path is relative to the manif"),
        ("[memories.N]\nmodes=['read']\nstore='postgresql://h/d'", "memories.N.store: names no store"),
        ("[memories.n]\nmodes=['read']", "memories.n: a memory is named as the contract names it"),
        ("tools = 1", "tools: input should be a valid dictionary"),
        ("[tools", "is not TOML (at "),
        ("deadline = 1" + "0" * 5000, "is not TOML"),
        ('a = "' + "x" * 2000 + '"', "a: is longer than 1024 characters"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_key(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path.parent)
    with pytest.raises(ManifestError) as caught:
        read(text, tmp_path)
    assert any(f"{MANIFEST}: {says}" in problem or says in problem for problem in caught.value.problems)
    assert all(problem.startswith(f"{MANIFEST}: ") for problem in caught.value.problems)


def test_every_fault_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        read(TOOL + 'deadline = 0\nrisk = 1\n[secrets]\nA = "x"\n', tmp_path)
    assert len(caught.value.problems) == 3


SECRETS = [
    "sk-ant-REDACTED", "sk_live_4eC39HqLyjWDarjtT1",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "xoxb-123456789012-abc",
    "AKIA" + "IOSFODNN7EXAMPLE", "AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x",
    "-----BEGIN RSA PRIVATE KEY-----", "postgresql://app:hunter2@db/notes", "Bearer abcdefgh12345", "password=hunter2",
    "0123456789abcdef0123456789abcdef", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY1234",
]  # fmt: skip
PLACES = [
    'tools."m.Do".title', 'tools."m.Do".python', 'tools."m.Do".scope', "secrets.A", "memories.N.store", "other",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(secret: str, place: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        read(f'{place} = "{secret}"\n', tmp_path)
    assert f"{place}: looks like a secret's value" in str(caught.value)
    assert secret not in str(caught.value)
    assert secret not in repr(caught.value)


def test_so_is_one_in_a_list_or_in_the_place_of_a_key(tmp_path: Path) -> None:
    for text in (
        f'[secrets]\nA = {{ command = ["curl", "{SECRETS[0]}"] }}',
        f'"{SECRETS[0]}" = 1',
        f'["{SECRETS[0]}"]',
    ):
        with pytest.raises(ManifestError, match="looks like a secret") as caught:
            read(text, tmp_path)
        assert SECRETS[0] not in str(caught.value)
    with pytest.raises(ManifestError) as caught:
        read(f"a = {SECRETS[0]}", tmp_path)
    assert SECRETS[0] not in str(caught.value)


PLAIN = [
    "./sk-learn-tools.py:predict",
    "sk_utils_handlers:fetch",
    "--secret=my-key",
    "./searchAllTheThingsThatThereAre.mjs",
]


@pytest.mark.parametrize("text", [*tomllib.loads(WHOLE)["secrets"].values(), *PLAIN])
def test_what_names_a_source_does_not_look_like_one(text: str) -> None:
    assert not looks_secret(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("s3cret value"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["tools", "secrets", "memories", "m.Do", "A", "python", "risk", "modes"]), inner
            )
        ),
    )
)
def test_no_document_does_more_than_be_refused(given: Any) -> None:
    document = given if isinstance(given, dict) else {"tools": given}
    told = ""
    try:
        assert isinstance(manifest(document), Manifest)
    except ManifestError as error:
        told = str(error)
    assert "s3cret" not in told


def test_a_file_that_is_none_is_told_of(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="is not UTF-8"):
        read_manifest(tmp_path / MANIFEST)
    (tmp_path / MANIFEST).write_bytes(b"#" * 1_048_577)
    with pytest.raises(ManifestError, match="is longer than 1048576 bytes"):
        read_manifest(tmp_path / MANIFEST)
    (tmp_path / MANIFEST).write_bytes(b"a = " + b"[" * 100_000)
    with pytest.raises(ManifestError, match="is not TOML"):
        read_manifest(tmp_path / MANIFEST)
    (tmp_path / MANIFEST).write_bytes(b"\xef\xbb\xbf" + TOOL.encode())
    assert list(read_manifest(tmp_path / MANIFEST).tools) == ["m.Do"]
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ManifestError, match="is no regular file"):
        read_manifest(tmp_path / "pipe.toml")
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "none")


def test_a_module_that_a_link_leads_out_of_the_folder_is_refused_as_a_file_is(tmp_path: Path) -> None:
    folder, out = tmp_path / "tools", tmp_path / "out"
    for each in (folder, out):
        each.mkdir()
    for each in (out / "a.py", out / "__init__.py", folder / "real.py"):
        each.touch()
    (folder / "linked.py").symlink_to(out / "a.py")
    (folder / "package").symlink_to(out)
    (folder / "inside.py").symlink_to("real.py")
    for handler in ("./linked.py:f", "linked:f", "package:f", "package.a:f"):
        with pytest.raises(ManifestError, match="must stay inside"):
            read(f'[tools."m.Do"]\npython = "{handler}"', folder)
    for handler in ("./inside.py:f", "inside:f", "real:f", "json:dumps"):
        read(f'[tools."m.Do"]\npython = "{handler}"', folder)


def test_a_link_that_leads_in_circles_is_a_fault(tmp_path: Path) -> None:
    os.symlink("b.py", tmp_path / "a.py")  # noqa: PTH211
    os.symlink("a.py", tmp_path / "b.py")  # noqa: PTH211
    with pytest.raises(ManifestError, match="python"):
        read('[tools."m.Do"]\npython = "./a.py:f"', tmp_path)


def test_the_short_form_reads_as_the_long_one() -> None:
    grants = {"capabilities": ["network"], "secrets": {"A": "env:A", "B": "s3cret"}, "memory": {"N": ["read"]}}
    found = manifest({"bindings": {"m.Do": {"language": "javascript", "handler": "./a.mjs#f"}}, "grants": grants})
    binding = found.tools["m.Do"]
    assert (binding.handler.language, binding.isolation) == ("javascript", "process")
    assert binding.grants == {"network"}
    assert binding.secrets == {"A": FromEnvironment("A")}
    assert binding.memories["N"].modes == {"read"}
    loose = manifest({"bindings": {"m.Do": {"language": "javascript", "handler": "lib/a.js:f"}}}).tools["m.Do"]
    assert loose.handler.text == "./lib/a.js#f"
    for wrong in (
        {"language": "perl", "handler": "a:b"},
        {"language": "python"},
        {"language": "python", "handler": "x"},
    ):
        with pytest.raises(ManifestError):
            manifest({"bindings": {"m.Do": wrong}})
