"""The value of a secret, in a form that shows itself nowhere by accident."""

import hmac
from typing import Any, NoReturn


class Secret:
    """A value that only `reveal` gives. Its repr, text and format show none of it; it can't be pickled or encoded."""

    __slots__ = ("__value", "handle")

    handle: str

    def __init__(self, handle: str, value: str) -> None:
        self.handle = handle
        self.__value = value

    def reveal(self) -> str:
        """The value itself: for the handler that the contract gives it to, and for nothing else."""
        return self.__value

    def __repr__(self) -> str:
        return f"{self.handle}=[secret]"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__value.encode(), other.__value.encode())

    __hash__ = None  # type: ignore[assignment] # a hash of it would be a way to guess it

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: Any) -> "Secret":
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret is not pickled")
