"""A tool as mklang calls it: a function of the state's input that answers with text, whatever happens."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bus
from deploy.cli.failure import Failure
from deploy.settings import SettingsError

from . import observation
from .line import NotConfigured, line
from .unsettled import Unsettled

TIMEOUT = 60.0  # seconds, as `skillbus call` waits
TRANSIENT = (bus.AgentNotFound, bus.DeadlineExceeded, bus.Unavailable)
LASTING = (bus.Refused,)  # of those that are Unavailable

log = logging.getLogger(__name__)

_unsettled = Unsettled()
os.register_at_fork(after_in_child=_unsettled.unlock)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a state asks for; `name` is the same for two that ask the same."""

    skill: str
    arguments: Mapping[str, Any]
    timeout: float
    message_id: str | None
    name: str


class Tool:
    """A tool that calls the skill `skill`, or without one, the skill that its input names.

    Each call is a new one, under a message id of its own: a machine that comes to a state again means it again, and
    would otherwise be told what a file held before. Only a call whose outcome never came keeps its id until it is asked
    for again, so that it still runs once; one that is `safe` to repeat needs no such care.
    """

    def __init__(self, skill: str = "", *, safe: bool = False) -> None:
        self.skill = skill
        self.safe = safe

    def __repr__(self) -> str:
        return f"Tool({self.skill!r})"

    def __call__(self, given: Mapping[str, Any]) -> str:
        """The observation of a call with this input, as text. Raises nothing.

        Without a skill of its own: `{skill, arguments?, timeout?, message_id?}`, the timeout in seconds.
        """
        try:
            asked = self._asked(given)
        except Exception as error:
            return observation.failure(self.skill or "skillbus", {}, f"the input can't be sent: {error}")
        try:
            return self._call(asked)
        except bus.BusError as error:
            return self._lost(asked, error)
        except (NotConfigured, Failure) as error:
            text = str(error)
        except SettingsError as error:
            text = "; ".join(error.lines)
        except Exception as error:
            log.exception("a call of %s failed", asked.skill)
            text = f"the call failed ({type(error).__name__})"
        return observation.failure(asked.skill, asked.arguments, text)

    def _asked(self, given: Mapping[str, Any]) -> Asked:
        skill: Any = self.skill
        arguments: Any = dict(given)
        timeout, message_id = TIMEOUT, None
        if not skill:
            unknown = sorted(arguments.keys() - {"skill", "arguments", "timeout", "message_id"})
            if unknown:
                raise ValueError(f"{unknown[0]!r} is not known: arguments of the skill stand in `arguments`")
            skill, arguments = given.get("skill"), given.get("arguments") or {}
            timeout, message_id = float(given.get("timeout") or TIMEOUT), given.get("message_id") or None
            if not isinstance(skill, str) or not skill or not isinstance(arguments, Mapping):
                raise ValueError("`skill` is the id of a skill, and `arguments` an object")
            if not isinstance(message_id, str | None) or not 0 < timeout <= 86_400:
                raise ValueError("`message_id` is a text, and `timeout` more than 0 and at most a day")
        name = json.dumps([skill, arguments], sort_keys=True, allow_nan=False, ensure_ascii=False)
        name.encode()
        return Asked(skill, arguments, timeout, message_id, name)

    def _call(self, asked: Asked) -> str:
        message_id = asked.message_id or _unsettled.take(asked.name)
        message = {
            "messageId": message_id,
            "role": "ROLE_USER",
            "parts": [{"data": asked.arguments}],
            "metadata": {"skill_id": asked.skill},
        }
        try:
            response = line().send(message, asked.timeout)
        except TRANSIENT:
            if asked.message_id is None and not self.safe:
                _unsettled.keep(asked.name, message_id)
            raise
        return observation.of(response)

    def _lost(self, asked: Asked, error: bus.BusError) -> str:
        """What is said where no result came."""
        retryable = isinstance(error, TRANSIENT) and not isinstance(error, LASTING)
        text = f"{error.reason}: {error.message}"
        if isinstance(error, bus.DeadlineExceeded) and not self.safe:
            text += "; whether it ran is not known, and asked for again it runs only if it has not"
        return observation.failure(asked.skill, asked.arguments, text, retryable=retryable)
