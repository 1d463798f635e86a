import posixpath
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from broker.grants.constraints import MAX_TEXT, NAMES, UNCONSTRAINED, ConstraintError, Constraints
from broker.grants.facts import Facts
from broker.grants.grant import Grant, GrantError, decide, grants_from_table, parse_grant, sees
from skills import Contract, Directory, Effect, PlannedEffect, Risk

NOW = 1_900_000_000
SAFE = Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="normal", idempotent=True)
WRITE = Facts("write_file", SAFE, "ada", "create", ("docs/a.md",), 10, 1, 5)
EFFECT = Effect(name="E", scope="s")

names = st.text(st.sampled_from("abd.ä *?!&%=:é"), min_size=1, max_size=6).filter(lambda t: t.strip("!"))
segments = st.text(st.sampled_from("abd*? &%ä"), min_size=1, max_size=4).filter(lambda t: "**" not in t or t == "**")
values = st.one_of(
    st.tuples(st.sampled_from(["subject", "skill", "operation"]), names),
    st.tuples(st.just("path"), st.lists(segments, min_size=1, max_size=3).map("/".join)),
    st.tuples(st.just("path"), st.lists(segments, min_size=1, max_size=3).map(lambda s: "!" + "/".join(s))),
    st.tuples(st.sampled_from(["max-bytes", "max-recipients", "max-results"]), st.integers(0, 12).map(str)),
    st.tuples(st.sampled_from(["after", "before"]), st.integers(NOW - 5, NOW + 5).map(str)),
    st.tuples(st.sampled_from(["read-only", "reversible", "no-egress"]), st.just("true")),
)


def made(pairs: list[tuple[str, str]]) -> Constraints:
    try:
        return Constraints.of(pairs)
    except ConstraintError:
        assume(False)
        raise


constraint_sets = st.lists(values, max_size=5).map(made)
facts = st.builds(
    Facts,
    st.sampled_from(["a", "b.d", "ä"]),
    st.builds(Risk, read_only=st.booleans(), irreversible=st.booleans(), external_egress=st.booleans()),
    st.sampled_from([None, "a", "d"]),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.lists(st.sampled_from(["a", "a/b", "d/a b", "ä", ""]), min_size=1, max_size=2).map(tuple),
    *(st.none() | st.integers(0, 15) for _ in range(3)),
)
grants = st.builds(
    Grant, st.sampled_from("EF"), st.sampled_from("st"), st.integers(0, 2), st.sampled_from([NOW, NOW + 9]),
    constraint_sets,
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "path=docs/**",
        "path=docs/*.md&path=!docs/secret.md",
        "subject=ad?&skill=write_*&operation=create",
        "max-bytes=10&max-recipients=1&max-results=5",
        "after=1899999999&before=1900000001",
        "read-only&reversible=true&no-egress",
        "skill=!send_reply",
    ],
)
def test_what_holds_passes(text: str) -> None:
    assert Constraints.parse(text).fault(WRITE, NOW) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("path=src/**", 'path=src/**: "docs/a.md" is outside'),
        ("path=docs/**&path=!docs/a.*", 'path=docs/**&path=!docs/a.*: "docs/a.md" is outside'),
        ("path=docs/*/*", 'path=docs/*/*: "docs/a.md" is outside'),
        ("path=*", 'path=*: "docs/a.md" is outside'),
        ("path=DOCS/**", 'path=DOCS/**: "docs/a.md" is outside'),
        ("path=!DOCS/**", 'path=!DOCS/**: "docs/a.md" is outside'),
        ("subject=bob", 'subject=bob: it is "ada"'),
        ("subject=Ada", 'subject=Ada: it is "ada"'),
        ("skill=send_reply&skill=read_*", 'skill=send_reply&skill=read_*: it is "write_file"'),
        ("operation=overwrite", 'operation=overwrite: it is "create"'),
        ("max-bytes=9", "max-bytes=9: the call has 10"),
        ("max-recipients=0", "max-recipients=0: the call has 1"),
        ("max-results=4", "max-results=4: the call has 5"),
        ("after=1900000001", "after=2030-03-17T17:46:41Z: the time has not come"),
        ("before=1900000000", "before=2030-03-17T17:46:40Z: the time is over"),
    ],
)
def test_what_does_not_hold_is_named(text: str, why: str) -> None:
    assert Constraints.parse(text).fault(WRITE, NOW) == why


