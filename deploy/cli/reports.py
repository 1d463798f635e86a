"""What a task reports while it runs, on the standard error as it comes, and what it has come to in the end."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import screen
from .failure import Failure

if TYPE_CHECKING:
    from bus.client.leg import StreamEvent


class Reports:
    """Takes the events of a task in their order.

    `task_id` is None until an event has named the task, `seq` the last place in its log that was seen.
    """

    def __init__(self, *, shown: bool, begin: Callable[[], None] = lambda: None) -> None:
        """`begin` is called once, before the first line. What is not `shown` is only counted."""
        self.task_id: str | None = None
        self.seq: int | None = None
        self._shown = shown
        self._begin: Callable[[], None] | None = begin
        self._within_line = False
        self._task: dict[str, Any] = {}
        self._message: Mapping[str, Any] | None = None

    def take(self, event: "StreamEvent") -> None:
        """One event."""
        self.task_id = event.task_id or self.task_id
        self.seq = self.seq if event.task_seq is None else event.task_seq
        body = event.body
        if event.gap:
            self._line("(earlier reports are not kept any more)")
        if "message" in body:
            self._message = body
        elif "task" in body:
            self._task = dict(body["task"])
            if not event.final:
                for artifact in self._task.get("artifacts") or ():
                    self._chunk(artifact)
        elif "artifactUpdate" in body:
            artifact = body["artifactUpdate"]["artifact"]
            if artifact.get("artifactId") == f"{self.task_id}-output":
                self._task["artifacts"] = [artifact]
            else:
                self._chunk(artifact)
        elif "statusUpdate" in body:
            update = body["statusUpdate"]
            self._task["status"] = update["status"]
            if not event.final:
                self._progress(update)

    @property
    def response(self) -> dict[str, Any]:
        """What the task has come to, as the answer to `SendMessage` would say it. Raises Failure before the end."""
        if self._message is not None:
            return dict(self._message)
        if "id" not in self._task:
            raise Failure("the stream ended, and it named no task: the agent is of another kind")
        members = ("id", "contextId", "status", "artifacts")
        return {"task": {name: self._task[name] for name in members if name in self._task}}

    def close(self) -> None:
        """End the line that a chunk has left open, so that something else can be said."""
        if self._within_line:
            self._within_line = False
            screen.note("")

    def _progress(self, update: Mapping[str, Any]) -> None:
        text = text_of(update["status"].get("message"))
        fraction = (update.get("metadata") or {}).get("fraction")
        share = f"{fraction:4.0%}" if isinstance(fraction, int | float) else " " * 4
        if text or share.strip():
            self._line(screen.style(f"{share}  {screen.legible(text)}".rstrip(), "dim"))

    def _chunk(self, artifact: Mapping[str, Any]) -> None:
        for part in artifact.get("parts") or ():
            if "text" in part:
                self._text(str(part["text"]))
            else:
                self._line(screen.legible(json.dumps(part.get("data"), ensure_ascii=False)))

    def _text(self, text: str) -> None:
        """A piece of text, which the next one goes on from."""
        if text and self._starts():
            screen.note(screen.legible(text, lines=True), end="")
            self._within_line = not text.endswith("\n")

    def _line(self, text: str) -> None:
        if self._starts():
            self.close()
            screen.note(text)

    def _starts(self) -> bool:
        if self._shown and self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
            screen.note(screen.style(screen.legible(f"task {self.task_id}"), "dim"))
        return self._shown


def text_of(message: Any) -> str:
    """The text parts of a message, joined; empty for what is no message."""
    parts = message.get("parts", ()) if isinstance(message, Mapping) else ()
    return " ".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)
