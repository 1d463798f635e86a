"""The floors: a package imports only what stands below it, and a foreign library stops at its adapter."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "bus": set(),
    "skills": set(),
    "broker": {"bus", "skills"},
    "deploy": {"bus", "skills", "broker"},
}
INSIDE = {
    "bus": ("amqp", "memory", "client", "server", "dead", "discovery", "sdk"),
    "broker": ("grants", "sessions", "worktrees", "ledger", "answers", "pipeline", "chain", "agent", "push"),
}
"""The parts of a package, each standing on those before it."""
AMQP = {"aio_pika", "aiormq", "pamqp"}
AMQP_ADAPTER = "bus.amqp"
A2A = "a2a"
A2A_ADAPTER = "bus.sdk"


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Every module that the file imports, by its absolute name, with the line; names that are imported from one too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), path)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                parts = package.split(".")[: -(level - 1) or None] if level else []
                origin = ".".join([*parts, *([source] if source else [])])
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def within(module: str, package: str) -> bool:
    """Whether it is the package or stands in it."""
    return f"{module}.".startswith(f"{package}.")


def faults(root: Path) -> Iterator[str]:
    """Every import below `root` that goes up, or past an adapter."""
    for package, below in BELOW.items():
        for path in sorted((root / package).rglob("*.py")):
            names = path.relative_to(root).with_suffix("").parts
            module = ".".join(names[:-1] if names[-1] == "__init__" else names)
            for line, imported in imports(path, module):
                top = imported.partition(".")[0]
                where = f"{path.relative_to(root)}:{line}"
                if top in BELOW and top != package and top not in below:
                    yield f"{where} imports {imported}: {package} stands below {top} or beside it"
                if top in AMQP and package != "deploy" and not within(module, AMQP_ADAPTER):
                    yield f"{where} imports {imported}: only {AMQP_ADAPTER} may"
                if package == "broker" and within(imported, AMQP_ADAPTER):
                    yield f"{where} imports {imported}: broker knows nothing of AMQP"
                if top == A2A and not within(module, A2A_ADAPTER):
                    yield f"{where} imports {imported}: only the adapter for it may"


def test_no_package_imports_upward() -> None:
    assert list(faults(ROOT)) == []


@pytest.mark.parametrize("package", INSIDE)
def test_a_part_imports_only_those_before_it(package: str) -> None:
    order = INSIDE[package]
    found = set()
    for place, part in enumerate(order):
        folder = ROOT / package / part
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for line, imported in imports(path, module):
                above = [other for other in order[place + 1 :] if within(imported, f"{package}.{other}")]
                found |= {f"{path.relative_to(ROOT)}:{line} imports {imported}" for _ in above}
    assert found == set()


def test_every_part_stands_somewhere() -> None:
    for package, order in INSIDE.items():
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders <= set(order)


def test_every_package_is_looked_at() -> None:
    found = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert found == set(BELOW)
    assert all((ROOT / package / "__init__.py").exists() for package in BELOW)


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("skills/a.py", "import bus", "imports bus: skills stands below bus or beside it"),
        ("skills/a.py", "from bus.names import queue", "imports bus.names.queue"),
        ("bus/a.py", "from skills import Skill", "imports skills.Skill: bus stands below skills or beside it"),
        ("bus/a.py", "def f():\n    import broker.grants.grant", "a.py:2 imports broker.grants.grant"),
        ("bus/a.py", "if TYPE_CHECKING:\n    from deploy import settings", "a.py:2 imports deploy.settings"),
        ("broker/deep/a.py", "from deploy.settings import Settings", "broker/deep/a.py:1 imports deploy.settings"),
        ("broker/a.py", "import importlib\nimportlib.import_module('deploy.cli')", "a.py:2 imports deploy.cli"),
        ("broker/a.py", "__import__('deploy')", "a.py:1 imports deploy"),
        ("broker/a.py", "import aio_pika", "imports aio_pika: only bus.amqp may"),
        ("broker/a.py", "from bus import amqp", "imports bus.amqp: broker knows nothing of AMQP"),
        (
            "broker/a.py",
            "from bus.amqp.connection import Driver",
            "imports bus.amqp.connection.Driver: broker knows nothing of AMQP",
        ),
        ("bus/client/client.py", "from aiormq.abc import Channel", "imports aiormq.abc.Channel: only bus.amqp may"),
        ("bus/deep/amqp.py", "import pamqp", "imports pamqp: only bus.amqp may"),
        ("bus/server/server.py", "from a2a.types import Task", "imports a2a.types.Task: only the adapter for it may"),
    ],
)
def test_an_import_that_goes_up_is_found(tmp_path: Path, file: str, source: str, fault: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    (found,) = faults(tmp_path)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("bus/amqp/connection.py", "import aio_pika\nfrom aiormq.abc import Channel\nfrom .names import queue"),
        ("bus/sdk/transport.py", "from a2a.types import Task"),
        ("bus/__init__.py", "from . import amqp\nfrom .amqp import Driver"),
        ("broker/deep/a.py", "import bus\nfrom skills.plan import Plan\nfrom .. import grants\nfrom ..deploy import x"),
        ("broker/a.py", "from bus import amqplib\nimport asyncio, deployment"),
        ("deploy/a.py", "import aio_pika\nimport broker, skills, bus\nfrom .cli import main"),
        ("tests/a.py", "import deploy"),
    ],
)
def test_an_import_that_goes_down_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert list(faults(tmp_path)) == []
