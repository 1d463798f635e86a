"""What a handler is told about its call, and what it may ask for while it runs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol


class Channel(Protocol):
    """The way from a handler to its worker.

    Of a function that is not async both block until they are done; else both are awaited.
    """

    def tell(self, message: dict[str, Any]) -> Any:
        """Send a report."""

    def ask(self, message: dict[str, Any]) -> Any:
        """Send a request, and get what is answered. Raises Rejected."""


class Rejected(Exception):
    """What a handler asked for was not done; `kind` says why in one word, `conflict` or `denied` for instance."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Secrets(Mapping[str, str]):
    """The values of the secrets that the contract names, by handle. Neither its repr nor its text shows one."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, handle: str) -> str:
        return self._values[handle]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{handle}=[secret]' for handle in self._values)})"

    def __reduce__(self) -> Any:
        raise TypeError("secrets are not pickled")


class _Memory:
    def __init__(self, name: str, channel: Channel) -> None:
        self._name, self._channel = name, channel

    def _do(self, operation: str, **arguments: Any) -> Any:
        return self._channel.ask({"memory": self._name, "operation": operation, "arguments": arguments})

    def __repr__(self) -> str:
        return f"<memory {self._name}>"


class Readable(_Memory):
    """A memory that the contract `uses … read`. Awaited, unless the handler is no async function."""

    def get(self, key: str) -> Any:
        """`{"key", "value", "version"}`, or None where there is none."""
        return self._do("get", key=key)

    def list(self, prefix: str = "", limit: int = 100, after: str = "") -> Any:
        """Keys with their versions, in order: `[{"key", "version"}]`. A page goes on behind the key `after`."""
        return self._do("list", prefix=prefix, limit=limit, after=after)

    def search(self, text: str, limit: int = 10) -> Any:
        """Entries by how well they match a text, the best first: `[{"key", "value", "version"}]`."""
        return self._do("search", text=text, limit=limit)


class Writable(_Memory):
    """A memory that the contract `uses … write`. Awaited, unless the handler is no async function."""

    def put(self, key: str, value: Any, version: int | None = None) -> Any:
        """Write a JSON value, and get its version. With `version`, only over that one (0: only where there is none).

        Raises Rejected with the kind `conflict` where another version stands.
        """
        return self._do("put", key=key, value=value, version=version)

    def delete(self, key: str, version: int | None = None) -> Any:
        """Take an entry away; whether there was one. `version` is as in `put`."""
        return self._do("delete", key=key, version=version)


class ReadableAndWritable(Readable, Writable):
    """A memory that the contract uses in both ways."""


_BY_MODES: Mapping[tuple[bool, bool], Callable[[str, Channel], Any]] = {
    (True, False): Readable,
    (False, True): Writable,
    (True, True): ReadableAndWritable,
}


class Memories(Mapping[str, Any]):
    """The memories that the contract uses: by name, or as attributes."""

    def __init__(self, modes: Mapping[str, list[str]], channel: Channel) -> None:
        self._all = {
            name: _BY_MODES["read" in each, "write" in each](name, channel) for name, each in modes.items() if each
        }

    def __getitem__(self, name: str) -> Any:
        return self._all[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_all"][name]
        except KeyError:
            raise AttributeError(f"the contract uses no memory {name}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class CallContext:
    """What a handler is told about its call.

    `deadline` is Unix time in seconds. `worktree` is the path of the episode's worktree, where the manifest gives it
    one. A handler that calls agents hands `onward` on, the service parameters of calls within this one. The methods
    are awaited, unless the handler is no async function: then they block.

    An async handler is canceled by `asyncio.CancelledError`. Any other looks at `canceled` where it works for long.
    """

    def __init__(self, values: Mapping[str, Any], channel: Channel) -> None:
        self.call_id: str = values["call_id"]
        self.episode: str = values["episode"]
        self.deadline: float = values["deadline"]
        self.task_id: str = values["task_id"]
        self.onward: dict[str, str] = dict(values["onward"])
        self.worktree: str | None = values["worktree"]
        self.secrets = Secrets(values["secrets"])
        self.memories = Memories(values["memories"], channel)
        self.canceled = False
        self._channel = channel

    def progress(self, text: str = "", fraction: float | None = None) -> Any:
        """Tell whoever follows the call how far it has come: a short text, a fraction of 1, or both."""
        return self._channel.tell({"is": "progress", "text": text, "fraction": fraction})

    def chunk(self, content: Any, artifact: str = "progress", last: bool = False) -> Any:
        """Send a part of an artifact ahead of the result: a text, or any JSON value.

        Raises Rejected for a chunk, or a sum of chunks, that is too large.
        """
        return self._channel.ask({"chunk": content, "artifact": artifact, "last": last})

    def log(self, text: str, level: str = "info") -> Any:
        """Write into the worker's log; `level` is debug, info, warning or error."""
        return self._channel.tell({"is": "log", "text": text, "level": level})

    def __repr__(self) -> str:
        return f"<call {self.call_id} of {self.episode}>"
