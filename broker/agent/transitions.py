"""How a call is entered: what is compared before it begins, and what is told of one that can not begin any more."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from bus import IdempotencyConflict, InternalError, InvalidParams, SkillNotFound, Unavailable

from ..ledger.records import transition_of
from ..pipeline.pipeline import Pipeline
from ..pipeline.planned import Asked, task_id
from ..pipeline.runs import Run


async def enter(asked: Asked, pipeline: Pipeline, attach: Callable[[], Awaitable[None]]) -> Run:
    """Begin a call, after `attach` has kept who is to be told of it, or find what comes of it.

    A session that sends a call again gets what came of it, also when its skill is gone, is not its to see any more, or
    plans it no more. It learns nothing by that which the task of the call would not tell it. Raises what beginning
    the call raises, and what `attach` does.
    """
    try:
        await check_whose(asked, pipeline)
        call = await settle_transition(asked, pipeline)
    except SkillNotFound:
        known = await pipeline.resume(asked)
        if known is None:
            raise
        await attach()
        return known
    await attach()
    try:
        return pipeline.begin(call)
    except (SkillNotFound, InvalidParams, InternalError):
        known = await pipeline.resume(asked)
        if known is None:
            raise
        return known


async def check_whose(asked: Asked, pipeline: Pipeline) -> None:
    """Raise IdempotencyConflict for the message id of a call of another session that is not this one's to look at.

    Raises SkillNotFound as the pipeline does.
    """
    session, skill = asked.session, pipeline.admit(asked.session, asked.skill_id, asked.caller)
    if not pipeline.oversees(session, skill):
        task = await pipeline.ledger.tasks.get(task_id(session.episode, asked.message_id), session.episode)
        if task is not None and task.session != session.id:
            raise IdempotencyConflict


async def settle_transition(asked: Asked, pipeline: Pipeline) -> Asked:
    """The call to begin: one that has ended needs no transition, its result is what it was whatever the skill is now.

    Raises SkillNotFound, and Unavailable for a call that runs by another contract: it is to be sent again.
    """
    if asked.transition is None:
        return asked
    skill = pipeline.admit(asked.session, asked.skill_id, asked.caller)
    if asked.transition == transition_of(skill.contract).ref:
        return asked
    episode = asked.session.episode
    task = await pipeline.ledger.tasks.get(task_id(episode, asked.message_id), episode)
    if task is None:
        return asked  # beginning it tells the caller
    if task.receipt is None:
        await pipeline.recover(task)
        raise Unavailable("the call runs by the contract that it began with", metadata={"retryAfterMs": "1000"})
    return replace(asked, transition=None)
