"""What was recorded of the AILANG binary, call by call."""

import json

from tests.skills.vectors import Row
from tests.vectors import HERE

with (HERE / "policy-tool.transcripts.jsonl").open(encoding="utf-8") as lines:
    TRANSCRIPTS: list[Row] = [json.loads(line) for line in lines]


def of_kind(*kinds: str) -> list[Row]:
    """The rows of these kinds; never none."""
    found = [row for row in TRANSCRIPTS if row["kind"] in kinds]
    assert found, f"no transcripts of {kinds}"
    return found
