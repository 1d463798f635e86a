from collections.abc import Mapping
from typing import Any

from skills.redaction import RedactingReporter, Redactor, Secret


class Heard:
    """What a reporter was told."""

    def __init__(self) -> None:
        self.progress_of: list[tuple[str, float | None]] = []
        self.chunks: list[tuple[str, Mapping[str, Any], bool]] = []

    async def progress(self, text: str, fraction: float | None) -> None:
        self.progress_of.append((text, fraction))

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        self.chunks.append((artifact, part, last))


def reporter() -> tuple[RedactingReporter, Heard]:
    heard = Heard()
    return RedactingReporter(Redactor([Secret("KEY", "hunter2!")]), heard), heard


async def test_progress_is_told_at_once() -> None:
    redacting, heard = reporter()
    for text in ("with hunter2!", "hunt", "er2! is it"):
        await redacting.progress(text, 0.5)
    assert heard.progress_of == [("with [secret]", 0.5), ("hunt", 0.5), ("[secret] is it", 0.5)]


async def test_chunks_of_text_are_one_text() -> None:
    redacting, heard = reporter()
    for piece in ("it is hun", "ter", "2", "!; hu", "mid"):
        await redacting.chunk("a", {"text": piece}, last=False)
    await redacting.chunk("a", {"text": "ity hunter2"}, last=True)
    assert "".join(part["text"] for _, part, _ in heard.chunks) == "it is [secret]; humidity hunter2"
    assert [last for *_, last in heard.chunks] == [False, False, False, True]


async def test_artifacts_are_held_apart_and_ended() -> None:
    redacting, heard = reporter()
    await redacting.chunk("a", {"text": "hun"}, last=False)
    await redacting.chunk("b", {"text": "ter2!"}, last=False)
    await redacting.chunk("b", {"text": "hunt"}, last=False)
    assert heard.chunks == [("b", {"text": "ter2!"}, False)]
    await redacting.chunk("a", {"data": {"hunter2!": ["hunter2!"]}}, last=False)
    await redacting.end()
    assert heard.chunks[1:] == [
        ("a", {"text": "hun"}, False),
        ("a", {"data": {"[secret]": ["[secret]"]}}, False),
        ("b", {"text": "hunt"}, False),
    ]


async def test_the_name_of_an_artifact_and_the_empty_chunk() -> None:
    redacting, heard = reporter()
    await redacting.chunk("hunter2!", {"text": ""}, last=True)
    assert heard.chunks == [("[secret]", {"text": ""}, True)]
