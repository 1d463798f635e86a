"""A folder of contracts, handlers and a manifest as a pack: what it binds is published, what it refuses is reported."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ..pack import PackContext, Problem
from ..skill import Skill
from ..supplies import Supplies
from ..tb.folder import Folder
from ..tb.publication import contract_of
from ..tb.satisfaction import Bound
from .bound import bound_skill, runner_of
from .supply import Supplier, Withheld
from .tool import Tool

SupplierOf = Callable[[Bound], Supplier]


def folder_pack(path: Path, context: PackContext, supplier_of: SupplierOf | None = None) -> Iterator[Skill]:
    """The skills of the tools that the folder's manifest satisfies.

    Each fault of a contract or of the manifest, and each tool that is bound and refused, is reported; a tool that
    nothing binds is left out. No file of a handler is opened here: it is read with the tool's first call. Raises
    OSError for a folder that can't be read.
    """
    if supplier_of is None:
        supplies = Supplies(context)
        context.at_end(supplies.close)
        supplier_of = supplies.of
    folder = Folder.read(path.absolute())
    for fault in folder.faults:
        context.report(Problem(str(path), str(fault), "contract"))
    for problem in folder.problems:
        context.report(Problem(str(path), problem, "manifest"))
    for standing in folder.standings:
        outcome = standing.outcome
        if isinstance(outcome, Bound) and not standing.problems:
            try:
                supplier = supplier_of(outcome)
            except Withheld as error:
                reason = f"tool {standing.tool.id} is refused: {error}"
                context.report(Problem(standing.tool.id, reason, "tool"))
                continue
            yield _skill(folder, outcome, context, supplier)
        elif standing.state == "refused":
            context.report(Problem(standing.tool.id, "; ".join(standing.reasons), "tool"))


def tool_of(bound: Bound, folder: Path) -> Tool:
    """A bound tool as its handler is run."""
    tool, binding = bound.tool, bound.binding
    handler = binding.handler
    return Tool(
        id=tool.id,
        language=handler.language,
        folder=folder,
        function=handler.function,
        takes=tool.takes[0],
        input_schema=tool.input,
        output_schema=tool.output,
        module=handler.module,
        file=handler.file,
        input_member=tool.input_member,
        output_member=tool.output_member,
        isolation=binding.isolation,
        concurrency=binding.concurrency,
        secrets=tuple(bound.secrets),
        memories={name: tuple(sorted(grant.modes)) for name, grant in bound.memories.items()},
    )


def _skill(folder: Folder, bound: Bound, context: PackContext, supplier: Supplier) -> Skill:
    tool = tool_of(bound, folder.path.resolve())
    runner = runner_of(tool, context.environ)
    context.at_end(runner.close)
    return bound_skill(contract_of(bound), tool, runner, supplier)
