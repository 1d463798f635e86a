"""The recorded answers of the original's capability policy, against risks, grants and what is logged here."""

from typing import Any

from broker.grants.constraints import Constraints
from broker.grants.facts import Facts
from broker.grants.grant import PRESETS
from skills import Contract, PackContext, Risk
from skills.host import pack
from tests.vectors import parametrize, rows

CONTRACTS: dict[str, Contract] = {skill.id: skill.contract for skill in pack(PackContext({}, {}))}

ELSEWHERE = {
    "redact",
    "resolve_search",
    "resolve_kb",
    "resolve_mail",
    "resolve_fs",
    "resolve_fs_write",
    "resolve_fs_workspace",
}
"""Kinds that are tests of `skills.host` and `skills.redaction`."""

NOT_OURS = {
    "effectful-override": "the original lets a configuration call an unknown tool read-only; here a contract says it",
}
"""Rows that do not apply, by their kind or id, and why."""


def risk_of(tool: str) -> Risk:
    contract = CONTRACTS.get(tool)
    return contract.risk if contract is not None else Risk()


@parametrize("host-tools.policy", kind="metadata")
def test_the_risk_is_that_of_the_original(row: dict[str, Any]) -> None:
    tool = row["input"]["tool"]
    assert {"name": tool, **risk_of(tool).model_dump()} == row["output"]


@parametrize("host-tools.policy", kind="is_effectful")
def test_what_is_not_read_only_is_effectful(row: dict[str, Any]) -> None:
    ours = not risk_of(row["input"]["tool"]).read_only
    assert (ours is row["output"]) is (row["id"] not in NOT_OURS)


@parametrize("host-tools.policy", kind="grant_key")
def test_a_key_of_machine_and_tool_is_two_constraints(row: dict[str, Any]) -> None:
    machine, tool = row["input"]["machine"], row["input"]["tool"]
    assert f"{machine}:{tool}" == row["output"]
    if not machine:
        return  # nobody has no name
    key = Constraints.of([("subject", machine), ("skill", tool)])
    assert key.fault(Facts(tool, Risk(), machine), 1) is None
    for other in (Facts(tool, Risk(), "other"), Facts("other", Risk(), machine), Facts(tool, Risk())):
        assert key.fault(other, 1) is not None
    # the original's keys are not escaped, so that these two have the same
    assert machine != "a:b" or key.fault(Facts("b:calc", Risk(), "a"), 1) is not None


def test_the_preset_is_of_the_effects_of_all_tools() -> None:
    declared = {(effect.name, effect.scope) for contract in CONTRACTS.values() for effect in contract.effects}
    assert set(PRESETS["host-tools"]) == declared


def test_every_row_is_a_test_or_has_a_reason() -> None:
    tested = {"metadata", "is_effectful", "grant_key", "allowed_plugin"} | ELSEWHERE
    assert {row["kind"] for row in rows("host-tools.policy")} <= tested
