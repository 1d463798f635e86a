import hashlib
import tomllib

import pytest

from skills import DENY_WRITE, Protection
from skills.ailang.policy import Policy, PolicyError, deny_write

PAIRS = ("127.0.0.1:7655", "[::1]:80")
LIMITS = """max_source_bytes = 1048576
max_module_graph_bytes = 16777216
max_output_bytes = 8388608
max_fs_transfer_bytes = 8388608
"""


def short(policy: Policy) -> str:
    """The text without what is denied to every policy."""
    denied = ", ".join(f'"{pattern}"' for pattern in deny_write())
    assert denied in policy.text
    return policy.text.replace(denied, "DENIED")


def test_the_base_policy_is_exactly_these_lines() -> None:
    policy = Policy("/srv/ep1")
    assert short(policy) == (
        'security_mode = "restricted"\nallowed_caps = ["IO", "FS"]\nfs_sandbox = "/srv/ep1"\ntimeout_ms = 8000\n'
        'fs_deny_write = [DENIED]\nentry = "main"\n\n[budgets]\nFS = 1000\n'
    )
    assert (policy.is_base, policy.name, policy.security_mode) == (True, ".toml", "restricted")
    assert policy.digest == hashlib.sha256(policy.text.encode()).hexdigest()


def test_the_deny_list_has_every_spelling() -> None:
    denied = deny_write()
    assert len(denied) == len(set(denied)) == 64 + 4 + 64 + 64 + 2
    assert denied[:4] == [".github/**", ".githuB/**", ".githUb/**", ".githUB/**"]
    assert denied[64:69] == [".pi/**", ".pI/**", ".Pi/**", ".PI/**", ".claude/**"]
    assert denied[-2:] == list(DENY_WRITE[-2:])
    for pattern in denied:  # what the binary keeps read-only, the native handlers keep as well
        name = pattern.removesuffix("/**")
        if not name.startswith(".["):
            with pytest.raises(Exception, match="is read-only"):
                Protection().check(f"{name}/x")


@pytest.mark.parametrize(
    ("caps", "admitted", "budget", "name"),
    [
        ({"IO"}, ["FS", "IO"], 0, ".run-IO.toml"),
        ({"FS"}, ["FS"], 1000, ".run-FS.toml"),
        ({"Declassify", "IO"}, ["Declassify", "FS", "IO"], 0, ".run-Declassify.IO.toml"),
        ({"Declassify", "FS", "IO"}, ["Declassify", "FS", "IO"], 1000, ".run-Declassify.FS.IO.toml"),
    ],
)
def test_a_variant_names_its_capabilities(caps: set[str], admitted: list[str], budget: int, name: str) -> None:
    policy = Policy("/r", frozenset(caps), PAIRS, net_allow_http=True)
    read = tomllib.loads(policy.text)
    assert (read["allowed_caps"], read["budgets"]) == (admitted, {"FS": budget})
    assert (policy.name, read["security_mode"]) == (name, "restricted")
    assert "net_allow" not in read


def test_a_net_run_reaches_the_operators_pairs_alone() -> None:
    policy = Policy("/r", frozenset({"IO", "Net"}), PAIRS)
    assert '\nentry = "main"\nnet_allow = ["127.0.0.1:7655", "[::1]:80"]\n\n[budgets]\nFS = 0\n' in short(policy)
    http = Policy("/r", frozenset({"IO", "Net"}), PAIRS, net_allow_http=True)
    assert short(http) == short(policy).replace('80"]\n', '80"]\nnet_allow_http = true\n')


def test_an_env_run_is_trusted_with_the_host_and_keeps_git_read_only_by_name() -> None:
    text = short(Policy("/r", frozenset({"Env", "FS", "IO"})))
    assert text.startswith('security_mode = "trusted_host"\nallowed_caps = ["Env", "FS", "IO"]\n')
    assert 'fs_deny_write = [".git/**", DENIED]\nentry = "main"\n' + LIMITS + "\n[budgets]\nFS = 1000\n" in text


@pytest.mark.parametrize(
    "root",
    ["r", "", "/r/", "/r/../x", "/r//x", "//r", '/r"', "/r\\x", "/r\n", "/r\ufffd", "/r\u200b", "/r\x00", "/./r"],
)
def test_a_root_that_cannot_be_written_is_refused(root: str) -> None:
    with pytest.raises(PolicyError, match="absolute, clean and printable"):
        _ = Policy(root).text


@pytest.mark.parametrize("root", ["/", "/r", "/srv/é x/ep-1"])
def test_a_root_that_can_be_written_is_read_back(root: str) -> None:
    assert tomllib.loads(Policy(root).text)["fs_sandbox"] == root
