"""One delivery in a server's hands, from its arrival to its acknowledgement or a little later."""

from collections.abc import Callable

from bus.driver import Incoming


class Held:
    """A delivery that can be accepted: acknowledged before its request is answered, once for all.

    `on_accept` is called when it was, `asked` tells that it was tried. `stale` tells that the broker delivers the
    request again.
    """

    def __init__(self, message: Incoming, on_accept: Callable[[], None]) -> None:
        self.message = message
        self.accepted = False
        self.asked = False
        self._on_accept = on_accept

    @property
    def stale(self) -> bool:
        return not self.accepted and self.message.stale

    def accept(self) -> bool:
        """Acknowledge it now. False when it is stale."""
        self.asked = True
        if self.accepted:
            return True
        self.accepted = self.message.ack()
        if self.accepted:
            self._on_accept()
        return self.accepted
