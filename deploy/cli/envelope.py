"""What a call's reply carries, and whether its output is the one that the log names."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .failure import Code, Failure
from .reports import text_of
from .screen import legible, style

SHOWN = 4000
"""Characters of one field that a terminal gets; a pipe gets them all."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The task in a reply, taken apart. `output` is the skill's output object, its `world` block in it."""

    response: Mapping[str, Any]
    task: Mapping[str, Any]
    metadata: Mapping[str, Any]
    output: Mapping[str, Any]

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> "Envelope":
        """Raises Failure for a reply that is no task with one output."""
        try:
            task = response["task"]
            (artifact,) = task["artifacts"]
            (part,) = artifact["parts"]
            metadata = artifact["metadata"]
            # A text part is the output's text member; the rest of the object travels in the metadata.
            output = part["data"] if "data" in part else {"text": part["text"], "world": metadata["world"]}
            known = isinstance(output, Mapping) and isinstance(output["world"], Mapping) and "state" in task["status"]
        except (KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise Failure("the reply is not the result of a Skillbus call: --raw shows what it is")
        return cls(response, task, metadata, output)

    @property
    def state(self) -> str:
        """The task's state in lower case: completed, rejected, failed, canceled."""
        return str(self.task["status"]["state"]).removeprefix("TASK_STATE_").lower()

    @property
    def went_well(self) -> bool:
        """Whether the effect ran and the skill says of it that it is well."""
        return self.state == "completed" and self.metadata.get("status") != "error"

    @property
    def encoded(self) -> bytes:
        """The exact bytes of the output object. Raises Failure when the log's name for them is another."""
        from skills import canonical

        named = self.metadata.get("output")
        try:
            encoded = canonical.encode(self.output)
            found = canonical.ref(encoded)
        except canonical.NotCanonical as error:
            raise Failure(f"the output has no canonical form: {error}", code=Code.FAULT) from None
        if found != named:
            raise Failure(f"the output that came is {found}, and the log names {named}", code=Code.FAULT)
        return encoded

    def lines(self, *, cut: bool) -> Iterator[str]:
        """The envelope for people; with `cut`, long fields are shortened."""
        said = [self.state, str(self.metadata.get("status", "?"))]
        outcome = self.metadata.get("outcome")
        if outcome not in (None, "succeeded", *said):
            said.append(str(outcome))
        color = "green" if self.went_well else "red" if self.state == "failed" else "yellow"
        head = f"{self.metadata.get('tool', '?')}: {', '.join(said)}"
        yield f"{style(legible(head), color)}  entry {self.metadata.get('entry', '?')}"
        reason = text_of(self.task["status"].get("message"))
        if reason:
            yield f"  {legible(reason)}"
        fields = {name: value for name, value in self.output.items() if name != "world"}
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            yield from _field(name, value, width, cut=cut)
        yield f"output  {self.metadata.get('output')} ({len(self.encoded)} bytes)"
        world = self.output["world"]
        yield f"world   plan {legible(str(world.get('plan')))}"
        for effect in world.get("effects") or ():
            yield legible(f"        {effect.get('id')} {effect.get('status')} {effect.get('record')}")


def _field(name: str, value: Any, width: int, *, cut: bool) -> Iterator[str]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = ""
    if cut and len(text) > SHOWN:
        more = style(f" … {len(text) - SHOWN} more characters; --json-out prints them all", "dim")
        text = text[:SHOWN]
    first, *rest = legible(text, lines=True).split("\n") if text else [""]
    indent = " " * (width + 4)
    yield f"  {style(legible(name.ljust(width)), 'bold')}  {first}" + ("" if rest else more)
    for number, line in enumerate(rest, 1):
        yield f"{indent}{line}" + (more if number == len(rest) else "")
