"""`skillbus kb`: the index that `search_kb` answers from."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from . import screen
from .failure import Code, Failure
from .options import ConfigFile, Json, StateDir, expanded, settings_from

if TYPE_CHECKING:
    from skills.host.index import Document, Index
    from skills.host.intake import Intake

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="The knowledge base: the documents that search_kb answers from.")

KbFile = Annotated[
    Path | None,
    typer.Option("--kb", metavar="FILE", help=r"The index; else SKILLBUS_KB_FILE, \[tools.kb], kb.db in state_dir."),
]


@app.command("add")
def add(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of Markdown and text.")],
    kb: KbFile = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
) -> None:
    """Index the documents of a folder; again, and only what has changed is read anew.

    Taken are .md, .markdown, .txt, .text and .rst files of at most 4 MiB, in
    subfolders too; no dotfiles, no links. What is gone from the folder goes from
    the index. A worker takes the new index at its next query.

    [dim]Examples[/dim]
    skillbus kb add docs
    skillbus kb add handbook policies --kb support.db
    """
    from skills.host.intake import take_in

    for folder in folders:
        if not folder.is_dir():
            raise Failure(f"{folder} is not a folder")
    taken: list[dict[str, Any]] = []
    with _opened(kb, config, state_dir, make=True) as index:
        for folder in folders:
            found = _explained(partial(take_in, index, folder))
            taken.append({"folder": str(folder.resolve()), **_told(found)})
            for name, reason in found.skipped.items():
                screen.warn(f"{name} is left out: {reason}")
            if not as_json:
                screen.say(screen.legible(f"{folder}: {_counted(found)}"))
        roots = {Path(os.fsdecode(each.folder)) for each in _explained(index.documents)}
    for folder in folders:
        for other in sorted(_overlapping(folder.resolve(), roots)):
            screen.warn(f"{folder} and {other} overlap: what is in both is found twice (`skillbus kb remove` one)")
    if as_json:
        screen.say_json(taken)


@app.command("list")
def list_(
    documents: Annotated[bool, typer.Option("--documents", "-d", help="Every document, too.")] = False,
    kb: KbFile = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
) -> None:
    """List the folders that the index holds, or its documents.

    [dim]Examples[/dim]
    skillbus kb list --documents
    """
    with _opened(kb, config, state_dir) as index:
        found = _explained(index.documents)
    if documents:
        rows = [{"document": each.name, "bytes": each.bytes, "folder": _folder(each)} for each in found]
        if not as_json:
            cells = [(str(row["bytes"]), str(row["document"]), str(row["folder"])) for row in rows]
            screen.say_table(("BYTES", "DOCUMENT", "FOLDER"), cells)
    else:
        names = dict.fromkeys(map(_folder, found))
        rows = [{"folder": name, "documents": sum(_folder(each) == name for each in found)} for name in names]
        if not as_json:
            screen.say_table(("DOCUMENTS", "FOLDER"), [(str(row["documents"]), str(row["folder"])) for row in rows])
    if as_json:
        screen.say_json(rows)


@app.command("remove")
def remove(
    target: Annotated[str, typer.Argument(metavar="DIR|DOCUMENT", help="A folder, or a document by its path or name.")],
    kb: KbFile = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
) -> None:
    """Take a folder, or one document, out of the index.

    A document that is still in its folder comes back with the next `kb add`.

    [dim]Examples[/dim]
    skillbus kb remove handbook
    skillbus kb remove handbook/old.md
    """
    with _opened(kb, config, state_dir, make=True, must_exist=True) as index:
        gone = _meant(target, _explained(index.documents))

        def drop() -> None:
            with index.change():
                index.drop(gone)

        _explained(drop)
    screen.note(f"{len(gone)} document(s) removed")


@app.command("search")
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What to look for.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=50, help="At most so many passages.")] = 8,
    kb: KbFile = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
) -> None:
    """Look something up, as search_kb does; the words that were found stand in brackets.

    [dim]Examples[/dim]
    skillbus kb search refund unopened
    """
    with _opened(kb, config, state_dir) as index:
        hits = _explained(lambda: index.search(" ".join(words), count))
    if as_json:
        rows = [{"document": h.name, "heading": h.heading, "snippet": h.snippet, "score": -h.score} for h in hits]
        screen.say_json(rows)
        return
    for hit in hits:
        heading = f"  {screen.legible(hit.heading)}" if hit.heading else ""
        screen.say(f"{screen.style(screen.legible(hit.name), 'bold')}{heading}")
        screen.say(f"  {screen.legible(' '.join(hit.snippet.split()))}")
    screen.note(f"{len(hits)} passage(s)")


def _opened(
    kb: Path | None, config: Path | None, state_dir: Path | None, *, make: bool = False, must_exist: bool = False
) -> "Index":
    """The index that is meant. Raises Failure."""
    from skills.host.backends import BackendContext
    from skills.host.bindings import INDEX
    from skills.host.index import Index

    settings = settings_from(config, state_dir=state_dir)
    table = settings.tools.get("kb")
    context = BackendContext("kb", table if isinstance(table, dict) else {}, os.environ)
    file = expanded(kb or Path(context.option("file") or settings.state_dir / INDEX))
    if (must_exist or not make) and not file.exists():
        raise Failure(f"there is no index {file} yet: `skillbus kb add DIR` makes it; --kb names another")
    if make and file.parent == settings.state_dir:
        settings.prepare_state_dir()
    return _explained(lambda: Index.open(file, make=make), file)


def _overlapping(root: Path, others: set[Path]) -> set[Path]:
    return {each for each in others if each != root and (each in root.parents or root in each.parents)}


def _meant(target: str, known: "list[Document]") -> "list[Document]":
    """A folder's documents, else those of a file, else the one with that name. Raises Failure."""
    from skills import legible

    path = legible(str(expanded(Path(target)).absolute().resolve()))
    found = [each for each in known if _folder(each) == path] or [each for each in known if _file(each) == path]
    if found:
        return found
    found = [each for each in known if each.name == target]
    if len(found) > 1:
        named = ", ".join(map(_file, found))
        raise Failure(f"{target} is the name of {len(found)} documents: say which by its path ({named})")
    if not found:
        raise Failure(f"{target} is not in the index: `skillbus kb list --documents` shows what is")
    return found


def _file(document: "Document") -> str:
    """Where a document was read, as it can be shown."""
    return f"{_folder(document).rstrip('/')}/{document.name.partition('/')[2]}"


def _explained(work: Callable[[], T], file: Path | None = None) -> T:
    """What `work` gives. Raises Failure where the index is not one, or is at work elsewhere."""
    from skills.host.index import IndexUnusable

    try:
        return work()
    except IndexUnusable as error:
        where = f"the index {file}" if file else "the index"
        code = Code.ERROR if error.busy or file else Code.FAULT
        raise Failure(f"{where} can't be used: {error}", code=code) from None


def _folder(document: "Document") -> str:
    from skills import legible

    return legible(os.fsdecode(document.folder))


def _told(found: "Intake") -> dict[str, Any]:
    return {
        "added": found.added,
        "changed": found.changed,
        "unchanged": len(found.unchanged),
        "removed": found.removed,
        "skipped": found.skipped,
    }


def _counted(found: "Intake") -> str:
    return (
        f"{len(found.added)} added, {len(found.changed)} changed, {len(found.unchanged)} unchanged, "
        f"{len(found.removed)} removed"
    )
