"""What is missing is told before any handler is loaded; what is granted is no more than is asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import Contract, Effect
from skills.tb import Bound, FromEnvironment, Refused, Unpublishable, compile_source, contract_of, manifest, satisfy
from skills.tb.publication import title_of

from .page import ADVANCED, BOTH, SIMPLE, tool

ID = "examples.tool_advanced.SummarizeWithContext"
AIR = compile_source(ADVANCED)


def asked(**changes: Any) -> Bound | Refused:
    binding = {"python": "app:summarize", "grants": ["network", "secret_read", "memory_read"]} | changes.pop("tool", {})
    document = {
        "tools": {ID: binding},
        "secrets": {"LLM_API_KEY": "env:LLM_API_KEY", "OTHER": "env:OTHER"},
        "memories": {"ProjectKnowledge": {"modes": ["read", "write"]}, "Other": {"modes": ["write"]}},
    }
    return satisfy(AIR, manifest(document | changes), ID)


def test_what_is_granted_is_what_is_asked_for() -> None:
    bound = asked(tool={"grants": ["network", "secret_read", "memory_read", "memory_write", "files"]})
    assert isinstance(bound, Bound)
    assert bound.capabilities == {"memory_read", "network", "secret_read"}
    assert bound.secrets == {"LLM_API_KEY": FromEnvironment("LLM_API_KEY")}
    assert {name: grant.modes for name, grant in bound.memories.items()} == {"ProjectKnowledge": {"read"}}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"tool": {"grants": ["network"]}}, ["the manifest does not grant memory_read, secret_read"]),
        ({"secrets": {}}, ["the manifest binds no source for secret LLM_API_KEY"]),
        ({"memories": {}}, ["the manifest grants no memory access ProjectKnowledge read"]),
        ({"memories": {"ProjectKnowledge": {"modes": ["write"]}}},
         ["the manifest grants no memory access ProjectKnowledge read"]),
        ({"tool": {"grants": []}, "secrets": {}, "memories": {}},
         ["the manifest does not grant memory_read, network, secret_read",
          "the manifest binds no source for secret LLM_API_KEY",
          "the manifest grants no memory access ProjectKnowledge read"]),
    ],
)  # fmt: skip
def test_everything_that_is_missing_is_told_in_its_order(changes: dict[str, Any], missing: list[str]) -> None:
    refused = asked(**changes)
    assert isinstance(refused, Refused)
    assert refused.bound
    assert list(refused.missing) == [f"tool {ID} is refused: {each}" for each in missing]
    assert str(refused) == refused.missing[0]


def test_memories_in_two_stores_are_refused() -> None:
    air = compile_source(tool(*BOTH, "uses memory A read", "uses memory B read") + "memory A\nmemory B\n")
    stores = {"A": {"modes": ["read"]}, "B": {"modes": ["read"], "store": "sqlite:b.db"}}
    binding: dict[str, Any] = {"python": "a:b", "grants": ["memory_read"], "memories": stores}
    refused = satisfy(air, manifest({"tools": {"m.Do": binding}}), "m.Do")
    assert str(refused) == (
        "tool m.Do is refused: its memories must be kept in one store, or a call could change half of them"
    )


def test_no_binding_and_no_tool_come_first() -> None:
    unbound = satisfy(AIR, manifest({}), ID)
    assert isinstance(unbound, Refused)
    assert (unbound.bound, str(unbound)) == (False, f"tool {ID} has no handler binding in the manifest")
    unknown = satisfy(AIR, manifest({"tools": {"m.Do": {"python": "a:b"}}}), "m.Do")
    assert str(unknown) == "unknown tool m.Do"


@given(
    st.sets(st.sampled_from(["network", "secret_read", "memory_read", "memory_write", "files"])),
    st.booleans(),
    st.booleans(),
)
def test_a_tool_is_bound_only_with_all_that_it_requires(grants: set[str], secret: bool, memory: bool) -> None:
    outcome = asked(
        tool={"grants": sorted(grants)},
        secrets={"LLM_API_KEY": "env:K"} if secret else {},
        memories={"ProjectKnowledge": {"modes": ["read"]}} if memory else {},
    )
    enough = {"network", "secret_read", "memory_read"} <= grants
    assert isinstance(outcome, Bound) == (enough and secret and memory)


def test_a_word_that_nobody_knows_can_be_granted() -> None:
    air = compile_source(tool(*BOTH, "requires netwrok"))
    binding: dict[str, Any] = {"python": "a:b", "grants": ["network"]}
    assert isinstance(satisfy(air, manifest({"tools": {"m.Do": binding}}), "m.Do"), Refused)
    assert isinstance(satisfy(air, manifest({"tools": {"m.Do": {**binding, "grants": ["netwrok"]}}}), "m.Do"), Bound)


def published(source: str, tool_id: str, **binding: Any) -> Contract:
    document = {"tools": {tool_id: {"python": "a:b", "grants": ["network"], **binding}}}
    bound = satisfy(compile_source(source), manifest(document), tool_id)
    assert isinstance(bound, Bound)
    return contract_of(bound)


def test_the_published_contract_is_that_of_the_air() -> None:
    contract = published(SIMPLE, "examples.tool_simple.SearchDatasets", deadline=3, repeatable=True, scope="data")
    (only,) = compile_source(SIMPLE).tools
    assert (contract.id, contract.title) == (only.id, "Search datasets")
    assert (contract.input_schema, contract.output_schema) == (only.input, only.output)
    assert contract.admits == ("query",)
    assert contract.access == Effect(name=only.id, scope="data", cost=0)
    assert contract.effects == (Effect(name=only.id, scope="data"),)
    assert (contract.deadline, contract.repeatable, contract.worktree) == (3, True, False)
    assert contract.risk.external_egress
    assert contract.requirements is not None
    assert contract.requirements.capabilities == ("network",)
    assert contract.description == "Takes DatasetSearchRequest, gives DatasetSearchResult."


def test_handles_are_published_and_sources_are_not() -> None:
    bound = asked()
    assert isinstance(bound, Bound)
    contract = contract_of(bound)
    assert contract.requirements is not None
    assert contract.requirements.secrets == ("LLM_API_KEY",)
    assert contract.requirements.memory == ("ProjectKnowledge read",)
    assert "env:" not in contract.model_dump_json()


def test_the_documentation_is_the_description() -> None:
    source = tool('says "Does it."', *BOTH, 'says "Twice."')
    assert published(source, "m.Do", title="Done").description == "Does it.\nTwice."
    assert published(source, "m.Do", title="Done").title == "Done"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Do", "Do"),
        ("SearchDatasets", "Search datasets"),
        ("ParseHTMLPage", "Parse HTML page"),
        ("V2Of3", "V 2 of 3"),
        ("A", "A"),
    ],
)
def test_a_title_is_made_of_the_name(name: str, title: str) -> None:
    (only,) = compile_source(f"module m\ntool {name}\n  takes x as Text\n  gives Text\n").tools
    assert title_of(only) == title


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "type A\n  a is A\ntool T\n  takes x as A\n  gives Text\n",
            "takes A, which needs another of its kind without end",
        ),
        ("type A\n  b is B\ntype B\n  a is A\ntool T\n  takes x as Text\n  gives B\n", "gives B, which needs another"),
        ("type A\n  world is Text\ntool T\n  takes x as A\n  gives A\n", "gives a field `world`, which is taken"),
    ],
)
def test_what_no_skill_can_keep_is_not_published(source: str, says: str) -> None:
    with pytest.raises(Unpublishable, match=says):
        published("module m\n" + source, "m.T")


def test_a_type_that_ends_somewhere_is() -> None:
    source = "module m\ntype A\n  a is optional A\n  b is List of A\ntool T\n  takes x as A\n  gives A\n"
    assert published(source, "m.T").input_schema["$defs"].keys() == {"A"}