@pytest.mark.parametrize("flag", ["read-only", "reversible", "no-egress"])
def test_the_risk_of_an_unknown_skill_holds_nothing(flag: str) -> None:
    constraints = Constraints.parse(flag)
    assert constraints.fault(WRITE, NOW) is None
    assert constraints.fault(Facts("other", Risk()), NOW) == f"{flag}=true: other is not so by its contract"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("skill", "after", "before")])
def test_what_nobody_knows_does_not_hold(name: str) -> None:
    value = "0" if name.startswith("max-") else "**" if name == "path" else "*"
    flag = name in ("read-only", "reversible", "no-egress")
    constraints = Constraints.of([(name, "true" if flag else value)])
    assert constraints.fault(Facts("other", Risk()), NOW) is not None
    assert constraints.fault(None, NOW) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no constraint follows the ?"),
        ("pth=docs/**", 'there is no constraint "pth"; there are subject,'),
        ("path=docs/**&", 'there is no constraint ""'),
        ("path", "path needs a value"),
        ("path=", "path must not be empty"),
        ("path=!", "path must not be empty"),
        ("path=/etc/**", "must be relative"),
        ("path=a/../b", "must be relative"),
        ("path=./b", "must be relative"),
        ("path=b/", "must be relative"),
        ("path=a\\b", "must be relative"),
        ("path=docs**", "** stands alone"),
        ("path=a%0Ab", "can't be printed"),
        ("path=50%", "write a % as %25"),
        ("path=%ff", "not UTF-8"),
        ("max-bytes", "max-bytes needs a value"),
        ("max-bytes=-1", "must be a whole number"),
        ("max-bytes=1e3", "must be a whole number"),
        ("max-bytes=٣", "must be a whole number"),
        ("max-bytes=" + "9" * 30, "must be a whole number"),
        ("max-bytes=" + "0" * 30 + "9" * 30, "must be a whole number"),
        ("before=1900000000000", "must be a time"),  # milliseconds
        ("max-bytes=1&max-bytes=2", "max-bytes is given twice"),
        ("before=tomorrow", "must be a time"),
        ("before=2030-01-31T12:00:00", "must be a time"),
        ("before=2030-01-31T12:00:00.5Z", "whole second"),
        ("for=1h", "say until when"),
        ("read-only=false", "no value but true"),
        ("skill=" + "a" * MAX_TEXT, "the limit is"),
    ],
)
def test_what_is_no_constraint_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraints.parse(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("90", 90), ("1d1s", 86_401)])
def test_for_counts_from_now(text: str, seconds: int) -> None:
    constraints = Constraints.parse(f"for={text}", now=NOW)
    assert constraints.fault(WRITE, NOW + seconds - 1) is None
    assert constraints.fault(WRITE, NOW + seconds) is not None
    with pytest.raises(ConstraintError, match="given twice"):
        Constraints.parse(f"for={text}&before={NOW}", now=NOW)


