"""Grants with constraints, and the policy of the host, from the request to the log, over the bus."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

import bus
from broker.agent.agent import SCHEMAS, SkillAgent
from broker.chain.provenance import Provenance
from broker.grants.grant import parse_grant
from broker.grants.policy import UNRESTRICTED, HostPolicy
from broker.ledger.ledger import Ledger
from broker.ledger.operations import Receipt
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, Context, Contract, Done, Outcome, PackContext, Plan, PlannedEffect, Skill
from skills.host import pack

WRITE, READ, SEND = "Workspace.Write=worktree:9", "Workspace.Read=worktree:9", "Mail.Send=mail:9"
NUMBERS = count(1)


class Desk:
    """A session at an agent with the host tools."""

    def __init__(self, client: bus.Client, ledger: Ledger, worktree: Path, pipeline: Pipeline) -> None:
        self.client, self.ledger, self.worktree, self.pipeline = client, ledger, worktree, pipeline

    async def call(self, skill: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
        """The outcome of a call, its reason, and its output."""
        message = {
            "messageId": f"m{next(NUMBERS)}", "role": "ROLE_USER", "parts": [{"data": arguments}],
            "metadata": {"skill_id": skill},
        }  # fmt: skip
        task = (await self.client.send("desk", message))["task"]
        (artifact,) = task["artifacts"]
        said = task["status"].get("message", {}).get("parts", [{"text": ""}])[0]["text"]
        part = artifact["parts"][0]
        return artifact["metadata"]["outcome"], said, part.get("data", part)

    async def seen(self) -> set[str]:
        card = await self.client.request("desk", "GetExtendedAgentCard", {})
        return {skill["id"] for skill in card["skills"]}

    async def spent(self) -> int:
        return sum((await self.ledger.spent("ep1")).values())

    async def record(self) -> dict[str, Any]:
        """The record of the newest effect."""
        (entry,) = await self.ledger.entries(episode="ep1", last=1)
        held = await Provenance(self.ledger)._held([entry])
        record = held.json(orjson.loads(entry.encoded)["transitionRef"])
        return dict(held.json(record["effects"][0]))


Open = Callable[..., Any]


@pytest.fixture
def open_desk(ledger: Ledger, tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_desk(
        *grants: str, policy: HostPolicy = UNRESTRICTED, user: str = "guest", more: tuple[Skill, ...] = ()
    ) -> AsyncIterator[Desk]:
        catalog = Catalog()
        assert catalog.add(
            "host", pack(PackContext({}, {"SKILLBUS_MAIL_BACKEND": "fake", "SKILLBUS_SEARCH_BACKEND": "fake"}))
        )
        assert catalog.add("more", more)
        worktrees = Worktrees(tmp_path / "worktrees")
        if not worktrees.path("ep1").exists():
            await worktrees.create("ep1")
        held = [parse_grant(text, expires_at=2**40, now=int(time.time())) for text in grants]
        credential, session = mint("ep1", held, ttl=600)
        await ledger.add_session(session)
        assert (await ledger.session(session.id)).grants == session.grants  # type: ignore[union-attr]
        pipeline = Pipeline(catalog, ledger, worktrees, owner="w", version="1", policy=policy)
        agent = SkillAgent("desk", pipeline, ledger, version="1")
        broker = bus.MemoryBroker(user=user)
        async with (
            await bus.serve(broker, "desk", agent),
            await bus.connect(broker, authorize=credential.authorize) as client,
        ):
            yield Desk(client, ledger, worktrees.path("ep1"), pipeline)
        await pipeline.close()

    return open_desk


async def test_a_path_narrows_what_may_be_written(open_desk: Open) -> None:
    async with open_desk(f"{WRITE}?path=docs/**&path=!docs/legal/**") as desk:
        outcome, _, output = await desk.call("write_file", path="./docs//a.md", content="x")
        assert (outcome, output["written"]) == ("succeeded", True)
        assert (await desk.record())["narrowing"] == "path=docs/**&path=!docs/legal/**"
        for path in ("a.md", "src/a.md", "docs/legal/a.md", "docs/LEGAL/a.md", "docs\\a.md"):
            outcome, said, output = await desk.call("write_file", path=path, content="x")
            assert (outcome, output["written"]) == ("denied:constraint", False)
            assert said.startswith("denied:constraint: Workspace.Write in worktree, path=docs/**&path=!docs/legal/**: ")
            assert not (desk.worktree / path).exists()
        assert await desk.spent() == 1
        walk = await Provenance(desk.ledger).why("ep1:head")
        assert walk.holds
        (effect,) = [link for link in walk.links if link.name == "effect"]
        assert ", denied:constraint: path=docs/**" in effect.detail
        assert effect.detail.endswith(": write_file tells no path that is plain")
        walk = await Provenance(desk.ledger).why("ep1:1")
        assert "narrowed by path=docs/**&path=!docs/legal/**" in walk.links[5].detail
        assert (await Provenance(desk.ledger).verify("ep1")).faults == ()


async def test_a_link_leads_out_of_no_path(open_desk: Open) -> None:
    async with open_desk(f"{WRITE}?path=docs/**", f"{READ}?path=docs/**") as desk:
        for folder in ("docs", "src"):
            (desk.worktree / folder).mkdir()
        (desk.worktree / "src" / "a.md").write_text("kept")
        (desk.worktree / "docs" / "out").symlink_to("../src")
        for skill, more in (("write_file", {"content": "x", "overwrite": True}), ("read_file", {})):
            outcome, said, _ = await desk.call(skill, path="docs/out/a.md", **more)
            assert (outcome, said.rpartition(": ")[2]) == ("denied:constraint", '"src/a.md" is outside')
        assert (desk.worktree / "src" / "a.md").read_text() == "kept"


@pytest.mark.parametrize(
    ("grant", "skill", "passes", "fails"),
    [
        (f"{WRITE}?operation=create", "write_file", {"path": "a.md", "content": "x"},
         {"path": "b.md", "content": "x", "overwrite": True}),
        (f"{WRITE}?max-bytes=4", "write_file", {"path": "a.md", "content": "ää"}, {"path": "a.md", "content": "ääx"}),
        (f"{READ}?max-bytes=10", "read_file", {"path": "a.md", "max_bytes": 10}, {"path": "a.md"}),
        (f"{READ}?operation=list", "list_files", {}, None),
        (f"{SEND}?max-recipients=1", "send_reply", {"to": "a@x.org", "body": "x"},
         {"to": "a@x.org,b@x.org", "body": "x"}),
        ("Web.Search=web:9?max-results=3", "search", {"query": "q", "max_results": 3}, {"query": "q"}),
        (f"{WRITE}?reversible", "write_file", {"path": "a.md", "content": "x"}, None),
        (f"{SEND}?reversible", "send_reply", None, None),
        (f"{SEND}?no-egress", "send_reply", None, None),
        (f"{WRITE}?read-only", "write_file", None, None),
        (f"{WRITE}?skill=read_*", "write_file", None, None),
        (f"{SEND}?before=1", "send_reply", None, None),
    ],
)  # fmt: skip
async def test_each_constraint_lets_through_what_it_says(
    open_desk: Open, grant: str, skill: str, passes: dict[str, Any] | None, fails: dict[str, Any] | None
) -> None:  # fmt: skip
    async with open_desk(grant) as desk:
        if passes is None:
            assert skill not in await desk.seen()
            with pytest.raises(bus.SkillNotFound):
                await desk.call(skill, path="a.md", content="x", to="a@x.org", body="x")
            return
        assert skill in await desk.seen()
        outcome, _, _ = await desk.call(skill, **passes)
        assert outcome == "succeeded"
        if fails is not None:
            spent = await desk.spent()
            outcome, _, _ = await desk.call(skill, **fails)
            assert (outcome, await desk.spent()) == ("denied:constraint", spent)


async def test_the_user_of_the_broker_is_the_subject(open_desk: Open) -> None:
    async with open_desk(f"{SEND}?subject=desk-*", user="desk-7") as desk:
        assert "send_reply" in await desk.seen()
        assert (await desk.call("send_reply", to="a@x.org", body="x"))[0] == "succeeded"
    async with open_desk(f"{SEND}?subject=desk-*", user="guest") as desk:
        assert "send_reply" not in await desk.seen()
        with pytest.raises(bus.SkillNotFound):
            await desk.call("send_reply", to="a@x.org", body="x")


async def test_a_wider_grant_beside_a_narrow_one_counts(open_desk: Open) -> None:
    async with open_desk(f"{WRITE}?path=docs/**", "Workspace.Write=worktree:1") as desk:
        outcome, _, _ = await desk.call("write_file", path="a.md", content="x")
        assert outcome == "succeeded"
        assert "narrowing" not in await desk.record()


# a skill that says nothing of itself


async def _act(effect: PlannedEffect, context: Context) -> Outcome:
    return Done({"ok": True})


def _charge(arguments: Any) -> Plan:
    return Plan.one("Money.Charge", arguments, scope="bank")


CHARGE = Skill(
    Contract.model_validate({
        "id": "stripe_charge", "title": "x", "description": "x",
        "input_schema": {"type": "object"}, "output_schema": {"type": "object"},
        "access": {"name": "Money.Charge", "scope": "bank", "cost": 0},
        "effects": ({"name": "Money.Charge", "scope": "bank"},),
    }),
    _charge,
    _act,
)  # fmt: skip


@pytest.mark.parametrize("constraint", ["max-bytes=1000000", "path=**", "operation=*", "max-recipients=9"])
async def test_what_an_unknown_skill_does_not_tell_is_denied(open_desk: Open, constraint: str) -> None:
    async with open_desk(f"Money.Charge=bank:1?{constraint}", more=(CHARGE,)) as desk:
        outcome, _, _ = await desk.call("stripe_charge", path="a", op="b", bytes=1)
        assert (outcome, await desk.spent()) == ("denied:constraint", 0)


async def test_the_risk_of_an_unknown_skill_is_the_conservative_one(open_desk: Open) -> None:
    async with open_desk("Money.Charge=bank:1", more=(CHARGE,)) as desk:
        card = await desk.client.request("desk", "GetExtendedAgentCard", {})
        (extension,) = [e for e in card["capabilities"]["extensions"] if e["uri"] == SCHEMAS]
        assert extension["params"]["skills"]["stripe_charge"]["risk"] == {
            "read_only": False, "external_egress": True, "irreversible": True, "sensitivity": "unknown",
            "idempotent": False,
        }  # fmt: skip
    async with open_desk("Money.Charge=bank:1?reversible", more=(CHARGE,)) as desk:
        assert "stripe_charge" not in await desk.seen()


# the host's policy


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (HostPolicy(deny=("send_*",)), "deny: send_reply"),
        (HostPolicy(deny_effects=("Mail.*",)), "deny_effects: Mail.Send"),
        (HostPolicy(deny_sensitivity=("high",)), "deny_sensitivity: high"),
        (HostPolicy(deny_irreversible=True), "deny_irreversible: send_reply"),
        (HostPolicy(deny_egress=True), "deny_egress: send_reply"),
        (HostPolicy(deny_writes=True), "deny_writes: send_reply"),
    ],
)
async def test_no_grant_overrides_the_host(open_desk: Open, policy: HostPolicy, why: str) -> None:
    async with open_desk(SEND, READ, policy=policy) as desk:
        seen = await desk.seen()
        assert ("send_reply" in seen, "read_file" in seen) == (False, True)
        outcome, said, output = await desk.call("send_reply", to="a@x.org", body="x")
        assert (outcome, output["sent"], await desk.spent()) == ("denied:policy", False, 0)
        assert said == f"denied:policy: Mail.Send in mail, {why}"
        record = await desk.record()
        assert (record["allowed"], record["denial"], record["reason"]) == (False, "denied:policy", why)
        assert (await Provenance(desk.ledger).verify("ep1")).faults == ()


async def test_a_skill_without_effects_that_the_host_denies_is_not_there(open_desk: Open) -> None:
    async with open_desk(READ, policy=HostPolicy(deny=("calc",))) as desk:
        assert "calc" not in await desk.seen()
        with pytest.raises(bus.SkillNotFound):
            await desk.call("calc", expr="1+1")
    async with open_desk(SEND, policy=HostPolicy(deny=("send_reply",))) as desk:
        with pytest.raises(bus.SkillNotFound):
            await desk.call("send_reply", to="a@x.org", body="")  # which is refused by its plan, without an effect


async def test_agents_offer_what_their_hosts_let_run(ledger: Ledger, worktrees: Worktrees, catalog: Catalog) -> None:
    hashes = []
    for policy in (UNRESTRICTED, HostPolicy(deny=("send_reply",)), HostPolicy(deny=("once",))):
        pipeline = Pipeline(catalog, ledger, worktrees, owner="w", version="1", policy=policy)
        hashes.append(SkillAgent("desk", pipeline, ledger, version="1").card_hash)
        await pipeline.close()
    assert hashes[0] == hashes[1] != hashes[2]


async def test_a_session_without_the_grant_learns_nothing_of_the_policy(open_desk: Open) -> None:
    async with open_desk(READ, policy=HostPolicy(deny=("send_reply",))) as desk:
        with pytest.raises(bus.SkillNotFound):
            await desk.call("send_reply", to="a@x.org", body="x")


def test_a_policy_tells_what_it_names_in_vain() -> None:
    contracts = [skill.contract for skill in pack(PackContext({}, {}))]
    policy = HostPolicy(deny=("send_replly", "search*"), deny_effects=("Mial.Send",), deny_sensitivity=("hihg", "high"))
    assert [text.partition(":")[0] for text in policy.unmet(contracts)] == ["deny", "deny_effects", "deny_sensitivity"]
    assert not list(UNRESTRICTED.unmet(contracts))


async def test_what_was_answered_before_the_policy_is_answered_still(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Callable[..., Asked], pipeline: Pipeline
) -> None:
    first = await pipeline.call(ask("once"))
    strict = Pipeline(catalog, ledger, worktrees, owner="w2", version="0", policy=HostPolicy(deny=("*",)))
    assert (await strict.call(ask("once"))).output == first.output
    assert (await strict.call(ask("once", {}, "m2"))).outcome == "denied:policy"
    await strict.close()


async def test_what_a_dead_worker_left_is_not_run_again_under_a_policy_that_denies_it(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Callable[..., Asked], pipeline: Pipeline, effects: Any
) -> None:
    run = pipeline.begin(ask("again", {"do": "wait"}))
    await effects.started.wait()
    run.abandon()
    await pipeline.close()
    ahead = time.time() + 60
    strict = Pipeline(
        catalog, ledger, worktrees, owner="w2", version="0", policy=HostPolicy(deny=("again",)), clock=lambda: ahead
    )
    receipt = await strict.call(ask("again", {"do": "wait"}, deadline=ahead + 30))
    assert (receipt.outcome, len(effects.runs)) == ("indeterminate", 1)
    await strict.close()


async def test_a_call_that_is_taken_over_is_recorded_with_its_narrowing(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Callable[..., Asked], pipeline: Pipeline, effects: Any
) -> None:
    _, session = mint("ep1", [parse_grant("Test.Run=test:5?skill=again", expires_at=2**40)], ttl=600)  # fmt: skip
    await ledger.add_session(session)
    run = pipeline.begin(ask("again", {"do": "wait"}, session=session))
    await effects.started.wait()
    run.abandon()
    await pipeline.close()
    ahead = time.time() + 60
    effects.gate.set()
    second = Pipeline(catalog, ledger, worktrees, owner="w2", version="0", clock=lambda: ahead)
    receipt: Receipt = await second.call(ask("again", {"do": "wait"}, session=session, deadline=ahead + 30))
    assert receipt.outcome == "succeeded"
    await second.close()
    walk = await Provenance(ledger).why("ep1:head")
    assert walk.holds
    assert walk.links[5].detail.endswith("narrowed by skill=again")


async def test_a_narrowed_session_learns_nothing_of_the_calls_of_another(open_desk: Open, tmp_path: Path) -> None:
    asked = {
        "messageId": "shared", "role": "ROLE_USER", "parts": [{"data": {"path": "secret/s.txt"}}],
        "metadata": {"skill_id": "read_file"},
    }  # fmt: skip
    async with open_desk(READ) as desk:
        (desk.worktree / "secret").mkdir()
        (desk.worktree / "secret" / "s.txt").write_text("hush")
        task = (await desk.client.send("desk", asked))["task"]
    named = {"id": task["id"]}
    for narrowing, knows in (("path=docs/**", False), ("operation=list", False), ("skill=read_*&read-only", True)):
        async with open_desk(f"{READ}?{narrowing}") as desk:
            listed = await desk.client.request("desk", "ListTasks", {"includeArtifacts": True})
            assert ("hush" in str(listed), listed["totalSize"]) == (knows, int(knows))
            if knows:
                assert "hush" in str(await desk.client.send("desk", asked))
                assert "hush" in str(await desk.client.request("desk", "GetTask", named))
                continue
            with pytest.raises(bus.IdempotencyConflict):
                await desk.client.send("desk", asked)
            events = desk.client.stream("desk", "SendStreamingMessage", {"message": asked}, message_id="shared")
            with pytest.raises(bus.IdempotencyConflict):
                await anext(events)
            for operation in ("GetTask", "CancelTask"):
                with pytest.raises(bus.TaskNotFound):
                    await desk.client.request("desk", operation, named)


async def test_a_narrowed_session_joins_no_call_of_another(open_desk: Open) -> None:
    """Also where nothing was in the ledger when its request was looked at."""
    async with open_desk(READ) as desk:
        (desk.worktree / "s.txt").write_text("hush")
        pipeline, (wide,) = desk.pipeline, await desk.ledger.list_sessions()
        held = [parse_grant(f"{READ}?path=docs/**", expires_at=2**40)]
        _, narrow = mint("ep1", held, ttl=600)
        await desk.ledger.add_session(narrow)
        asked = [
            Asked(session, "read_file", {"path": "s.txt"}, "m", "ep1", time.time() + 30) for session in (wide, narrow)
        ]
        run = pipeline.begin(asked[0])
        with pytest.raises(bus.IdempotencyConflict):
            pipeline.begin(asked[1])
        assert "hush" in (await run.receipt()).output.decode()
        with pytest.raises(bus.IdempotencyConflict):
            await pipeline.call(asked[1])
