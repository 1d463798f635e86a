"""The errors of this package, named after the condition they report."""


class SkillError(Exception):
    """The root of this package's errors."""


class Closed(SkillError):
    """The directory was closed while something was still at work in it; what was not finished was not done."""


class Escape(SkillError):
    """A path, or a link on its way, leads out of the directory; `path` is the path as asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"path escapes the directory: {path!r}")


class Protected(SkillError):
    """A path is read-only: it matches `pattern` of the deny list, or `.git` when `pattern` is None."""

    def __init__(self, path: str, pattern: str | None) -> None:
        self.path, self.pattern = path, pattern
        super().__init__(f"{path!r} is read-only: it matches {pattern or '.git'}")


class Refused(SkillError):
    """A call whose arguments its plan refuses; the message is the refusal's text."""