@pytest.mark.parametrize("text", ["", "1y", "m", "-1m", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConstraintError, match="for must be a duration"):
        Constraints.parse(f"for={text}", now=NOW)


@pytest.mark.parametrize(
    ("text", "scope", "constraints"),
    [
        ("E=s:1?path=a:5/**", "s", "path=a:5/**"),
        ("E=s?x:1?max-bytes=1", "s?x", "max-bytes=1"),
        ("E=s?x:1", "s?x", ""),
        ("E=a:b/c:1?path=c?", "a:b/c", "path=c?"),
    ],
)
def test_a_question_mark_begins_constraints_only_behind_a_budget(text: str, scope: str, constraints: str) -> None:
    grant = parse_grant(text, expires_at=1)
    assert (grant.scope, str(grant.constraints)) == (scope, constraints)
    assert str(grant) == text


@pytest.mark.parametrize("text", ["E=s:1?", "E=s:1?x", "E=s:1?path", "E=s:x?path=a", "E=s:-1?path=a"])
def test_a_grant_with_a_wrong_constraint_is_none(text: str) -> None:
    with pytest.raises(GrantError, match="invalid --grant"):
        parse_grant(text, expires_at=1)


def test_grants_of_a_table() -> None:
    only = {"path": ["docs/**", "!docs/x"], "max-bytes": 5, "reversible": True, "for": "1m"}
    document = {
        "grants": [
            {"effect": "E", "scope": "s", "budget": 2, "only": only},
            {"effect": "F", "scope": "t:1?", "budget": 0},
        ]
    }
    first, second = grants_from_table(document, expires_at=9, now=NOW)
    assert str(first) == ("E=s:2?path=docs/**&path=!docs/x&max-bytes=5&before=2030-03-17T17:47:40Z&reversible")
    assert (second.scope, second.constraints) == ("t:1?", UNCONSTRAINED)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "want a list `grants`"),
        ({"grants": []}, "want a list `grants`"),
        ({"grants": [{}], "x": 1}, "want a list `grants`"),
        ({"grants": ["E=s:1"]}, "grant 1 must be a table"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "path": "a"}]}, "grant 1: unknown key 'path'"),
        ({"grants": [{"effect": "", "scope": "s", "budget": 1}]}, "non-empty texts"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": True}]}, "budget must be an integer"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": -1}]}, "budget must be an integer"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "only": []}]}, "only must be a table"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "only": {"pth": "a"}}]}, "there is no constraint"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "only": {"path": []}}]}, "is an empty list"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "only": {"max-bytes": 1.5}}]}, "must be a text"),
        ({"grants": [{"effect": "E", "scope": "s", "budget": 1, "only": {"reversible": False}}]}, "no value but true"),
    ],
)
def test_what_is_no_table_of_grants_is_refused(document: dict[str, object], why: str) -> None:
    with pytest.raises(GrantError) as caught:
        grants_from_table(document, expires_at=9, now=NOW)
    assert why in str(caught.value)


# the law


def test_a_constraint_denies_before_the_budget_and_after_the_expiry() -> None:
    tight = Constraints.parse("path=src/**")
    for grant, label in (
        (Grant("E", "s", 0, NOW + 1, tight), "denied:constraint"),
        (Grant("E", "s", 0, NOW, tight), "denied:expired"),
        (Grant("E", "s", 0, NOW + 1), "denied:budget"),
        (Grant("E", "s", 0, NOW + 1, Constraints.parse("path=docs/**")), "denied:budget"),
    ):
        assert decide([grant], EFFECT, NOW, None, WRITE).label == label
    decision = decide([Grant("E", "t", 1, NOW + 1), Grant("E", "s", 3, NOW + 1, tight)], EFFECT, NOW, None, WRITE)
    assert (decision.grant, decision.budget_before, decision.narrowing) == (1, 3, "path=src/**")
    assert decision.reason == 'path=src/**: "docs/a.md" is outside'


def test_the_first_grant_whose_constraints_hold_decides() -> None:
    held = [
        Grant("E", "s", 5, NOW + 1, Constraints.parse("path=src/**")),
        Grant("E", "s", 3, NOW + 1, Constraints.parse("path=docs/**")),
        Grant("E", "s", 9, NOW + 1),
    ]
    decision = decide(held, EFFECT, NOW, None, WRITE)
    assert (decision.label, decision.grant, decision.narrowing) == ("allowed:2", 1, "path=docs/**")


def test_a_narrowed_grant_shows_what_it_may_let_run() -> None:
    access = Effect(name="E", scope="s", cost=0)
    for text, seen in {
        "skill=write_file": True,
        "skill=read_file": False,
        "subject=ada": True,
        "subject=bob": False,
        "after=1900000001": False,
        "before=1900000000": False,
        "reversible": True,
        "path=nowhere/**&max-bytes=0&operation=no&max-results=0&max-recipients=0": True,
    }.items():
        held = [Grant("E", "s", 0, NOW + 1, Constraints.parse(text))]
        assert sees(held, access, NOW, WRITE) is seen, text
    held = [Grant("E", "s", 0, NOW + 1, Constraints.parse("subject=bob"))]
    assert sees(held, access, NOW, Facts("write_file", SAFE))  # who asks is not known


