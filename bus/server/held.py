"""One delivery in a server's hands, from its arrival to its acknowledgement or a little later."""

from bus.driver import Incoming
from bus.server.intake import Intake


class Held:
    """A delivery that takes a slot of its lane, and can be accepted: acknowledged before its request is answered.

    `asked` tells that its agent has tried that. `stale` tells that the broker delivers the request again.
    """

    def __init__(self, message: Incoming, lane: Intake) -> None:
        self.message = message
        self.lane = lane
        self.accepted = False
        self.asked = False
        self._entered = lane.enter()

    @property
    def stale(self) -> bool:
        return not self.accepted and self.message.stale

    def accept(self) -> bool:
        """Acknowledge it now, for an agent that keeps the request. False when it is stale."""
        self.asked = True
        return self.let_go()

    def let_go(self) -> bool:
        """Acknowledge it now. False when it is stale."""
        if not self.accepted and self.message.ack():
            self.accepted = True
            self.lane.accept(self._entered)
        return self.accepted

    def leave(self) -> None:
        """Nothing runs for it any more."""
        if self.accepted:
            self.lane.end()
        else:
            self.lane.leave(self._entered)
