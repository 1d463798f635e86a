"""What goes along from one call to the next."""

import time
from dataclasses import replace

import pytest

import bus
from bus import Hop, Request
from bus.hop import MARGIN, seconds_within

REQUEST = Request(
    "a",
    "SendMessage",
    "m",
    b"{}",
    {},
    deadline=1000.0,
    tenant="acme",
    traceparent="00-1-2-01",
    headers={"a2a-depth": "3", "a2a-keepalive": "5"},
)


def test_a_request_is_a_parent() -> None:
    assert REQUEST.onward == {"a2a-depth": "4", "a2a-tenant": "acme", "traceparent": "00-1-2-01"}
    assert (REQUEST.root_task, REQUEST.depth) == (None, 3)
    assert replace(REQUEST, headers={}, tenant=None, traceparent=None).onward == {"a2a-depth": "1"}


def test_the_root_is_the_parent_s_root_or_its_own_task() -> None:
    assert Hop.of(REQUEST, "t-1").onward["a2a-root-task"] == "t-1"
    assert Hop.of(REQUEST, "t-1").deadline == REQUEST.deadline
    below = replace(REQUEST, headers={"a2a-root-task": "t-0"})
    assert below.root_task == "t-0"
    assert Hop.of(below, "t-1").onward["a2a-root-task"] == below.onward["a2a-root-task"] == "t-0"


def test_a_hop_keeps_half_a_second() -> None:
    assert MARGIN == 0.5
    assert seconds_within(1000.0, 990.0, 60.0) == 9.5
    assert seconds_within(1000.0, 990.0, 5.0) == 5.0
    assert seconds_within(None, 990.0, 60.0) == 60.0
    for now in (999.5, 1000.0, 2000.0):
        with pytest.raises(bus.DeadlineExceeded) as caught:
            seconds_within(1000.0, now, 60.0)
        assert caught.value.metadata == {"local": "true"}


async def test_a_body_s_own_tenant_stands() -> None:
    from bus.client.order import order

    def tenant(body: dict[str, str] | bytes) -> str | None:
        made = order(
            "a",
            "GetTask",
            body,
            bus.Limits(),
            message_id=None,
            headers={},
            timeout=1,
            authorization=None,
            within=Hop(time.time() + 9, REQUEST.onward),
        )
        return made.headers.get("a2a-tenant")

    assert tenant({"id": "t"}) == tenant(b"{}") == "acme"
    assert tenant({"id": "t", "tenant": "other"}) is None
