"""Where the reports of a handler that holds secrets go: to the same place, redacted."""

from collections.abc import Mapping
from typing import Any

from ..skill import Reporter
from .redactor import Redactor, Stream


class RedactingReporter:
    """A reporter before another one. `end` sends what was held back of the chunks' texts."""

    def __init__(self, redactor: Redactor, inner: Reporter) -> None:
        self._redactor, self._inner = redactor, inner
        self._before = ""
        self._streams: dict[str, Stream] = {}

    async def progress(self, text: str, fraction: float | None) -> None:
        """A value that began in the last report and ends in this one is taken out of this one."""
        told, self._before = self._redactor.after(self._before, text)
        await self._inner.progress(told, fraction)

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        """A text is sent as far as it is known what it holds; what is no text ends the text before it."""
        name = self._redactor.text(artifact)
        text = part.get("text")
        if isinstance(text, str) and part.keys() == {"text"}:
            stream = self._streams.setdefault(name, self._redactor.stream())
            told = stream.feed(text)
            if last:
                told += self._streams.pop(name).end()
            if told or last or not text:
                await self._inner.chunk(name, {"text": told}, last=last)
            return
        await self._finish(name)
        await self._inner.chunk(name, self._redactor.json(part), last=last)

    async def end(self) -> None:
        """Send what is left; the handler has ended."""
        for name in list(self._streams):
            await self._finish(name)

    async def _finish(self, name: str) -> None:
        stream = self._streams.pop(name, None)
        if stream is not None and (rest := stream.end()):
            await self._inner.chunk(name, {"text": rest}, last=False)
