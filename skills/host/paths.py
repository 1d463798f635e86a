"""The path rule of the file tools."""

from ..errors import Refused


def normalised(given: str) -> str:
    """The path, relative to the workspace and without `.` or empty segments; "" for the workspace itself.

    `given` is the path as asked for, stripped. A backslash separates like a slash. Raises Refused.
    """
    path = given.replace("\\", "/")
    if path.startswith("/") or (path[1:2] == ":" and path[0].isalpha()):
        raise Refused(f"absolute paths are not allowed: {path!r}")
    segments = [segment for segment in path.split("/") if segment not in ("", ".")]
    for segment in segments:
        if segment == "..":
            raise Refused(f"path escapes the workspace: {given!r}")
        if segment.startswith("."):
            raise Refused(f"dotfile segments are not allowed: {segment!r}")
    return "/".join(segments)


def hidden(path: str) -> bool:
    """Whether a name on a resolved path starts with a dot."""
    return any(name.startswith(".") for name in path.split("/"))


def suffix(path: str) -> str:
    """The last suffix of the last name, case-folded, with its dot; "" if there is none."""
    name = path.rpartition("/")[2]
    stem, dot, last = name.rpartition(".")
    return f".{last}".casefold() if stem and dot and last else ""
