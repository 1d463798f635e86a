"""What list_files, read_file and write_file have in common."""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..contract import Contract
from ..directory import Directory
from ..errors import Escape, Protected, Refused
from ..location import Location
from ..plan import Plan, PlannedEffect
from ..skill import Context, Done, EffectResult, Handler, Outcome, Planner, Skill
from .envelope import observation
from .paths import hidden, normalised
from .settings import FileSettings
from .text import text

MAX_PATH = 16_384  # characters; the file system takes a quarter of it
OFFLINE = (
    "filesystem tools are offline — unset MKLANG_FS_BACKEND (workspace defaults to the current directory) "
    "or set MKLANG_FS_ROOT=/abs/path"
)


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a tool's handler acts: the resolved `location`, by the path as given and normalised, and the payload."""

    worktree: Directory
    location: Location
    given: str
    path: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FileTool:
    """One of the three tools: its name, its verb in error texts, its effect, and the payload of an error.

    A payload starts with the path: as given where it went wrong, normalised where it went well.
    """

    name: str
    verb: Literal["list", "read", "write"]
    effect: str
    nothing: Mapping[str, Any]
    settings: FileSettings

    @property
    def stub(self) -> bool:
        return self.settings.backend.value == "stub"

    def skill(self, contract: Contract, plan: Planner, handler: Handler) -> Skill:
        """The tool as it is served, in the tier that the settings choose."""
        how = "set SKILLBUS_FS_BACKEND=local" if self.stub else ""
        return Skill(contract, plan, handler, self.finish, "stub" if self.stub else "live", how)

    def success(self, path: str, **payload: Any) -> dict[str, Any]:
        return observation(self.name, {"path": path, **payload})

    def failure(self, given: str, error: str) -> dict[str, Any]:
        return observation(self.name, {"path": given, **self.nothing}, error=error, stub=self.stub)

    def refusal(self, given: str, error: str) -> Plan:
        """A refusal in the plan: no effect, and the envelope as the result."""
        return Plan(result=self.failure(given, error), refused=True)

    def plan(self, arguments: Any, check: Callable[[Mapping[str, Any], str], Mapping[str, Any]]) -> Plan:
        """The plan for `arguments`: what `check` makes of them joins the path in the payload, or it refuses."""
        if not isinstance(arguments, Mapping):
            return self.refusal("", "arguments must be a JSON object")
        given = ""
        try:
            given = _path(arguments)
            return Plan.one(self.effect, {"path": given, **check(arguments, given)}, finish=True)
        except Refused as refused:
            return self.refusal(given, str(refused))
        except ValueError as error:
            return self.refusal(given, f"{self.verb} failed: {error}")

    def check_tier(self) -> None:
        """Raise Refused if the tools are offline."""
        if self.stub:
            raise Refused(OFFLINE)

    def check_path(self, given: str) -> str:
        """The normalised path. Raises Refused, ValueError for what no file system takes."""
        path = normalised(given)
        if not path and self.verb != "list":
            raise Refused("empty path")
        if "\0" in path:
            raise ValueError("embedded null byte")
        path.encode()
        return path

    def finish(self, arguments: Any, result: EffectResult) -> Mapping[str, Any]:
        """The handler's own envelope, or the one that tells why there is none."""
        if result.status == "ok" and result.output is not None:
            return result.output
        given = _path(arguments) if isinstance(arguments, Mapping) else ""
        return self.failure(given, f"the {result.effect} effect ended {result.status}")

    async def run(
        self,
        effect: PlannedEffect,
        context: Context,
        act: Callable[[Workplace], dict[str, Any]],
        *,
        brief: bool = False,
    ) -> Outcome:
        """The outcome of `act` on the place that the effect's path names.

        A `brief` one runs on the event loop: a thread would take it 0.1 ms of processor time, and milliseconds of
        waiting on a busy loop. What may take longer, or wait for the disk's journal, gets its thread.
        """
        if context.worktree is None:
            root = self.settings.root.value or "."
            return Done(self.failure(effect.payload["path"], f"workspace root is not a directory: {root}"))
        if brief:
            return Done(self._answer(context.worktree, effect.payload, act))
        return Done(await asyncio.to_thread(self._answer, context.worktree, effect.payload, act))

    def _answer(
        self, worktree: Directory, payload: Mapping[str, Any], act: Callable[[Workplace], dict[str, Any]]
    ) -> dict[str, Any]:
        given = path = payload["path"]
        try:
            path = normalised(given)
            with worktree.resolve(path) as location:
                if hidden(location.path):
                    raise Escape(path)
                return act(Workplace(worktree, location, given, path, payload))
        except Refused as refused:
            return self.failure(given, str(refused))
        except Escape:
            return self.failure(given, f"path escapes the workspace: {given!r}")
        except Protected:
            return self.failure(given, f"path is read-only: {given!r}")
        except NotADirectoryError as error:
            return self.failure(given, self._blocked(given, path, error))
        except OSError as error:
            loop = error.errno == errno.ELOOP
            return self.failure(given, f"{self.verb} failed: {f'Symlink loop from {path!r}' if loop else error}")
        except ValueError as error:
            return self.failure(given, f"{self.verb} failed: {error}")

    def _blocked(self, given: str, path: str, error: OSError) -> str:
        """A file stands in the place of a directory on the way."""
        if self.verb != "write":
            return no_such(self.verb, given)
        parent = path.rpartition("/")[0]
        if error.filename == parent:
            return f"write failed: {FileExistsError(errno.EEXIST, 'File exists', parent)}"
        return f"write failed: {NotADirectoryError(errno.ENOTDIR, 'Not a directory', parent)}"


def _path(arguments: Mapping[str, Any]) -> str:
    """The path as asked for. Raises ValueError for one that is longer than any that leads somewhere has to be."""
    given = text(arguments.get("path"), at_most=MAX_PATH)
    if len(given) > MAX_PATH:
        raise ValueError(f"the path is longer than {MAX_PATH} characters")
    return given.strip()


def no_such(verb: str, given: str) -> str:
    return f"no such {'directory' if verb == 'list' else 'file'}: {given!r}"
