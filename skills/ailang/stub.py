"""What a tool answers when what it needs is not there: what is missing, how to provide it, and nothing else."""

from collections.abc import Mapping
from typing import Any

from ..errors import Refused
from ..plan import PlannedEffect
from ..skill import Context, Done, Failed, Outcome
from .cli import EFFECT as CLI
from .cli import OPS as CLI_OPS
from .request import OPS, check_request, check_run

SET_BINARY = (
    "set binary in the table [tools.ailang] of the configuration to the absolute path of an ailang executable, and "
    "start the worker again"
)
SET_CORPUS = (
    "set examples in the table [tools.ailang] of the configuration to the folder of an AILANG examples corpus "
    "(manifest.json plus runnable/; `ailang examples download` makes one at ~/.ailang/examples), and start the worker "
    "again"
)
NO_BINARY = f"no ailang binary configured: {SET_BINARY}"
NO_CORPUS = f"no examples corpus configured: {SET_CORPUS}"


def refusal(text: str) -> Mapping[str, Any]:
    """An answer that claims nothing."""
    return {"ok": False, "refused": text}


async def handle(effect: PlannedEffect, context: Context) -> Outcome:
    """Answer that there is no binary; a request that no binary would be given fails as with one."""
    try:
        if effect.effect in OPS or effect.effect == CLI:
            check_request(effect, OPS.get(effect.effect, CLI_OPS))
        else:
            check_run(effect)
    except Refused as refused:
        return Failed(str(refused))
    return Done(refusal(NO_BINARY))
