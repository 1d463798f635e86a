"""Who a request comes from: its session, remembered for a moment, and its signature."""

import time

from bus import Request, Unauthenticated

from ..ledger.ledger import Ledger
from ..sessions import Session, claimed_session, verify

_REMEMBERED_SECONDS = 1.0
_REMEMBERED = 4096


class Admission:
    """Authenticates requests against the sessions in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sessions: dict[str, tuple[float, Session]] = {}

    async def session(self, request: Request) -> Session:
        """The session that has signed a request. Raises Unauthenticated."""
        name = claimed_session(request)
        now = time.time()
        since, session = self._sessions.get(name, (0.0, None))
        remembered = session is not None and 0 <= now - since < _REMEMBERED_SECONDS
        if not remembered or request.operation != "SendMessage":
            # A short memory is safe for a message: keys and grants of a session never change, and whatever changes
            # the ledger looks at the session again in its own transaction.
            session = await self._ledger.session(name)
            if session is not None:
                if len(self._sessions) >= _REMEMBERED:
                    self._sessions.clear()
                self._sessions[name] = now, session
        return verify(request, session, now)

    async def fresh(self, session: Session) -> Session:
        """The session as it is now, for what may not wait until the memory of it is over. Raises Unauthenticated."""
        fresh = await self._ledger.session(session.id)
        if fresh is None or not fresh.is_alive(time.time()):
            raise Unauthenticated("the session has expired or was revoked")
        return fresh
