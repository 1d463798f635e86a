"""Calls whose outcome never came, so that who asks for the same again asks for the same call."""

import threading
from collections import OrderedDict
from uuid import uuid4

MOST = 1000


class Unsettled:
    """Message ids by what was asked under them; the oldest are forgotten first. Safe to use from any thread."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> str:
        """The id of an unsettled call of this name, which is no longer kept then; else a new one."""
        with self._lock:
            return self._ids.pop(name, None) or uuid4().hex

    def unlock(self) -> None:
        """Be of use in a forked process, which has not the thread that may have held the lock."""
        self._lock = threading.Lock()

    def keep(self, name: str, message_id: str) -> None:
        """Keep the id of a call whose outcome is not known."""
        with self._lock:
            self._ids[name] = message_id
            while len(self._ids) > MOST:
                self._ids.popitem(last=False)
