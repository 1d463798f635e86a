"""What is installed, and what stands in the repository: our packages alone; names and versions, no addresses."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("bus", "skills", "broker", "deploy")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Written so that this file does not find itself.
ADDRESSES = re.compile(
    r"pypi\.[o]rg|[p]ythonhosted\.|[r]egistry\.npmjs|[r]egistry\.yarnpkg|[p]roxy\.golang|[-]-(extra-)?index-url|[-]-find-links"
)
MACHINE_PATHS = re.compile(r"/(?:home|Users)/\w+/|/root/[.]\w")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")


def run(*command: str | Path, folder: Path, status: int = 0) -> str:
    """Run a command that sees nothing of this process, and return what it prints."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str | Path, folder: Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments, folder=folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ROOT, folder=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel in it; what the wheel depends on is lent by the running one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", wheel, folder=folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "lent.pth").write_text("\n".join(sorted(paths)))
    return folder / "bin"


@pytest.fixture
def decoys(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds packages of our packages' names; that none was imported is checked when the test ends."""
    marker = tmp_path / "picked-up"
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        source = f"open({str(marker)!r}, 'a').write({package!r})\nraise SystemExit('picked up {package}')\n"
        (tmp_path / package / "__init__.py").write_text(source)
    yield tmp_path
    assert not marker.exists(), f"picked up: {marker.read_text()}"


def test_the_installed_command_picks_up_nothing_of_the_folder_that_it_runs_in(installed: Path, decoys: Path) -> None:
    assert PROJECT["project"]["version"] in run(installed / "skillbus", "--version", folder=decoys)
    assert "worker" in run(installed / "skillbus", "--help", folder=decoys)


def test_neither_does_a_whole_run(installed: Path, decoys: Path) -> None:
    assert "chain verified" in run(installed / "skillbus", "demo", folder=decoys)


def test_the_packages_that_it_runs_are_the_installed_ones(installed: Path, decoys: Path) -> None:
    script = f"import {', '.join(PACKAGES)}\nfor package in ({', '.join(PACKAGES)}): print(package.__file__)"
    files = run(installed / "python", "-P", "-c", script, folder=decoys).split()
    assert [Path(file).parent.name for file in files] == list(PACKAGES)
    assert all(Path(file).is_relative_to(installed.parent) for file in files)


def test_the_decoys_would_be_noticed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "__init__.py").write_text("raise SystemExit('picked up')")
    run(installed / "python", "-c", "import bus", folder=tmp_path, status=1)


def test_the_wheel_holds_the_four_packages_whole(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    kept = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    sources = {path.relative_to(ROOT).as_posix() for path in kept if "__pycache__" not in path.parts}
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert sources <= set(names)
    assert all(f"{package}/py.typed" in names for package in PACKAGES)


def test_every_import_is_declared() -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    optional = {canonicalize_name("a2a-sdk")}  # its adapter is for those who have it
    owners = packages_distributions()
    undeclared = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                for top in {name.partition(".")[0] for name in names} - set(PACKAGES) - sys.stdlib_module_names:
                    owning = {canonicalize_name(owner) for owner in owners.get(top, [top])}
                    if not owning & (declared | optional):
                        undeclared.add(f"{path.relative_to(ROOT)}: {top}")
    assert undeclared == set()


def tracked() -> Iterator[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    names = run("git", "-c", "safe.directory=*", "ls-files", "-z", folder=ROOT).split("\0")
    yield from (ROOT / name for name in names if name and (ROOT / name).is_file())


def lines() -> Iterator[tuple[str, str]]:
    for path in tracked():
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_file_holds_the_address_of_a_registry() -> None:
    assert [where for where, line in lines() if ADDRESSES.search(line)] == []


def test_no_file_holds_a_path_of_the_machine_that_it_was_written_on() -> None:
    assert [where for where, line in lines() if MACHINE_PATHS.search(line)] == []


def test_a_pin_is_a_name_and_a_version() -> None:
    pinning = [path for path in tracked() if re.fullmatch(r"(constraints|requirements).*\.txt", path.name)]
    assert ROOT / "constraints.txt" in pinning
    for path in pinning:
        for line in path.read_text().splitlines():
            assert line.startswith("#") or PIN.fullmatch(line), f"{path.relative_to(ROOT)}: {line}"


def pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text()
    pairs = (line.split("==") for line in text.splitlines() if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    groups = [PROJECT["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def test_the_pins_are_what_the_project_asks_for() -> None:
    pinned = pins()
    for requirement in requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement} is not pinned"
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"


def test_everything_that_is_needed_is_pinned() -> None:
    missing, seen = set(), set()
    left = [(requirement, "") for requirement in requirements()]
    pinned = pins()
    while left:
        requirement, extra = left.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in pinned:
            missing.add(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen and (found := _installed(name)):
                seen.add((name, wanted))
                left += [(Requirement(text), wanted) for text in found.requires or []]
    assert missing == set()


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
