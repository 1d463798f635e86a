import pytest

from broker.grants.grant import parse_grant
from broker.grants.policy import UNRESTRICTED, HostPolicy
from broker.grants.prospects import futility
from skills import PackContext
from skills.host import pack

CONTRACTS = [skill.contract for skill in pack(PackContext({}, {}))]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Workspace.Write=worktree:1", None),
        ("Workspace.Write=worktree:1?path=docs/**&max-bytes=1&operation=create&subject=ada&after=9999999999", None),
        ("Workspace.Read=worktree:1?max-results=200", None),
        ("Workspace.Read=worktree:1?max-results=9", "(list_files, read_file) can fulfil"),
        ("Web.Search=web:1?operation=search", None),
        ("Workspace.Wirte=worktree:1", "is of no use here: no skill that is loaded has this effect"),
        ("Workspace.Write=web:1", "is of no use here: the scope of this effect is worktree"),
        ("Workspace.Write=worktree:1?max-recipients=1", "no skill that needs it (write_file) can fulfil"),
        ("Workspace.Write=worktree:1?skill=write_flie", "no skill that needs it (write_file) can fulfil"),
        ("Workspace.Write=worktree:1?read-only", "no skill that needs it (write_file) can fulfil"),
        ("Mail.Send=mail:1?reversible", "no skill that needs it (send_reply) can fulfil"),
        ("Web.Search=web:1?operation=find", "no skill that needs it (search) can fulfil"),
        ("Web.Search=web:1?path=docs/**", "no skill that needs it (search) can fulfil"),
    ],
)
def test_a_grant_that_is_of_no_use_is_told(text: str, why: str | None) -> None:
    found = futility(parse_grant(text, expires_at=2**40), CONTRACTS, UNRESTRICTED)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("times", "comes"),
    [
        ("after=999&before=1001", True),
        ("after=1999", True),
        ("after=2000", False),
        ("before=1000", False),
        ("before=1001", True),
        ("after=1500&before=1500", False),
    ],
)
def test_a_grant_whose_time_never_comes_is_told(times: str, comes: bool) -> None:
    grant = parse_grant(f"Web.Search=web:1?{times}", expires_at=2**40)
    found = futility(grant, CONTRACTS, UNRESTRICTED, lifetime=(1000, 2000))
    assert found is None if comes else "there is no time" in str(found)
    assert futility(grant, CONTRACTS, UNRESTRICTED) is None


def test_a_grant_of_what_the_host_denies_is_told() -> None:
    grant = parse_grant("Mail.Send=mail:1", expires_at=2**40)
    found = futility(grant, CONTRACTS, HostPolicy(deny_egress=True))
    assert found == "is of no use here: the policy of this host denies it (deny_egress: send_reply)"
    assert futility(grant, CONTRACTS, HostPolicy(deny=("write_file",))) is None