# properties


@given(st.lists(grants, max_size=3), facts)
def test_a_constraint_never_allows_more(held: list[Grant], known: Facts) -> None:
    bare = [Grant(g.effect, g.scope, g.budget, g.expires_at) for g in held]
    if decide(held, EFFECT, NOW, None, known).allowed:
        assert decide(bare, EFFECT, NOW).allowed
    if sees(held, EFFECT, NOW, known):
        assert sees(bare, EFFECT, NOW)
    else:
        assert not decide(held, EFFECT, NOW, None, known).allowed


@given(grants, values, facts)
def test_one_more_constraint_never_allows_more(grant: Grant, more: tuple[str, str], known: Facts) -> None:
    assume(more[0] != "path" or more[1].startswith("!") or not any(n == "path" for n, _ in grant.constraints.given))
    assume(more[0] not in ("subject", "skill", "operation") or more[0] not in dict(grant.constraints.given))
    narrower = Grant(grant.effect, grant.scope, grant.budget, grant.expires_at, made([*grant.constraints.given, more]))
    if decide([narrower], EFFECT, NOW, None, known).allowed:
        assert decide([grant], EFFECT, NOW, None, known).allowed


@given(st.lists(grants, max_size=3), facts | st.none())
def test_grants_without_constraints_decide_as_they_did(held: list[Grant], known: Facts | None) -> None:
    bare = [Grant(g.effect, g.scope, g.budget, g.expires_at) for g in held]
    decision = decide(bare, EFFECT, NOW, None, known)
    assert decision == decide(bare, EFFECT, NOW)
    assert (decision.label != "denied:constraint", decision.reason, decision.narrowing) == (True, "", "")


@given(grants)
def test_a_grant_is_read_as_it_is_written(grant: Grant) -> None:
    assert parse_grant(str(grant), expires_at=grant.expires_at) == grant


@given(st.text() | st.lists(values, min_size=1).map(lambda pairs: "&".join(f"{n}={v}" for n, v in pairs)))
def test_any_text_is_constraints_or_an_error(text: str) -> None:
    try:
        constraints = Constraints.parse(text)
    except ConstraintError:
        return
    assert constraints
    assert Constraints.parse(str(constraints)) == constraints


@given(
    st.lists(
        st.sampled_from(["docs", "src", "..", ".", "", "a", "DOCS", "docs ", "ｄocs", "do\u200bcs", "docs\\..", "C:"]),
        max_size=6,
    ).map("/".join)
)
def test_no_spelling_leads_out_of_a_pattern(path: str) -> None:
    known = Facts.of(measured(path="/path"), planned({"path": path}))
    if Constraints.parse("path=docs/**").fault(known, NOW) is None:
        assert (posixpath.normpath(path) + "/").startswith("docs/")
        assert "\\" not in path


odd = st.text(st.sampled_from("ab.* ?\ufb01:"), min_size=1, max_size=4)


@given(
    st.lists(odd.filter(lambda t: "**" not in t), min_size=1, max_size=3).map("/".join),
    st.lists(odd, min_size=1, max_size=3).map("/".join),
)
@example("docs/*/legal.md", "docs/ /legal.md")
@example("?le.md", "\ufb01le.md")
@example("*.?", "a..")
def test_no_path_is_both_in_a_pattern_and_not(pattern: str, path: str) -> None:
    known = Facts.of(measured(path="/path"), planned({"path": path}))
    inside, outside = made([("path", pattern)]), made([("path", f"!{pattern}")])
    assert inside.fault(known, NOW) is not None or outside.fault(known, NOW) is not None


@given(st.data())
def test_no_spelling_leads_into_what_is_denied(data: st.DataObject) -> None:
    spelled = "".join(
        data.draw(st.sampled_from([c, c.upper(), chr(ord(c) + 0xFEE0), f"{c}\u00ad", f"{c}\ufe0f"])) for c in "secret"
    )
    path = data.draw(st.sampled_from(["{}/a", "./{}/a", "{}//a", "{}./a", "{} /a", "{}", "x/../{}/a"])).format(spelled)
    assert (
        unicodedata.normalize("NFKC", path).replace("\u00ad", "").replace("\ufe0f", "").casefold().find("secret") >= 0
    )
    known = Facts.of(measured(path="/path"), planned({"path": path}))
    assert Constraints.parse("path=!secret/**").fault(known, NOW) is not None


