"""The package's map and its floor."""

import ast
import subprocess
import sys
from pathlib import Path

import bus

FOLDER = Path(bus.__file__).parent


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_everything_public_is_there() -> None:
    assert len(set(bus.__all__)) == len(bus.__all__)
    for name in bus.__all__:
        assert hasattr(bus, name), name


def test_the_bus_stands_on_the_ground() -> None:
    for path in FOLDER.glob("*.py"):
        allowed = {"bus", "orjson", *sys.stdlib_module_names}
        if path.name == "amqp.py":
            allowed |= {"aio_pika", "aiormq", "yarl"}
        if path.name == "webhook.py":
            allowed |= {"httpx"}
        if path.name in ("sdk.py", "a2a_sdk.py", "sdk_push.py"):
            allowed |= {"a2a"}
        assert imports(path) <= allowed, path.name


def test_the_sdk_is_not_needed_to_begin() -> None:
    code = "import sys, bus, bus.amqp.connection; assert not {'a2a', 'google.protobuf'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, check=True, timeout=60)


def test_files_are_small() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 401, path.name
