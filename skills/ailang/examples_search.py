"""The tool examples-search: AILANG programs that show how something is written."""

from ..arguments import Arguments, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill, Tier

EFFECT = "Ailang.Discover"
CONTRACT = Contract(
    id="examples-search",
    title="Search AILANG examples",
    description=(
        "Search the AILANG examples corpus of this host (policy-tool `examples_search`; the operator names the "
        "corpus) for `query`, then read a hit with ailang-cli op examples_show. The op admits no flags, so there is "
        "no limit argument. Use this before writing a construct you are unsure of. Returns {ok, argv, exit_code, "
        "stdout, stderr}, or {ok:false, refused} when no corpus is configured. Unknown argument keys are refused, "
        "never ignored. Costs one Ailang.Discover call from the session's budget. Every call commits one World log "
        "entry; the result carries `world` (the effect plan and the brokered effect's record ref)."
    ),
    tags=("ailang", "search"),
    examples=('{"query": "fold"}',),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Text to search the examples for"},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "stdout": {"type": "string"},
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name=EFFECT, scope="worktree", cost=0),
    effects=(Effect(name=EFFECT, scope="worktree"),),
    deadline=20,
    repeatable=True,
    worktree=True,
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="normal", idempotent=True),
)


def examples_search(handler: Handler, tier: Tier) -> Skill:
    """The skill, served by `handler`."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler, tier=tier)


def _plan(given: Arguments) -> Plan:
    return Plan.one(EFFECT, {"op": "examples_search", "query": given.text("query")})
