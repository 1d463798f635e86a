"""`skillbus contract`: what tools declare, whether a manifest satisfies it, and the files to start from."""

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from . import screen
from .failure import Failure
from .options import Json

if TYPE_CHECKING:
    from skills.tb import Air, Folder, Source, Standing

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Contracts of tools (.tb): check, format, compile and begin them.")

ContractFile = Annotated[Path, typer.Argument(metavar="FILE", help="A contract (.tb).")]


@app.command("check")
def check(
    target: Annotated[Path, typer.Argument(metavar="DIR|FILE", help="A folder with its manifest, or one contract.")],
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what goes beyond the page's own language.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with contracts and manifest, and which tools are bound.

    No handler is loaded. The exit code is 1 for a fault, for a manifest that does
    not grant what a bound tool requires, and with --strict for each extension. An
    unbound tool is no fault: it can't run, and is not published.

    [dim]Examples[/dim]
    skillbus contract check tools
    skillbus contract check tools/search.tb --strict
    """
    from skills.tb import Folder, NotAContract

    try:
        folder, only = Folder.around(target) if target.is_file() else (Folder.read(target), None)
    except NotAContract as error:
        if as_json:
            screen.say_json({"faults": [fault.as_json() for fault in error.faults]})
        for fault in error.faults:
            screen.note(screen.legible(str(fault)))
        raise Failure(f"{len(error.faults)} fault(s)") from None
    found = _Found(folder, only, strict=strict)
    if as_json:
        screen.say_json(found.as_json())
    else:
        found.show()
    if found.count:
        raise Failure(f"{found.count} fault(s)")


@app.command("fmt")
def fmt(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Contracts (.tb).")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit code 1 if something would be.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Change nothing; show what would be.")] = False,
) -> None:
    """Put contracts into the one layout; what they mean stays.

    [dim]Examples[/dim]
    skillbus contract fmt tools/*.tb
    skillbus contract fmt --check tools/*.tb
    """
    from skills.tb import fmt as formatted

    sources = {file: _parsed(file) for file in files}
    # all or none: a fault in one changes nothing
    laid_out = _explained(lambda: {file: formatted(source) for file, source in sources.items()})
    changed = [file for file, text in laid_out.items() if file.read_bytes() != text.encode()]
    for file in changed:
        if diff:
            before = file.read_bytes().decode("utf-8-sig").splitlines(keepends=True)
            lines = difflib.unified_diff(before, laid_out[file].splitlines(keepends=True), str(file), str(file))
            for line in lines:
                screen.say(screen.legible(line.removesuffix("\n")))
        elif not check:
            _replace(file, laid_out[file])
        if not diff:
            screen.note(screen.legible(f"{file} {'would be' if check else 'is'} laid out anew"))
    if changed and check:
        raise Failure(f"{len(changed)} contract(s) are not in the one layout: `skillbus contract fmt` mends it")


@app.command("air")
def air(file: ContractFile) -> None:
    """Print the neutral form of a contract as JSON.

    [dim]Examples[/dim]
    skillbus contract air tools/search.tb
    skillbus contract air tools/search.tb | jq '.tools[].requirements'
    """
    screen.say_json(_air(file).as_json())


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits and _, as search_datasets.")],
    javascript: Annotated[bool, typer.Option("--javascript", help="A handler in JavaScript, not Python.")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Where; else a new folder NAME.")] = None,
) -> None:
    """Write the three files to start from: contract, manifest, handler.

    [dim]Examples[/dim]
    skillbus contract new greet
    skillbus contract new search_datasets --javascript --dir tools
    """
    from skills.tb import starter

    try:
        files = starter(name, javascript=javascript)
    except ValueError as error:
        raise Failure(str(error)) from None
    home = folder or Path(name)
    there = next((home / each for each in files if os.path.lexists(home / each)), None)
    if there is not None:
        raise Failure(f"{there} is there already: nothing is written; --dir names another folder")
    home.mkdir(parents=True, exist_ok=True)
    for each, text in files.items():
        with (home / each).open("x", encoding="utf-8") as opened:
            opened.write(text)
        screen.say(screen.legible(str(home / each)))
    screen.note(f"`skillbus contract check {home}` says how it stands")


class _Found:
    """What a check has found; with `only`, about this one contract."""

    def __init__(self, folder: "Folder", only: "Source | None", *, strict: bool) -> None:
        self.folder = folder
        mine = [module for module in folder.library if only is None or module == only.module.text]
        checked = [folder.library.checked(module) for module in mine]
        self.faults = [fault for fault in folder.faults if only is None or fault.file == only.file]
        self.oddities = [oddity for each in checked for oddity in each.oddities]
        self.extensions = [extension for each in checked for extension in each.extensions] if strict else []
        self.standings = [each for each in folder.standings if only is None or each.tool.id.rpartition(".")[0] in mine]
        self.problems = folder.problems if only is None else ()
        self.refused = [each for each in self.standings if each.state == "refused"]

    @property
    def count(self) -> int:
        return len(self.faults) + len(self.extensions) + len(self.problems) + len(self.refused)

    def as_json(self) -> dict[str, Any]:
        return {
            "faults": [fault.as_json() for fault in self.faults],
            "warnings": [{**oddity.as_json(), "file": oddity.file} for oddity in self.oddities],
            "extensions": [extension.as_json() for extension in self.extensions],
            "manifest": list(self.problems),
            "tools": [
                {"id": each.tool.id, "state": each.state, "handler": _handler(each), "missing": list(each.reasons)}
                for each in self.standings
            ],
        }

    def show(self) -> None:
        here = Path(os.path.relpath(self.folder.path))
        located = [str(replace(fault, file=str(here / fault.file))) for fault in self.faults]
        located += [str(replace(extension, file=str(here / extension.file))) for extension in self.extensions]
        for line in (*located, *self.problems):
            screen.note(screen.legible(line))
        for oddity in self.oddities:
            screen.warn(str(replace(oddity, file=str(here / oddity.file))))
        for standing in self.refused:
            for reason in standing.reasons:
                screen.note(screen.legible(reason))
        rows = [(each.tool.id, each.state, _handler(each), _required(each)) for each in self.standings]
        screen.say_table(("TOOL", "STATE", "HANDLER", "REQUIRES"), rows)


def _handler(standing: "Standing") -> str:
    from skills.tb import Bound

    return standing.outcome.binding.handler.text if isinstance(standing.outcome, Bound) else "-"


def _required(standing: "Standing") -> str:
    required = standing.tool.requirements
    memory = [f"{name} {mode}" for name, mode in required.memory]
    return ", ".join((*required.capabilities, *required.secrets, *memory)) or "-"


def _parsed(file: Path) -> "Source":
    from skills.tb import parse, read_contract

    return _explained(lambda: parse(read_contract(file), file=str(file)))


def _air(file: Path) -> "Air":
    from skills.tb import Folder

    def compiled() -> "Air":
        folder, source = Folder.around(file)
        return folder.library.air(source.module.text)

    return _explained(compiled)


def _explained(work: Callable[[], T]) -> T:
    """What `work` gives. Raises Failure with every fault of a source that is no contract."""
    from skills.tb import NotAContract

    try:
        return work()
    except NotAContract as error:
        for fault in error.faults[:-1]:
            screen.note(screen.legible(str(fault)))
        raise Failure(str(error.faults[-1])) from None


def _replace(file: Path, text: str) -> None:
    """Write the text in the file's place; nobody sees a half-written one."""
    import tempfile

    target = file.resolve()
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=".", suffix=".tb", encoding="utf-8", delete=False
    ) as new:
        new.write(text)
    Path(new.name).chmod(target.stat().st_mode & 0o777)
    Path(new.name).replace(target)
