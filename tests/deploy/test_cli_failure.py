"""What a command advises about an error: only what can be done with that command."""

import pytest

import bus
from deploy.cli.failure import failure_of


@pytest.mark.parametrize(
    ("error", "of_a_call", "of_another"),
    [
        (
            bus.ConnectionLost("gone"),
            "Check that the broker at --amqp-url is up, and try again with the same --message-id: it never runs twice",
            "Check that the broker at --amqp-url is up, and try again",
        ),
        (
            bus.Unavailable("full", metadata={"retryAfterMs": "1000"}),
            "Try again in 1 s with the same --message-id: it never runs twice",
            "Try again in 1 s",
        ),
        (
            bus.InvalidParams("no name"),
            "Check the arguments: `skillbus skills SKILL` shows what a skill takes",
            "Check the arguments and options: --help says what they are",
        ),
        (
            bus.DeadlineExceeded("too late"),
            "Send it again with the same --message-id to see what came of it, or anew with a longer --timeout",
            "The worker's log says more",
        ),
    ],
)
def test_only_a_call_is_sent_again_under_its_name(error: bus.BusError, of_a_call: str, of_another: str) -> None:
    told = str(failure_of(error, called=True)), str(failure_of(error))
    assert told == tuple(f"{error.reason}: {error.message}. {advice}" for advice in (of_a_call, of_another))
