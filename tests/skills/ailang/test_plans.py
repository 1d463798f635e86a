"""The pure phases of the eight tools keep the laws, whatever they are given."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skills import EffectResult, PackContext, Skill
from skills.ailang import pack
from skills.ailang.builtins_search import finish as finish_builtins
from skills.ailang.check import finish as finish_check
from skills.ailang.cli import OPS
from skills.ailang.run import CAPS, effect_of
from skills.convention import enter
from skills.plan import admit_finish, admit_plan

SKILLS = list(pack(PackContext()))
FINISH = {"ailang-check": finish_check, "builtins-search": finish_builtins}

texts = st.text(max_size=8) | st.sampled_from(["a.ail", "../x", "-x", "/etc/hosts", "a/..", "", ".", "\0"])
scalars = st.none() | st.booleans() | st.integers() | texts | st.sampled_from(CAPS) | st.sampled_from(OPS)
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(texts | st.just("write"), scalars, max_size=3)
names = st.sampled_from([*sorted({name for skill in SKILLS for name in skill.contract.admits}), "limit", "Path"])
arguments = st.dictionaries(names, values, max_size=6) | values


def well_formed(skill: Skill) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of the right types, so that plans with effects are met as well."""
    properties = skill.contract.input_schema["properties"]
    kinds = {"string": texts, "array": st.lists(texts | st.sampled_from(CAPS), max_size=4), "object": st.just({})}
    members = {
        name: st.sampled_from(OPS) if name == "op" else kinds[schema["type"]] for name, schema in properties.items()
    }
    required = {name: members[name] for name in skill.contract.input_schema["required"]}
    optional = {name: strategy for name, strategy in members.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


calls = st.sampled_from(SKILLS).flatmap(lambda skill: st.tuples(st.just(skill), well_formed(skill) | arguments))


@given(calls)
def test_a_plan_keeps_the_laws_and_is_a_function_of_its_arguments(call: tuple[Skill, Any]) -> None:
    skill, given_arguments = call
    before = json.dumps(given_arguments)
    plan = skill.plan(given_arguments)
    assert admit_plan(plan.as_json(), skill.contract.effects)
    assert json.dumps(given_arguments) == before, "it changed its arguments"
    assert skill.plan(json.loads(before)) == plan
    assert plan.refused == (not plan.effects)
    assert plan.finish == (bool(plan.effects) and skill.finish is not None)
    assert all(effect.scope == "worktree" and effect.cost == 1 for effect in plan.effects)


@given(calls)
def test_no_path_that_is_planned_leaves_the_worktree(call: tuple[Skill, Any]) -> None:
    skill, given_arguments = call
    for effect in skill.plan(given_arguments).effects:
        for name in ("path", "package"):
            path = effect.payload.get(name, ".")
            assert path
            assert ".." not in path.split("/")
            assert not path.startswith(("/", "-"))


@given(st.lists(st.sampled_from(CAPS), min_size=1, max_size=5, unique=True))
def test_the_capabilities_choose_the_effect_and_are_sorted(caps: list[str]) -> None:
    skill = next(skill for skill in SKILLS if skill.id == "ailang-run")
    plan = skill.plan({"path": "a.ail", "caps": caps})
    if {"Env", "Net"} <= set(caps):
        assert plan.refused
    else:
        assert plan.effects[0].effect == effect_of(caps)
        assert plan.effects[0].payload["caps"] == sorted(caps)


outputs = st.dictionaries(
    st.sampled_from(["ok", "stdout", "stderr", "refused", "exit_code"]),
    scalars
    | st.sampled_from(
        [
            '{"check":{"passed":true,"error_count":0,"errors":[1,{"code":null}]}}', "Total: 1 builtins\n a [b] c\n",
            '{"check":{"passed":true,"error_count":1e3,"errors":[]}}', "Total: 1 builtins\n a b\n", '{"check":[]}',
            '{"check":{"passed":true,"error_count":' + "9" * 4_400 + ',"errors":[]}}', "[" * 9_999,
            '{"check":{"passed":true,"error_count":0,"errors":[{"code":"\\ud800"}]}}', "Total: -0 builtins",
        ]
    ),
)  # fmt: skip


@given(
    st.sampled_from([skill for skill in SKILLS if skill.finish]),
    values,
    st.sampled_from(["ok", "failed", "denied", "indeterminate", "canceled"]),
    outputs,
)
def test_a_finish_phase_keeps_the_laws(skill: Skill, given_arguments: Any, status: Any, output: Any) -> None:
    assert skill.finish is not None
    result = EffectResult("e1", skill.contract.effects[0].name, status, "sha256:0", output if status == "ok" else None)
    answer = skill.finish(given_arguments, result)
    assert admit_finish(dict(answer))
    assert answer == skill.finish(given_arguments, result)
    if status != "ok":
        assert answer["refused"] == f"the {result.effect} effect ended {status}"


@given(st.sampled_from(SKILLS), st.text(max_size=40) | values.map(json.dumps), st.sampled_from(["plan", "finish"]))
def test_any_raw_input_is_answered(skill: Skill, text: str, phase: str) -> None:
    for given_text in (text, f'{{"phase":"{phase}","args":{text},"results":{text}}}'):
        output = enter(skill.id, skill.plan, given_text, FINISH.get(skill.id))
        json.dumps(output, ensure_ascii=False).encode()