def test_hard_patterns_are_compared_in_time() -> None:
    began = time.process_time()
    known = Facts("a" * 4000, Risk(), None, None, ("/".join("a" * 2000),))
    assert Constraints.parse(f"skill={'*a' * 50}b").fault(known, NOW) is not None
    assert Constraints.parse(f"path={'**/a/' * 50}b").fault(known, NOW) is not None
    assert time.process_time() - began < 5


# what is known of a call


def measured(**measures: str) -> Contract:
    declared = {"id": "x", "title": "x", "description": "x", "access": EFFECT, "effects": (EFFECT,)}
    schemas = {name: {"type": "object"} for name in ("input_schema", "output_schema")}
    return Contract.model_validate({**declared, **schemas, "measures": measures})


def planned(payload: dict[str, object]) -> PlannedEffect:
    return PlannedEffect("e1", "E", "s", 1, payload)


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("docs//./a", ("docs/a",)),
        ("docs/a/", ("docs/a",)),
        ("", ("",)),
        (["a", "./b"], ("a", "b")),
        ([], None),
        (["a", 1], None),
        (1, None),
        (None, None),
        ("/a", None),
        ("a/..", None),
        ("a\\b", None),
        ("C:a", None),
        ("a\nb", None),
        ("a\u200bb", None),
        ("a/" * 3000, None),
    ],
)
def test_paths_are_normalised_or_not_known(path: object, paths: tuple[str, ...] | None) -> None:
    assert Facts.of(measured(path="/path"), planned({"path": path})).paths == paths


def test_quantities_are_measured_where_the_contract_says() -> None:
    contract = measured(operation="/op", bytes="/a~1b/c~0d", recipients="/to", results="7")
    known = Facts.of(contract, planned({"op": "read", "a/b": {"c~d": "äb"}, "to": "a@x, b@x;c@x"}), subject="ada")
    assert known == Facts("x", Risk(), "ada", "read", None, 3, 3, 7)
    nothing = Facts.of(contract, planned({"op": 1, "a/b": "x", "to": {}}))
    assert nothing == Facts("x", Risk(), None, None, None, None, None, 7)
    counted = Facts.of(
        measured(bytes="/b", recipients="/r", results="/s"), planned({"b": 5, "r": ["a", "b"], "s": [1]})
    )
    assert (counted.bytes, counted.recipients, counted.results) == (5, 2, 1)
    odd = Facts.of(measured(bytes="/b", recipients="/r", results="/s"), planned({"b": [1], "r": True, "s": -1}))
    assert (odd.bytes, odd.recipients, odd.results) == (None, None, None)


@pytest.mark.parametrize(
    "measures", [{"path": "docs"}, {"bytes": "many"}, {"bytes": "/~2"}, {"operation": ""}, {"sizes": "/x"}]
)
def test_what_measures_nothing_is_no_contract(measures: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="measures"):
        measured(**measures)


def test_links_are_followed(tmp_path: Path) -> None:
    for folder in ("docs", "src"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "out").symlink_to("../src")
    (tmp_path / "docs" / "away").symlink_to("/etc")
    constraints = Constraints.parse("path=docs/**")
    with Directory.open(tmp_path) as worktree:
        for path, passes in {"docs/a": True, "docs/new/a": True, "docs/out/a": False, "docs/away/a": False}.items():
            known = Facts.of(measured(path="/path"), planned({"path": path}), worktree=worktree)
            assert (constraints.fault(known, NOW) is None) is passes, path


@pytest.mark.parametrize(("to", "count"), [("customer", 1), ("a@x, b@y;", 2), ("a@x b@y\nc@z", 3), ("a@x\uff0cb@y", 2)])
def test_every_address_of_a_text_is_a_recipient(to: str, count: int) -> None:
    assert Facts.of(measured(recipients="/r"), planned({"r": to})).recipients == count
