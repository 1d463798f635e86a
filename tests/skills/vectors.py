"""What the recorded rows of the tools need to run: their places, long strings and files."""

import base64
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def expand(value: Any, places: dict[str, str]) -> Any:
    """The value with its long strings written out and its `${PLACE}`s filled in."""
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace(name, place)
        return value
    if isinstance(value, list):
        return [expand(item, places) for item in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            char, count = value["$repeat"]
            return char * count + value.get("$suffix", "")
        return {expand(key, places): expand(item, places) for key, item in value.items()}
    return value


def lay_out(folder: Path, files: Row, places: dict[str, str]) -> None:
    """Make the files, folders and links that a row starts from."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_bytes(content.encode())
            path.chmod(0o644)
        elif "dir" in content:
            path.mkdir(exist_ok=True)
        elif "symlink" in content:
            path.symlink_to(expand(content["symlink"], places))
        elif "repeat" in content:
            char, count = content["repeat"]
            path.write_bytes((char * count).encode())
        elif "bytes_b64" in content:
            path.write_bytes(base64.b64decode(content["bytes_b64"]))
        elif "files" in content:
            prefix, count, suffix, text = content["files"]
            path.mkdir(exist_ok=True)
            for index in range(count):
                (path / f"{prefix}{index:04}{suffix}").write_text(text)
        if isinstance(content, dict) and "mode" in content:
            path.chmod(int(content["mode"], 8))
