"""The operations on a corpus of examples, without a binary: search, list, show, tags."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..arguments import legible
from ..errors import Refused
from ..plan import PlannedEffect
from ..skill import Context, Done, Failed, Handler, Outcome
from . import stub
from .cli import EFFECT as CLI
from .cli import OPS as CLI_OPS
from .corpus import Corpus, CorpusError, Example
from .native import EXAMPLES_TOOL
from .request import OPS, check_request

SHOWN = 10
"""Hits of a search that are listed."""

MAX_QUERY = 4_096

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+:-]*")


class _NotFound(Exception):
    """The command line would end with exit code 1; the message is what it says."""


@dataclass(frozen=True, slots=True)
class _Operation:
    answer: Callable[[Corpus, str, Mapping[str, str]], str]
    argv: tuple[str, str]
    field: str | None = None
    flags: tuple[str, ...] = ()


def examples(corpus: Corpus | None) -> Handler:
    """The handler of ailang-cli and examples-search where there is no binary."""

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        try:
            op = check_request(effect, CLI_OPS if effect.effect == CLI else OPS.get(effect.effect, ()))
        except Refused as refused:
            return Failed(str(refused))
        if op not in OPERATIONS:
            return Done(stub.refusal(stub.NO_BINARY))
        if corpus is None:
            return Done(stub.refusal(stub.NO_CORPUS))
        if context.worktree is None:
            return Failed(f"broker: {effect.effect} refused: no worktree")
        try:
            answer = await asyncio.to_thread(_answer, corpus, op, effect.payload)
        except Refused as refused:
            answer = {"ok": False, "refused": legible(str(refused))}
        except CorpusError as error:
            return Failed(f"broker: {error}")
        return Done({**answer, "tool": EXAMPLES_TOOL, "policy_digest": context.worktree.protection.digest})

    return handle


def _answer(corpus: Corpus, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    operation = OPERATIONS[op]
    flags = payload.get("flags") or {}
    for name in sorted(flags):
        if name not in operation.flags:
            admitted = " ".join(f"--{flag}" for flag in operation.flags) or "none"
            raise Refused(f"op {op} does not admit flag --{name} (admitted: {admitted})")
        _check_text(f"flag --{name}: ", flags[name])
    value = _value(op, operation, payload)
    argv = [*operation.argv, *(part for name in sorted(flags) for part in (f"--{name}", flags[name]))]
    argv += [value] if operation.field else []
    try:
        return {"ok": True, "argv": argv, "stdout": operation.answer(corpus, value, flags)}
    except _NotFound as error:
        return {"ok": False, "argv": argv, "exit_code": 1, "stderr": f"Error: {error}\n"}


def _value(op: str, operation: _Operation, payload: Mapping[str, Any]) -> str:
    """The one field that the operation takes, "" where it takes none."""
    value: str = payload.get(operation.field, "") if operation.field else ""
    if operation.field and not value:
        raise Refused(f"op {op} requires {operation.field}")
    if value.startswith("-"):
        raise Refused(f'"{value}" looks like a flag; flags go in the flags field')
    if operation.field == "query":
        _check_text("query ", value)
    elif operation.field and (not _WORD.fullmatch(value) or ".." in value):
        raise Refused(f'"{value}" is not a simple token')
    for other in ("path", "module", "query", "package"):
        if other != operation.field and payload.get(other):
            raise Refused(f"op {op} does not take {other}")
    return value


def _check_text(what: str, value: str) -> None:
    if "\0" in value or "\n" in value or len(legible(value).encode()) > MAX_QUERY:
        raise Refused(f"{what}is malformed")


def _search(corpus: Corpus, query: str, _: Mapping[str, str]) -> str:
    hits = []
    for example, text in corpus.programs():
        rank, where = _rank(query.lower(), example, text.lower())
        if rank:
            hits.append((-rank, example.path, where, example))
    hits.sort(key=lambda hit: hit[:2])
    lines = [f"Found {len(hits)} examples\n"]
    for number, (_rank_of, _path, where, example) in enumerate(hits[:SHOWN], 1):
        lines.append(f"\n{number}. {example.name} ({where})\n{_about(example)}")
    if len(hits) > SHOWN:
        lines.append(f"\n{len(hits) - SHOWN} more; narrow the query\n")
    return "".join(lines)


def _rank(query: str, example: Example, text: str) -> tuple[float, str]:
    """How well an example answers a query, and by what: the whole query counts more than some of its words."""
    places = {"tag": "\n".join(example.tags).lower(), "description": example.description.lower(), "content": text}
    for weight, (place, held) in zip((5, 4, 3), places.items(), strict=True):
        if query.strip() and query in held:
            return weight, place
    terms = query.split()
    for weight, (place, held) in zip((2, 1, 0), places.items(), strict=True):
        share = sum(term in held for term in terms) / len(terms) if terms else 0
        if share:
            return weight + share, place
    return 0, ""


def _list(corpus: Corpus, _: str, flags: Mapping[str, str]) -> str:
    status = flags.get("status", "working")
    tags = {tag.strip() for tag in flags.get("tags", "").split(",") if tag.strip()}
    every = corpus.listed()
    found = [
        example
        for example in every
        if status in ("all", example.status) and (not tags or not tags.isdisjoint(example.tags))
    ]
    entries = (f"\n{example.path} ({example.status})\n{_about(example)}" for example in found)
    return f"AILANG Examples ({len(found)}/{len(every)})\n{''.join(entries)}"


def _show(corpus: Corpus, name: str, _: Mapping[str, str]) -> str:
    found = corpus.find(name)
    if found is None:
        raise _NotFound(f"example not found: {name}")
    example, text = found
    return f"{example.name}\n{_about(example)}\n{text}"


def _tags(corpus: Corpus, _: str, __: Mapping[str, str]) -> str:
    counts = Counter(tag for example in corpus.listed() if example.status == "working" for tag in example.tags)
    entries = (f"  {tag} ({count} examples)\n" for tag, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    return f"Available tags:\n\n{''.join(entries)}"


def _about(example: Example) -> str:
    tags = f"   Tags: {', '.join(example.tags)}\n" if example.tags else ""
    return (f"   {example.description}\n" if example.description else "") + tags


OPERATIONS: Mapping[str, _Operation] = {
    "examples_list": _Operation(_list, ("examples", "list"), flags=("status", "tags")),
    "examples_search": _Operation(_search, ("examples", "search"), field="query"),
    "examples_show": _Operation(_show, ("examples", "show"), field="module"),
    "examples_tags": _Operation(_tags, ("examples", "tags")),
}
