"""Every test here runs on both drivers."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.stage import MemoryStage, RabbitStage, Stage


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def stage(request: pytest.FixtureRequest, unique_prefix: str) -> AsyncIterator[Stage]:
    if request.param == "memory":
        made: Stage = MemoryStage(unique_prefix)
    else:
        made = RabbitStage(unique_prefix, request.getfixturevalue("rabbitmq_url"))
    async with made:
        yield made
